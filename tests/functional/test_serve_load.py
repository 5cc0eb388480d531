"""`sdgbias serve` under more connections at once than it has threads: they wait, none is
refused."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from sdgbias import store
from tests.builders.commands import REPOSITORY, environment
from tests.builders.store_rows import run, tables


async def ask(port: int, times: int, told: Counter[int]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(times):
        writer.write(b"GET /models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        told[int(head.split()[1])] += 1
        length = re.search(rb"(?i)content-length: (\d+)", head)
        assert length, head
        await reader.readexactly(int(length[1]))
    writer.close()


async def ask_together(port: int, connections: int, times: int) -> Counter[int]:
    told: Counter[int] = Counter()
    await asyncio.gather(*(ask(port, times, told) for _ in range(connections)))
    return told


def test_250_connections_at_once_are_all_answered(tmp_path: Path) -> None:
    results = tmp_path / "r.duckdb"
    store.publish(results, run(), tables())
    server = subprocess.Popen(
        [sys.executable, "-m", "sdgbias.cli", "serve", "--results", str(results), "--port", "0"],
        cwd=REPOSITORY,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)", server.stdout.readline())
        assert found
        told = asyncio.run(ask_together(int(found[1]), 250, 2))
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=600)
    assert told == {200: 500}
