"""Data of the night pages: the last night, one by name, all of them, and the one in progress."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

from sdgbias.analysis import night_text
from sdgbias.errors import InputError, RegistryError
from sdgbias.files import confine
from sdgbias.registry import entries
from sdgbias.report import labels
from sdgbias.report.web.source import Reader, Row

PAGE = 50
#: Verdict rows shown on a night's page; the worst come first.
VERDICTS = 40
#: Bytes read from the end of a job's log for its last line.
TAIL = 4096
STEPS = ("analyse", "gate", "report", "wandb", "announce")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ORDER = {"failed": 0, "skipped": 1, "published": 2, "unchanged": 3}


def newest(reader: Reader, finished: bool = False) -> str | None:
    """Name of the newest night (of the newest that is no longer running); None without one."""
    where = "WHERE status IS DISTINCT FROM 'running'" if finished else ""
    found = reader.one(
        f"SELECT night FROM nights {where} ORDER BY started_at DESC NULLS LAST, night DESC LIMIT 1"
    )
    return None if found is None else str(found["night"])


def night(reader: Reader, name: str) -> dict[str, Any] | None:
    """All data of one night: row, models, counts, verdicts other than pass, flips and
    announcements; None for an unknown night."""
    row = reader.one("SELECT * FROM nights WHERE night = ?", [name])
    if row is None:
        return None
    counts = _verdicts(reader, name)
    models = [
        m
        | {
            "verdicts": (v := counts.get((m["model"], m["suite"]), {})),
            "verdict": labels.worst(v),
            "planted": m["provenance"] == "planted",
        }
        for m in reader.ask(
            """SELECT nm.*, r.provenance FROM night_models nm LEFT JOIN runs r ON r.run_id =
               nm.run_id
               WHERE nm.night = ? ORDER BY nm.model, nm.suite""",
            [name],
        )
    ]
    models.sort(
        key=lambda m: (
            m["verdict"] != "BREACH",
            _ORDER.get(m["outcome"], 0),
            m["model"],
            m["suite"],
        )
    )
    outcomes = {
        o: sum(m["outcome"] == o for m in models)
        for o in ("published", "unchanged", "failed", "skipped")
    }
    breaches = sum(v.get("BREACH", 0) for v in counts.values())
    return {
        "row": row,
        "models": models,
        "outcomes": outcomes,
        "breaches": breaches,
        "headline": _headline(outcomes, counts, row["status"]),
        "steps": _steps(row),
        "benchmarks": labels.parsed(row["benchmarks"]),
        "seconds": _seconds(row),
        "judged": [
            j
            | {
                "verdict_name": labels.VERDICTS.get(j["verdict"], j["verdict"]),
                "floor": night_text.floor(j),
                "note": night_text.note(j),
            }
            for j in reader.ask(
                f"""SELECT * FROM verdicts WHERE night = ? AND verdict NOT IN ('PASS', 'FIRST_RUN')
                ORDER BY verdict != 'BREACH', verdict != 'MISSING', model, suite, rule, task, test,
                method LIMIT {VERDICTS + 1}""",
                [name],
            )
        ],
        "flips": reader.ask(
            """SELECT model, suite, run_id, baseline, count(*) AS n, count(*) FILTER (better) AS
               better FROM flips WHERE night = ?
               GROUP BY ALL ORDER BY model, suite, run_id""",
            [name],
        ),
        "accepted": {
            a["run_id"]: a
            for a in reader.ask(
                "SELECT a.* FROM accepted a SEMI JOIN night_models nm ON nm.run_id = a.run_id AND"
                " nm.night = ?",
                [name],
            )
        },
        "announcements": reader.ask(
            "SELECT * FROM announcements WHERE night = ? ORDER BY target", [name]
        ),
    }


def _verdicts(reader: Reader, name: str) -> dict[tuple[str, str], dict[str, int]]:
    found: dict[tuple[str, str], dict[str, int]] = {}
    for r in reader.ask(
        "SELECT model, suite, verdict, count(*) AS n FROM verdicts WHERE night = ? GROUP BY ALL",
        [name],
    ):
        found.setdefault((r["model"], r["suite"]), {})[r["verdict"]] = r["n"]
    return found


def _headline(
    outcomes: dict[str, int], counts: dict[tuple[str, str], dict[str, int]], status: str
) -> tuple[str, str]:
    """(tone, sentence): the night in one sentence; problems that need action come first."""
    breached = sorted({model for (model, _), v in counts.items() if v.get("BREACH")})
    if breached:
        many = f"{len(breached)} models breach" if len(breached) > 1 else f"{breached[0]} breaches"
        rules = sum(v.get("BREACH", 0) for v in counts.values())
        failed = f" {_models(outcomes['failed'])} failed." if outcomes["failed"] else ""
        return "bad", f"{many} the policy ({rules} rule{'s' if rules > 1 else ''}).{failed}"
    if outcomes["failed"]:
        return "warn", f"{outcomes['failed']} of {_models(sum(outcomes.values()))} failed."
    if status in ("failed", "interrupted"):
        return (
            "warn",
            f"The night was {'interrupted' if status == 'interrupted' else 'not finished'}.",
        )
    if status == "running":
        return "plain", "Still running."
    if not counts:
        return "good", "Every model was evaluated. The gate judged none."
    first = sum(bool(v.get("FIRST_RUN")) for v in counts.values())
    yet = " First run: nothing to compare with yet." if first == len(counts) else ""
    return "good", f"No action is needed.{yet}"


def _models(n: int) -> str:
    return f"{n} model{'' if n == 1 else 's'}"


def _steps(row: Row) -> dict[str, tuple[str, str]]:
    """State and sentence of each step after scoring, in execution order."""
    found, states = labels.parsed(row["steps"]), labels.parsed(row["step_states"])
    return {
        name: (str(states.get(name, "")), str(found[name]))
        for name in sorted(found, key=lambda s: (STEPS.index(s) if s in STEPS else len(STEPS), s))
    }


def _seconds(row: Row) -> float | None:
    began, ended = row["started_at"], row["finished_at"]
    return (ended - began).total_seconds() if began and ended else None


def listing(reader: Reader, page: int) -> dict[str, Any]:
    """Nights, newest first, PAGE at a time, with counts of outcomes and breaches."""
    total = reader.ask("SELECT count(*) AS n FROM nights")[0]["n"]
    rows = reader.ask(
        f"""WITH chosen AS (SELECT * FROM nights ORDER BY started_at DESC NULLS LAST, night DESC
            LIMIT {PAGE} OFFSET ?)
            SELECT c.night, c.status, c.started_at, c.finished_at, c."by", count(nm.model) AS
            models,
                   count(*) FILTER (outcome = 'published') AS published, count(*) FILTER (outcome =
                   'unchanged') AS unchanged,
                   count(*) FILTER (outcome = 'failed') AS failed, count(*) FILTER (outcome =
                   'skipped') AS skipped,
                   coalesce(any_value(v.n), 0) AS breaches
            FROM chosen c LEFT JOIN night_models nm USING (night)
            LEFT JOIN (SELECT night, count(*) AS n FROM verdicts WHERE verdict = 'BREACH' GROUP BY
            night) v USING (night)
            GROUP BY ALL ORDER BY c.started_at DESC NULLS LAST, c.night DESC""",
        [(page - 1) * PAGE],
    )
    return {
        "rows": [r | {"seconds": _seconds(r)} for r in rows],
        "total": total,
        "page": page,
        "pages": max(1, -(-total // PAGE)),
    }


def running(reader: Reader, now: datetime) -> dict[str, Any] | None:
    """The newest night while it runs: jobs (a model on a suite) done and planned, and the state of
    their logs; None if nothing runs.

    ``now``: UTC. Planned jobs come from the entries copied for the night; done jobs include those
    that are in the night's outcome file but not in the results yet.
    """
    row = reader.one("SELECT * FROM nights ORDER BY started_at DESC NULLS LAST, night DESC LIMIT 1")
    if row is None or row["status"] != "running":
        return None
    name = str(row["night"])
    asked = reader.ask(
        "SELECT model, suite FROM night_models WHERE night = ? ORDER BY model, suite", [name]
    )
    folder = _folder(reader.results.path.parent, name)
    done = {(r["model"], r["suite"]) for r in asked} | (_kept(folder) if folder else set())
    planned = _planned(folder) if folder else set()
    began = row["started_at"]
    return {
        "night": name,
        "started_at": began,
        "seconds": (now.replace(tzinfo=None) - began).total_seconds() if began else None,
        "done": len(done),
        "planned": len(planned | done) if planned else 0,
        "logs": _logs(folder, now) if folder else [],
    }


def _folder(home: Path, name: str) -> Path | None:
    """The night's folder beside the results; None if it doesn't exist or its name leads
    elsewhere."""
    try:
        folder = confine(home, f"nights/{name}")
    except InputError:
        return None
    return folder if folder.is_dir() else None


def _planned(folder: Path) -> set[tuple[str, str]]:
    """(model, suite) of every entry copied for the night; an unreadable entry counts for the
    default suites."""
    found = set()
    for path in sorted((folder / "registry").glob("*.yaml")):
        try:
            asked = entries.suites(entries.read(path))
        except RegistryError:
            asked = entries.DEFAULT_SUITES
        found |= {(path.stem, suite) for suite in asked}
    return found


def _kept(folder: Path) -> set[tuple[str, str]]:
    """(model, suite) of the outcomes in the night's outcome file."""
    try:
        lines = (
            (folder / "outcomes.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
        )
    except OSError:
        return set()
    rows = [labels.parsed(line) for line in lines]
    return {(str(r["model"]), str(r.get("suite", ""))) for r in rows if "model" in r}


def _logs(folder: Path, now: datetime) -> list[dict[str, Any]]:
    """Name, size, seconds since the last write and last line of each log of a night, most recently
    written first."""
    found = []
    for path in sorted(folder.rglob("*.log"))[:200]:
        try:
            if not path.resolve().is_relative_to(folder.resolve()):
                continue
            stat = path.stat()
            with path.open("rb") as file:
                file.seek(max(0, stat.st_size - TAIL))
                text = file.read(TAIL).decode("utf-8", "replace")
        except OSError:
            continue
        lines = [
            line.strip() for line in re.split(r"[\r\n]+", _COLOURS.sub("", text)) if line.strip()
        ]
        quiet = max(0.0, now.timestamp() - stat.st_mtime)
        found.append(
            {
                "name": path.relative_to(folder).as_posix(),
                "size": stat.st_size,
                "quiet": quiet,
                "last": lines[-1][:160] if lines else "",
            }
        )
    return sorted(found, key=lambda log: (log["quiet"], log["name"]))[:24]
