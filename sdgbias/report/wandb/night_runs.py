"""Writes the W&B runs of one night in a separate process, so that a failure of W&B costs the night
one line of text at most."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdgbias.errors import SdgbiasError, StoreError, one_of
from sdgbias.report.wandb import sync

#: After this many consecutive timeouts the remaining runs are skipped.
HANGS = 2


@dataclass(frozen=True)
class Logged:
    """The result for one run: its folder, or the reason for its absence (``failed``), or neither if
    it was sent before."""

    run_id: str
    folder: Path | None = None
    failed: str = ""


def newest_night(results: Path) -> str:
    """The newest night in which a model has a run; '' if there is none yet."""
    from sdgbias import store

    found = store.query(results, "SELECT max(night) AS night FROM night_models WHERE run_id <> ''")[
        "night"
    ]
    return "" if found.isna().all() else str(found.iloc[0])


def runs_of(
    results: Path, night: str | None, run_ids: Sequence[str] = ()
) -> tuple[str, list[dict[str, Any]]]:
    """(night, rows with run_id, outcome and figures of the night) to log: those of ``night`` (None:
    the newest), only ``run_ids`` if any are given. For a results file without nights: the newest
    run of every model (about people: on every benchmark), night ''.

    Raises StoreError for an unknown night or run.
    """
    from sdgbias import store, suites

    chosen = newest_night(results) if night is None else night
    columns = "run_id, outcome, attempts, seconds, scored, planned, failed"
    sql = (
        f"SELECT {columns} FROM night_models WHERE night = ? AND run_id <> '' ORDER BY model, suite"
    )
    rows: list[dict[str, Any]] = []
    if chosen:
        rows = [
            {str(k): v for k, v in r.items()}
            for r in store.query(results, sql, [chosen]).to_dict("records")
        ]
        if not rows:  # no model has a run that night, or the night is unknown
            known = set(
                map(
                    str,
                    store.query(
                        results, "SELECT night FROM nights UNION SELECT night FROM night_models"
                    )["night"],
                )
            )
            if chosen not in known:
                raise StoreError(f"{results}: {one_of('night', chosen, known)}")
    else:
        rows = [{"run_id": run} for run in suites.newest_runs(results)]
    if run_ids:
        mine = {str(r["run_id"]): r for r in rows}
        known_runs = store.run_ids(results)
        for run in run_ids:
            if run not in known_runs:
                raise StoreError(f"{results}: {one_of('run', run, known_runs)}")
        rows = [mine.get(run, {"run_id": run}) for run in run_ids]
    return chosen, rows


def log_night(
    results: Path,
    folder: Path,
    *,
    night: str | None = None,
    run_ids: Sequence[str] = (),
    timeout: float = 120.0,
    again: bool = False,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[Logged]:
    """Write one offline W&B run per model of a night below ``folder``; at most ``timeout`` seconds
    each.

    A run that was sent before is skipped (unless ``again``). A model that did not change that night
    gets a small run once an earlier run holds its tables and scores. Errors in W&B never raise:
    each is returned as ``Logged.failed``, one line each. Raises StoreError for a night, a run or a
    results file that can't be read.
    """
    with _Child(folder) as child:  # it imports W&B while the results are read
        chosen, rows = runs_of(results, night, run_ids)
        jobs, done = _jobs(folder, chosen, rows, again)
        request = {
            "results": str(Path(results).resolve()),
            "out": str(Path(folder).resolve()),
            "night": chosen,
        }
        return done + _all(child, request, jobs, timeout, lambda n: progress("W&B", n, len(jobs)))


def _jobs(
    folder: Path, night: str, rows: list[dict[str, Any]], again: bool
) -> tuple[list[dict[str, Any]], list[Logged]]:
    """(runs to write, runs that were sent before)."""
    from sdgbias.report.wandb.contents import wandb_id

    sent, full = sync.sent_ids(folder), sync.logged_in_full(folder)
    jobs, done = [], []
    for row in rows:
        run_id = str(row["run_id"])
        if not again and wandb_id(run_id, night) in sent:
            done.append(Logged(run_id))
            continue
        plain = {
            k: v.item() if hasattr(v, "item") else v
            for k, v in row.items()
            if k != "run_id" and v is not None and v == v
        }
        jobs.append(
            {
                "run_id": run_id,
                "small": row.get("outcome") == "unchanged" and run_id in full,
                "outcome": plain,
            }
        )
    return jobs, done


def _all(
    child: _Child,
    request: dict[str, Any],
    jobs: list[dict[str, Any]],
    timeout: float,
    progress: Callable[[int], None],
) -> list[Logged]:
    made: list[Logged] = []
    hung = 0
    while len(made) < len(jobs):
        rest = jobs[len(made) :]
        if hung >= HANGS:
            return made + [
                Logged(
                    j["run_id"],
                    failed=f"not tried: W&B took longer than {timeout:g} s {HANGS} times in a row",
                )
                for j in rest
            ]
        if made:
            child.end()
            child.start()
        child.ask(request | {"jobs": rest})
        for job in rest:
            answer = child.answer(timeout)
            hung = hung + 1 if answer is None else 0
            if answer is None:
                made.append(
                    Logged(job["run_id"], failed=f"W&B took longer than {timeout:g} s; ended")
                )
            elif "folder" in answer:
                made.append(Logged(job["run_id"], Path(answer["folder"])))
            else:
                made.append(Logged(job["run_id"], failed=str(answer["error"])))
            progress(len(made))
            if answer is None or answer.get("dead"):
                break  # the rest goes to a new process
    return made


class _Child:
    """``python -m sdgbias.report.wandb.night_runs``; killed with its whole process group when
    the block exits."""

    def __init__(self, folder: Path) -> None:
        self.environment = {
            **os.environ,
            "WANDB_MODE": "offline",
            **sync.folders(Path(folder).resolve()),
        }

    def __enter__(self) -> _Child:
        self.start()
        return self

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sdgbias.report.wandb.night_runs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env=self.environment,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=(self.process, self.lines), daemon=True).start()

    def ask(self, request: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # the process has already ended: `answer` will report it
            self.process.stdin.write(json.dumps(request))
            self.process.stdin.close()

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put("")

    def answer(self, timeout: float) -> dict[str, Any] | None:
        """The next answer; None on timeout."""
        try:
            line = self.lines.get(timeout=timeout)
        except queue.Empty:
            return None
        if not line:
            return {
                "error": f"W&B's process ended with exit code {self.process.wait()}",
                "dead": True,
            }
        found: dict[str, Any] = json.loads(line)
        return found

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def main() -> None:
    """The child process: reads {results, out, night, jobs} as JSON from standard input and writes
    one line of JSON per job to standard output, nothing else."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output printed by libraries must not mix with the answers
    from sdgbias.report.wandb import log

    with suppress(Exception):  # every run reports its own failure
        import wandb  # noqa: F401
    asked = json.loads(sys.stdin.read())
    results, folder, night = Path(asked["results"]), Path(asked["out"]), str(asked["night"])
    small = [job["run_id"] for job in asked["jobs"] if job["small"]]
    found: dict[str, log.StoredRun] = {}
    with log.service(folder):
        for job in asked["jobs"]:
            try:
                if job["run_id"] not in found:
                    found = log.read(
                        results, small if job["small"] else [job["run_id"]], night, job["small"]
                    )
                written = log.write(
                    results, found, job["run_id"], folder, night, job["small"], job["outcome"]
                )
                said = {"folder": str(written)}
            except SdgbiasError as error:
                said = {"error": str(error)}
            except (
                Exception
            ) as error:  # W&B may raise anything; an error here must only cost this run
                said = {
                    "error": (
                        f"{type(error).__name__}:"
                        f" {(str(error).strip().splitlines() or ['no message'])[0]}"
                    )
                }
            print(json.dumps(said), file=out)


if __name__ == "__main__":
    main()
