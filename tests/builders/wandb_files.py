"""What an offline W&B run says, read back from its file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Offline:
    """``artifacts``: name -> type, used (input or output), digest, files (path -> digest, size or
    reference), metadata, aliases."""

    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: dict[str, Any] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    artifacts: dict[str, dict[str, Any]] = field(default_factory=dict)
    run: dict[str, str] = field(default_factory=dict)

    def table(self, folder: Path, name: str) -> tuple[list[str], list[list[Any]]]:
        [path] = folder.glob(f"files/media/table/{name}_*.json")
        found = json.loads(path.read_text())
        return found["columns"], found["data"]


def records(log: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: a 7-byte header, then a LevelDB log (32 KiB blocks; chunks of
    crc 4, length 2, type 1)."""
    assert log[:4] == b":W&B"
    at, parts = 7, b""
    while at + 7 <= len(log):
        left = 32768 - at % 32768
        if left < 7:  # a block's end too short for a header is padding
            at += left
            continue
        size, kind = int.from_bytes(log[at + 4 : at + 6], "little"), log[at + 6]
        parts += log[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # full, last (2 and 3: first, middle)
            yield parts
            parts = b""


def read(folder: Path) -> Offline:
    from wandb.proto import wandb_internal_pb2

    [log] = folder.glob("run-*.wandb")
    said = Offline()

    def name(item: Any) -> str:
        return "/".join([item.key, *item.nested_key]).strip("/")

    for raw in records(log.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(raw)
        if record.HasField("run"):
            said.run = {
                "id": record.run.run_id,
                "project": record.run.project,
                "group": record.run.run_group,
                "job_type": record.run.job_type,
                "name": record.run.display_name,
                "tags": ",".join(record.run.tags),
            }
        for update in (*record.run.config.update, *record.config.update):
            said.config[name(update)] = json.loads(update.value_json)
        for update in record.summary.update:
            said.summary[name(update)] = json.loads(update.value_json)
        if record.HasField("history"):
            said.steps.append(record.history.step.num)
            said.history |= {
                name(item): json.loads(item.value_json) for item in record.history.item
            }
        if record.HasField("artifact"):
            a = record.artifact
            files = {
                e.path: {"digest": e.digest, "ref": e.ref, "size": e.size, "at": e.local_path}
                for e in a.manifest.contents
            }
            said.artifacts[a.name] = {
                "type": a.type,
                "used": a.use_after_commit,
                "digest": a.digest,
                "files": files,
                "metadata": json.loads(a.metadata or "{}"),
                "aliases": list(a.aliases),
            }
    return said
