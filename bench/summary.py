"""The summary table of docs/reference/benchmarks.md, from the files of bench/results.

    python -m bench.summary

A benchmark writes its headlines there with ``record``, each beside its named alternative of the
same run and with the load of the machine; this script writes the table and prints it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

ROWS = Path(__file__).with_name("results")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "benchmarks.md"
BEGIN, END = "<!-- summary -->\n", "<!-- end of the summary -->\n"


@dataclass(frozen=True)
class Row:
    """A headline. n: how many repetitions or units it rests on. beside: the alternative, measured
    in the same run. load: of the machine, by default now."""

    what: str
    n: str
    figure: str
    aim: str
    beside: str
    load: float = field(default_factory=lambda: os.getloadavg()[0])


TITLES = [*[f.name for f in fields(Row)][:-2], "beside it, in the same run", "load", "script"]


def record(script: str, rows: list[Row]) -> None:
    """Write a script's rows (``script``: its name without .py) in place of those about the same,
    then write and print the summary."""
    path = ROWS / f"{script}.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    merged = {row["what"]: row for row in [*stored, *map(asdict, rows)]}
    text = json.dumps(list(merged.values()), indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    main()


def table() -> str:
    lines = [TITLES, ["---"] * len(TITLES)]
    for path in sorted(ROWS.glob("*.json")):
        for row in (Row(**r) for r in json.loads(path.read_text(encoding="utf-8"))):
            lines.append([*map(str, list(asdict(row).values())[:-1]), f"{row.load:.1f}"])
            lines[-1].append(f"bench/{path.stem}.py")
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(text: str) -> str:
    """The page with its summary as it is now."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(table(), end="")


if __name__ == "__main__":
    main()
