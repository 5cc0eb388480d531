"""A stand-in for W&B on loopback: answers the calls that a run that is online, `wandb sync` and a
Report make, and keeps what the client sent.

A real HTTP server, so the real client talks to it; the answers are the least that the client of
wandb 0.31 goes on with. Moods: 'good'; 'refuse' (401 to everything); 'hang' (takes a request and
never answers).
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Server:
    """``calls``: (name of the GraphQL operation, variables); ``uploads``: path -> bytes;
    ``projects``: those that exist."""

    address: str = ""
    mood: str = "good"
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    uploads: dict[str, bytes] = field(default_factory=dict)
    streams: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    projects: set[str] = field(default_factory=lambda: {"sdgbias"})
    ended: threading.Event = field(default_factory=threading.Event)

    def of(self, name: str) -> list[dict[str, Any]]:
        return [variables for called, variables in self.calls if called == name]


@contextmanager
def wandb_server(mood: str = "good") -> Iterator[Server]:
    state = Server(mood=mood)
    artifacts: dict[str, str] = {}  # digest -> state
    kinds: dict[str, tuple[str, str]] = {}  # digest -> name, type

    def fragment(digest: str) -> dict[str, Any]:
        name, kind = kinds[digest]
        project: dict[str, Any] = {"id": "p", "internalId": "42", "name": "sdgbias"}
        project |= {"entity": {"id": "e", "name": "team"}}
        return {
            "__typename": "Artifact",
            "id": digest,
            "artifactSequence": {
                "__typename": "ArtifactSequence",
                "id": f"s-{name}",
                "name": name,
                "project": project,
            },
            "versionIndex": 0,
            "artifactType": {"id": "t", "name": kind},
            "description": None,
            "metadata": "{}",
            "ttlDurationSeconds": 0,
            "ttlIsInherited": False,
            "tags": [],
            "historyStep": None,
            "state": "COMMITTED",
            "size": 1,
            "digest": digest,
            "commitHash": "c",
            "fileCount": 1,
            "createdAt": "2026-11-21T00:00:00",
            "updatedAt": "2026-11-21T00:00:00",
            "aliases": [],
        }

    def answer(name: str, v: dict[str, Any], query: str) -> dict[str, Any]:
        entity = {
            "id": "e",
            "name": "team",
            "projects": {},
            "organization": None,
            "xxhashDigestsEnabled": False,
        }
        if name == "Viewer":
            return {
                "viewer": {
                    "id": "u",
                    "entity": "team",
                    "username": "person",
                    "flags": "{}",
                    "teams": {"edges": []},
                    "email": "",
                    "admin": False,
                }
            }
        if name == "ServerFeaturesQuery":
            return {"serverInfo": {"features": []}}
        if name == "UpsertBucket":
            state.projects.add(v.get("project") or "")
            bucket = {
                "id": v["name"],
                "name": v["name"],
                "displayName": "",
                "description": "",
                "config": "{}",
                "sweepName": None,
                "historyLineCount": 0,
            }
            return {
                "upsertBucket": {
                    "bucket": (
                        bucket
                        | {
                            "project": {
                                "id": "p",
                                "name": v.get("project"),
                                "entity": entity | {"name": v.get("entity") or "team"},
                            }
                        }
                    ),
                    "inserted": True,
                }
            }
        if name == "ArtifactType":
            return {"project": None}
        if name == "ArtifactByID":
            return {"artifact": fragment(v["id"])}
        if name == "LinkArtifact":
            given = v["input"]
            made = fragment(given["artifactID"])
            collection = made["artifactSequence"] | {"name": given["artifactPortfolioName"]}
            member = {
                "__typename": "ArtifactCollectionMembership",
                "id": "m",
                "versionIndex": 0,
                "createdAt": "2026-11-21T00:00:00",
                "aliases": [],
                "artifactCollection": collection,
                "artifact": made,
            }
            return {"result": {"versionIndex": 0, "artifactMembership": member}}
        if name == "CreateArtifact":
            given = v["input"]
            kinds[given["digest"]] = (
                (given.get("artifactCollectionNames") or [given.get("artifactCollectionName")])[0],
                given["artifactTypeName"],
            )
            known = artifacts.setdefault(given["digest"], "PENDING")
            sequence = {"latestArtifact": None}
            return {
                "createArtifact": {
                    "artifact": {
                        "id": given["digest"],
                        "state": known,
                        "artifactSequence": sequence,
                    }
                }
            }
        if name == "CreateArtifactManifest":
            place = {
                "id": "f",
                "uploadUrl": f"{state.address}/upload/manifest/{v['artifactID']}",
                "uploadHeaders": [],
            }
            return {
                "createArtifactManifest": {
                    "artifactManifest": {"id": v["artifactID"], "file": place}
                }
            }
        if name == "CreateArtifactFiles":
            files = v["input"]["artifactFiles"]
            edges = [
                {
                    "node": {
                        "id": f["name"],
                        "name": f["name"],
                        "displayName": f["name"],
                        "storagePath": f["name"],
                        "uploadHeaders": [],
                        "uploadUrl": (
                            f"{state.address}/upload/artifact/{f['artifactID']}/{f['name']}"
                        ),
                        "uploadMultipartUrls": None,
                        "artifact": {"id": f["artifactID"]},
                    }
                }
                for f in files
            ]
            return {"createArtifactFiles": {"files": {"edges": edges}}}
        if name == "CommitArtifact":
            artifacts[v["artifactID"]] = "COMMITTED"
            return {
                "commitArtifact": {"artifact": {"id": v["artifactID"], "digest": v["artifactID"]}}
            }
        if name == "UseArtifact":
            return {
                "useArtifact": {
                    "artifact": {
                        "id": v["input"]["artifactID"],
                        "digest": "",
                        "description": "",
                        "state": "COMMITTED",
                        "createdAt": "2026-11-21T00:00:00",
                        "metadata": "{}",
                    }
                }
            }
        if name == "CreateRunFiles":
            files = [
                {"name": f, "uploadUrl": f"{state.address}/upload/run/{v['run']}/{f}"}
                for f in v["files"]
            ]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        if name == "MarkRunFilesUploaded":
            return {"markRunFilesUploaded": {"success": True}}
        if name == "ProjectInternalId":
            found = {"id": "p", "internalId": "42"} if v["projectName"] in state.projects else None
            return {"project": found}
        if name == "upsertView":
            project = {"id": "p", "name": v["projectName"], "entityName": v["entityName"]}
            view = {
                "id": "VmlldzoxMjM0",
                "type": v["type"],
                "name": v["name"],
                "displayName": v["displayName"],
                "description": v["description"],
                "project": project,
                "spec": v["spec"],
                "updatedAt": "2026-11-21T00:00:00",
                "createdAt": "2026-11-21T00:00:00",
            }
            return {"upsertView": {"view": view, "inserted": True}}
        if name == "GetProjects":
            edges = [
                {
                    "node": {
                        "id": p,
                        "name": p,
                        "entityName": "team",
                        "createdAt": "2026-11-21T00:00:00",
                        "isBenchmark": False,
                        "user": None,
                    },
                    "cursor": p,
                }
                for p in sorted(state.projects)
            ]
            return {
                "models": {"edges": edges, "pageInfo": {"endCursor": None, "hasNextPage": False}}
            }
        return {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            said: dict[str, Any] = {}
            status = 401 if state.mood == "refuse" else 200
            if self.path.endswith("/graphql"):
                sent = json.loads(body)
                found = re.search(r"(?:query|mutation)\s+(\w+)", sent["query"])
                name, variables = found.group(1) if found else "", sent.get("variables") or {}
                state.calls.append((name, variables))
                if state.mood == "hang":
                    state.ended.wait(60)
                    return
                said = (
                    {"data": answer(name, variables, sent["query"])}
                    if status == 200
                    else {"errors": [{"message": "not logged in"}]}
                )
            elif self.path.startswith("/upload/"):
                state.uploads[self.path.removeprefix("/upload/")] = body
            elif self.path.endswith("/file_stream"):
                state.streams.append((self.path.split("/")[-2], json.loads(body)))
            text = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = handle_any

        def log_message(self, *_: object) -> None:
            return None

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exc_info()[1], OSError):  # a client that was ended mid-request
                super().handle_error(request, client_address)

    server = Quiet(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        state.ended.set()
        server.shutdown()
        server.server_close()
