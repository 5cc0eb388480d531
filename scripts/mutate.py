"""Break one line of the package at a time and see whether a test notices.

A mutant replaces one piece of text in one file. It is applied to a scratch copy of the tracked and
untracked files (never to the working tree), its tests run there for at most four times as long as
without it, and the verdict is printed: killed (a test failed), survived (all passed), timeout, or
invalid (pytest could not run the tests, or they fail without the mutant too).

    python scripts/mutate.py run [ID ...] [--file sdgbias/suites/sdg.py] [--record]

`run` takes its mutants from scripts/mutants.yaml: id, file, old (occurs exactly once in the file),
new, tests, verdict (of the last recorded run) and, for a mutant that changes no result, equivalent:
why. `--record` writes the verdicts back.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

KILLED, SURVIVED, TIMEOUT, INVALID = "killed", "survived", "timeout", "invalid"
TABLE = Path("scripts/mutants.yaml")


@dataclass(frozen=True)
class Mutant:
    """old: text of ``file`` that ``new`` replaces, and that occurs there once."""

    id: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, text: str) -> str:
        """Raises ValueError where ``old`` isn't found exactly once."""
        if text.count(self.old) != 1:
            count = text.count(self.old)
            raise ValueError(f"{self.id}: {self.old!r} occurs {count} times in {self.file}")
        return text.replace(self.old, self.new)


class Scratch:
    """A copy of the tree, in which one file at a time differs from the original."""

    def __init__(self, root: Path, folder: Path, limit: float) -> None:
        self.folder, self.limit = folder, limit
        self.clean: dict[tuple[str, ...], tuple[str, float]] = {}
        # A .pyc is keyed by the whole seconds and the size of its source: each write gets a second
        # of its own, or the code of the mutant before would run.
        self.stamp = int(time.time())
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, capture_output=True, check=True)
        for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)

    def write(self, file: str, text: str) -> None:
        self.stamp += 1
        (self.folder / file).write_text(text, encoding="utf-8")
        os.utime(self.folder / file, (self.stamp, self.stamp))

    def python(self, limit: float, *args: str) -> tuple[int | None, str]:
        """(exit status, stdout) of Python in the copy; None after the time limit."""
        process = subprocess.Popen(
            [sys.executable, *args],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # a timeout ends what the tests started, too
        )
        try:
            out, _ = process.communicate(timeout=limit)
            return process.returncode, out
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""

    def test(self, tests: Sequence[str], limit: float) -> tuple[str, str]:
        """(verdict, the test that failed)."""
        flags = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")
        code, out = self.python(limit, *flags, *tests)
        failed = next((x for x in out.splitlines() if x.startswith(("FAILED", "ERROR"))), "")
        return {None: TIMEOUT, 0: SURVIVED, 1: KILLED}.get(code, INVALID), failed

    def judge(self, mutant: Mutant) -> tuple[str, str]:
        original = (self.folder / mutant.file).read_text(encoding="utf-8")
        try:
            changed = mutant.apply(original)
        except ValueError as error:
            return INVALID, str(error)
        if mutant.tests not in self.clean:
            begun = time.monotonic()
            alone = self.test(mutant.tests, self.limit)[0]
            self.clean[mutant.tests] = alone, time.monotonic() - begun
        alone, seconds = self.clean[mutant.tests]
        if alone != SURVIVED:
            return INVALID, f"{alone} without the mutant"
        self.write(mutant.file, changed)
        verdict = self.test(mutant.tests, min(self.limit, 10 + 4 * seconds))
        self.write(mutant.file, original)
        return verdict


def record(root: Path, verdicts: dict[str, str]) -> None:
    """Writes verdicts into the table, whose comment lines at the top stay."""
    text = (root / TABLE).read_text(encoding="utf-8")
    rows = [{**r, "verdict": verdicts.get(r["id"], r.get("verdict"))} for r in yaml.safe_load(text)]
    head = "".join(x for x in text.splitlines(keepends=True) if x.startswith("#"))
    body = yaml.safe_dump(rows, sort_keys=False, allow_unicode=True, width=10_000)
    (root / TABLE).write_text(head + body, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="the mutants of scripts/mutants.yaml")
    run.add_argument("ids", nargs="*")
    run.add_argument("--file", action="append", default=[], help="only mutants of this file")
    run.add_argument("--record", action="store_true", help="write the verdicts into the table")
    run.add_argument("--limit", type=float, default=300, help="most seconds of a test run")
    args = parser.parse_args(argv)
    root = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        Path(name).chmod(0o755)  # tests that go on as another user read the code there
        scratch = Scratch(root, Path(name).resolve(), args.limit)
        mutants = [
            Mutant(r["id"], r["file"], r["old"], r["new"], tuple(r["tests"]))
            for r in yaml.safe_load((root / TABLE).read_text(encoding="utf-8"))
            if (not args.ids or r["id"] in args.ids) and (not args.file or r["file"] in args.file)
        ]
        verdicts: dict[str, str] = {}
        for mutant in mutants:
            shown = f"{mutant.id:<28} {mutant.old!r} -> {mutant.new!r}"
            verdict, why = scratch.judge(mutant)
            print(f"{verdict:<9} {shown}  {why}", flush=True)
            verdicts[mutant.id] = verdict
        if args.record:
            record(root, verdicts)
    outcomes = list(verdicts.values())
    print(", ".join(f"{outcomes.count(v)} {v}" for v in (KILLED, SURVIVED, TIMEOUT, INVALID)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
