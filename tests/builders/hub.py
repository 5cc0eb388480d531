"""A hub on loopback: a real HTTP server that answers what huggingface_hub asks of one, from a
description of repositories.

    with Hub({"demo/tiny": Repo([commit({"config.json": {...}, "model.safetensors":
    weights(2_000_000)})])}) as hub:
        hub.into(monkeypatch)            # this process and those it starts ask it instead of the
        real one

It speaks api/models (with author, pipeline_tag, apps, num_parameters, sort, limit, Link paging),
api/models/ID[/revision/REV], api/models/ID/tree/REV and ID/resolve/REV/FILE (with Range), the same
below api/datasets and datasets/, gives the hashes that the real one gives (of git, and sha256 of
large files), refuses as it does (X-Error-Code; 401, 403, 404), and can be slow. Repositories may be
changed while it runs: a push appends a commit, a forced push replaces the list.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from tests.builders import loopback

PAGE = 2  # repositories a page of a listing, so that paging is used
LARGE = (".safetensors", ".bin")  # kept as large files, hashed with sha256


@dataclass
class Commit:
    sha: str
    files: dict[str, bytes]


@dataclass
class Repo:
    """commits: oldest first, the last one is `main`. params: what the hub says of its safetensors;
    None: nothing. hidden: not shown to anybody without access. broken: the status that every
    question about it gets. apps: what it is listed for; trend: its trending score. now: the name
    that it got later."""

    commits: list[Commit]
    pipeline: str = "image-text-to-text"
    licence: str | list[str] = "apache-2.0"
    created: str = "2026-06-01T00:00:00.000Z"
    params: int | None = None
    gated: bool = False
    hidden: bool = False
    broken: int = 0
    apps: tuple[str, ...] = ("vllm",)
    trend: int = 0
    now: str = ""


def commit(files: Mapping[str, bytes | dict[str, Any]], name: str = "") -> Commit:
    """A commit whose sha follows from its files (and `name`, for two of the same files)."""
    raw = {
        file: body if isinstance(body, bytes) else json.dumps(body).encode()
        for file, body in files.items()
    }
    digest = hashlib.sha1(name.encode())
    for file in sorted(raw):
        digest.update(file.encode() + raw[file])
    return Commit(digest.hexdigest(), raw)


def folder(path: Path, *without: str) -> dict[str, bytes | dict[str, Any]]:
    """The files of a model's or a dataset's folder."""
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in sorted(path.rglob("*"))
        if p.is_file() and p.name not in without
    }


def weights(parameters: int) -> bytes:
    """The header of a safetensors file of so many parameters, without them."""
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [parameters], "data_offsets": [0, 0]}}
    ).encode()
    return struct.pack("<Q", len(header)) + header


@dataclass
class Hub:
    """tokens: token -> 'member' (has access to everything), 'stranger' (to what is open) or
    'expired'. asked: every path that was asked for; ranges: parts of a path that were asked for.
    host: where the pages of a listing go on, None: here. slow: seconds that it waits before each
    answer. cut: file -> bytes of it after which the connection breaks, once."""

    repos: dict[str, Repo]
    tokens: dict[str, str] = field(default_factory=dict)
    host: str | None = None
    slow: float = 0.0
    asked: list[str] = field(default_factory=list)
    cut: dict[str, int] = field(default_factory=dict)
    ranges: dict[str, list[str]] = field(default_factory=dict)

    def __enter__(self) -> Hub:
        self.server, self.url = loopback.start(_handler(self))
        return self

    def __exit__(self, *_: object) -> None:
        loopback.stop(self.server)

    def into(self, monkeypatch: Any, home: Path, token: str = "", seconds: int = 60) -> None:
        """This process's client, and the environment of those it starts, ask this hub; `home` takes
        the place of the client's cache."""
        from huggingface_hub import constants

        environment = {
            "HF_ENDPOINT": self.url,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(home),
            "HF_HUB_ETAG_TIMEOUT": str(seconds),
            "HF_TOKEN": token,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "TRANSFORMERS_OFFLINE": "0",
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        of_client = {
            "ENDPOINT": self.url,
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_HUB_ETAG_TIMEOUT": seconds,
            "HF_HUB_OFFLINE": False,
            "HF_TOKEN_PATH": str(home / "token"),
            "HUGGINGFACE_CO_URL_TEMPLATE": self.url + "/{repo_id}/resolve/{revision}/{filename}",
        }
        for name, setting in of_client.items():
            monkeypatch.setattr(constants, name, setting)


class _Refused(Exception):
    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        self.status, self.code, self.message = status, code, message


def _handler(hub: Hub) -> type[loopback.Handler]:
    class Handler(loopback.Handler):
        def do_GET(self) -> None:
            self.answer()

        def do_HEAD(self) -> None:
            self.answer()

        def answer(self) -> None:
            hub.asked.append(self.path)
            time.sleep(hub.slow)
            status = 200
            try:
                body, headers = _answer(hub, self.path, self.headers.get("Authorization", ""))
            except _Refused as refused:
                body, status = json.dumps({"error": refused.message}).encode(), refused.status
                headers = {"X-Error-Code": refused.code, "X-Error-Message": refused.message}
            part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if part and "ETag" in headers:
                hub.ranges.setdefault(self.path, []).append(self.headers["Range"])
                start, end = int(part[1]), int(part[2] or len(body) - 1)
                headers["Content-Range"] = f"bytes {start}-{min(end, len(body) - 1)}/{len(body)}"
                body, status = body[start : end + 1], 206
            headers = {"Content-Type": "application/json"} | {k: v for k, v in headers.items() if v}
            headers["Content-Length"] = str(len(body))
            shown = body if self.command == "GET" else b""
            broken_at = (
                hub.cut.pop(urlsplit(self.path).path.split("/")[-1], None) if shown else None
            )
            with suppress(ConnectionError):  # a client that waited no longer
                self.reply(status, shown[:broken_at], headers)
                if broken_at is not None:
                    self.wfile.flush()
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True

    return Handler


def _answer(hub: Hub, path: str, authorization: str) -> tuple[bytes, dict[str, str]]:
    """(body, headers) of one question. Raises _Refused."""
    url = urlsplit(path)
    parts, query = [unquote(part) for part in url.path.strip("/").split("/")], parse_qs(url.query)
    token = authorization.removeprefix("Bearer ").strip()
    who = hub.tokens.get(token, "expired") if token else "nobody"
    if who == "expired":
        raise _Refused(401, message="Invalid credentials in Authorization header")
    if parts == ["api", "models"]:
        return _listing(hub, query)
    if parts[:1] == ["datasets"]:  # a dataset's files stand below datasets/
        parts = parts[1:]
    is_api = parts[:2] in (["api", "models"], ["api", "datasets"])
    name = "/".join(parts[2:4] if is_api else parts[:2])
    repo = hub.repos.get(name)
    if repo is None or (repo.hidden and who != "member"):
        raise _Refused(401 if who == "nobody" else 404, "RepoNotFound", "Repository not found")
    if repo.broken:
        raise _Refused(repo.broken, message="broken")
    if parts[4:5] == ["tree"]:
        return json.dumps(_tree(_commit(repo, parts[5]), "/".join(parts[6:]))).encode(), {}
    if is_api:
        at = _commit(repo, parts[5] if parts[4:5] == ["revision"] else "main")
        return json.dumps(_info(name, repo, at, "blobs" in query)).encode(), {}
    at = _commit(repo, parts[3])
    if repo.gated and who != "member":
        raise _Refused(
            401 if who == "nobody" else 403, "GatedRepo", f"Access to model {name} is restricted"
        )
    file = "/".join(parts[4:])
    if file not in at.files:
        raise _Refused(404, "EntryNotFound", "Entry not found")
    body = at.files[file]
    large = _sha256(body) if file.endswith(LARGE) else ""
    return body, {
        "X-Repo-Commit": at.sha,
        "ETag": f'"{large or _digest(body)}"',
        "X-Linked-ETag": f'"{large}"' if large else "",
        "X-Linked-Size": str(len(body)) if large else "",
        "Accept-Ranges": "bytes",
        "Content-Type": "application/octet-stream",
    }


def _tree(at: Commit, folder: str) -> list[dict[str, Any]]:
    files = {
        k: body for k, body in at.files.items() if k.startswith(f"{folder}/" if folder else "")
    }
    if not files:
        raise _Refused(404, "EntryNotFound", "Entry not found")
    return [
        {"type": "file", "path": file, "size": len(body), "oid": _digest(body), **_lfs(file, body)}
        for file, body in files.items()
    ]


def _lfs(file: str, body: bytes) -> dict[str, Any]:
    """What is said of a large file, in addition."""
    if not file.endswith(LARGE):
        return {}
    digest = _sha256(body)
    return {"lfs": {"oid": digest, "sha256": digest, "size": len(body), "pointerSize": 134}}


def _commit(repo: Repo, revision: str) -> Commit:
    for one in repo.commits:
        if one.sha == revision:
            return one
    if revision == "main":
        return repo.commits[-1]
    raise _Refused(404, "RevisionNotFound", "Invalid rev id")


def _digest(body: bytes) -> str:
    return hashlib.sha1(f"blob {len(body)}\0".encode() + body).hexdigest()


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _info(name: str, repo: Repo, at: Commit, blobs: bool) -> dict[str, Any]:
    siblings: list[dict[str, Any]] = [{"rfilename": file} for file in at.files]
    for one in siblings if blobs else ():
        file, body = one["rfilename"], at.files[one["rfilename"]]
        one |= {"size": len(body), "blobId": _digest(body), **_lfs(file, body)}
    info = {
        "_id": "0",
        "id": repo.now or name,
        "modelId": name,
        "sha": at.sha,
        "private": repo.hidden,
        "gated": "manual" if repo.gated else False,
        "createdAt": repo.created,
        "pipeline_tag": repo.pipeline,
        "tags": [],
        "downloads": 0,
        "likes": 0,
        "trendingScore": repo.trend,
        "cardData": {"license": repo.licence},
        "siblings": siblings,
    }
    if repo.params is not None:
        info["safetensors"] = {"parameters": {"BF16": repo.params}, "total": repo.params}
        if repo.params == 0:
            info["safetensors"] = {"parameters": {}}
    return info


def _listing(hub: Hub, query: dict[str, list[str]]) -> tuple[bytes, dict[str, str]]:
    one = {name: values[0] for name, values in query.items()}
    author, pipeline = one.get("author", ""), one.get("pipeline_tag", "")
    low, high = _bounds(one.get("num_parameters", ""))
    named = [
        name
        for name, repo in sorted(hub.repos.items())
        if author in ("", name.split("/")[0])
        and pipeline in ("", repo.pipeline)
        and set(query.get("apps", ())) <= set(repo.apps)
        and ("num_parameters" not in one or low <= (repo.params or 0) <= high)
        and not repo.hidden
        and not repo.now
    ]
    orders = {
        "createdAt": lambda name: hub.repos[name].created,
        "trendingScore": lambda name: hub.repos[name].trend,
    }
    if one.get("sort") in orders:
        named.sort(key=orders[one["sort"]], reverse=True)
    start = int(one.get("cursor", "0"))
    rows = [
        _info(name, hub.repos[name], hub.repos[name].commits[-1], False)
        for name in named[start : start + PAGE]
    ]
    again = [(k, v) for k, values in query.items() for v in values if k != "cursor"]
    host = hub.url if hub.host is None else hub.host
    onward = f"{host}/api/models?{urlencode([*again, ('cursor', start + PAGE)])}"
    for row in rows:
        del row["siblings"]
    return json.dumps(rows).encode(), (
        {"Link": f'<{onward}>; rel="next"'} if start + PAGE < len(named) else {}
    )


def _bounds(text: str) -> tuple[float, float]:
    """The numbers of parameters of min:1B,max:40B."""
    given = dict(part.split(":") for part in text.split(",") if part)
    low, high = (given.get(name, "").removesuffix("B") for name in ("min", "max"))
    return float(low or 0) * 1e9, float(high or "inf") * 1e9
