"""A stand-in for W&B on loopback: answers the calls that a run that is online, `wandb sync` and a
Report make, and keeps what the client sent.

A real HTTP server, so the real client talks to it; its answers are in wandb_answers.yaml. Moods:
'good'; 'refuse' (401 to everything).
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.builders import loopback

#: Operation -> its answer.
ANSWERS = yaml.safe_load(Path(__file__).with_name("wandb_answers.yaml").read_text("utf-8"))
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

    def of(self, name: str) -> list[dict[str, Any]]:
        return [variables for called, variables in self.calls if called == name]


def _filled(answer: Any, names: dict[str, Any]) -> Any:
    """An answer with the values of its $names."""
    if isinstance(answer, dict):
        return {key: _filled(value, names) for key, value in answer.items()}
    if isinstance(answer, str) and answer.startswith("$"):
        return names.get(answer[1:])
    return answer


def _artifact_file(address: str, file: dict[str, Any]) -> dict[str, Any]:
    name, artifact = file["name"], file["artifactID"]
    node = dict.fromkeys(("id", "name", "displayName", "storagePath"), name)
    url = f"{address}/upload/artifact/{artifact}/{name}"
    upload = {"uploadHeaders": [], "uploadUrl": url, "uploadMultipartUrls": None}
    return {"node": {**node, **upload, "artifact": {"id": artifact}}}


def _project(name: str) -> dict[str, Any]:
    about = {"entityName": "team", "createdAt": "2026-11-21T00:00:00"}
    node = {"id": name, "name": name, **about, "isBenchmark": False, "user": None}
    return {"node": node, "cursor": name}


@contextmanager
def wandb_server(mood: str = "good") -> Iterator[Server]:
    state = Server(mood=mood)
    artifacts: dict[str, dict[str, Any]] = {}  # digest -> state, collection, type

    def answer(operation: str, variables: dict[str, Any]) -> Any:
        names = variables | variables.get("input", {})
        if operation == "UpsertBucket":
            state.projects.add(names.get("project") or "")
        digest = names.get("digest") or names.get("artifactID") or names.get("id")
        if operation == "CreateArtifact":
            [collection, *_] = names.get("artifactCollectionNames") or [
                names.get("artifactCollectionName")
            ]
            about = {"collection": collection, "type": names["artifactTypeName"]}
            artifacts.setdefault(digest, {"state": "PENDING", **about})
        if operation == "CommitArtifact":
            artifacts[digest]["state"] = "COMMITTED"
        known = {"id": "p", "internalId": "42"}
        names = artifacts.get(digest, {}) | names | {"digest": digest}
        names |= {"entity": names.get("entity") or "team"}
        names |= {"manifest": f"{state.address}/upload/manifest/{digest}"}
        names |= {"internal": known if names.get("projectName") in state.projects else None}
        names |= {
            "artifact_files": [
                _artifact_file(state.address, file) for file in names["artifactFiles"]
            ]
            if operation == "CreateArtifactFiles"
            else [],
            "run_files": [
                {"name": file, "uploadUrl": f"{state.address}/upload/run/{names['run']}/{file}"}
                for file in (names["files"] if operation == "CreateRunFiles" else ())
            ],
            "project_edges": [_project(name) for name in sorted(state.projects)],
        }
        return _filled(ANSWERS.get(operation, {}), names)

    class Handler(loopback.Handler):
        def handle_any(self) -> None:
            body = self.body()
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            said: dict[str, Any] = {}
            status = 401 if state.mood == "refuse" else 200
            if self.path.endswith("/graphql"):
                sent = json.loads(body)
                found = re.search(r"(?:query|mutation)\s+(\w+)", sent["query"])
                name, variables = found.group(1) if found else "", sent.get("variables") or {}
                state.calls.append((name, variables))
                said = (
                    {"data": answer(name, variables)}
                    if status == 200
                    else {"errors": [{"message": "not logged in"}]}
                )
            elif self.path.startswith("/upload/"):
                state.uploads[self.path.removeprefix("/upload/")] = body
            elif self.path.endswith("/file_stream"):
                state.streams.append((self.path.split("/")[-2], json.loads(body)))
            self.reply_json(said, status)

        do_GET = do_POST = do_PUT = handle_any

    with loopback.serving(Handler) as state.address:
        yield state
