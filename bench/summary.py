"""The summary table of docs/reference/benchmarks.md, from bench/summary.json.

    python bench/summary.py

A benchmark puts its headlines there with ``record``, each beside its named alternative of the same
run and with the load of the machine; this script writes the table and prints it.
"""

from __future__ import annotations

import json
from pathlib import Path

ROWS = Path(__file__).with_name("summary.json")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "benchmarks.md"
BEGIN, END = "<!-- summary -->\n", "<!-- end of the summary -->\n"
COLUMNS = ("what", "figure", "aim", "beside it, in the same run", "load", "script")


def record(script: str, rows: list[dict[str, str]]) -> None:
    """Replace a script's rows; ``rows`` have the columns of COLUMNS except script."""
    known = json.loads(ROWS.read_text(encoding="utf-8")) if ROWS.is_file() else []
    kept = [row for row in known if row["script"] != script]
    rows = kept + [{**row, "script": script} for row in rows]
    text = json.dumps(sorted(rows, key=lambda row: row["script"]), indent=1, ensure_ascii=False)
    ROWS.write_text(text + "\n", encoding="utf-8")


def table() -> str:
    rows = json.loads(ROWS.read_text(encoding="utf-8"))
    lines = [[row[column] for column in COLUMNS] for row in rows]
    return "".join(
        f"| {' | '.join(line)} |\n" for line in [COLUMNS, ["---"] * len(COLUMNS), *lines]
    )


def page(text: str) -> str:
    """The page with its summary as it is now."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(table(), end="")


if __name__ == "__main__":
    main()
