"""Where the house stands: lines by room, the largest modules, and locals with empty names.

    python scripts/size.py [--largest 10]

Prints the Python modules and lines (docstrings, comments and blank lines included) of each
subpackage beside its budget, of data files, flows, bench, scripts and tests; then the largest
modules, and how many assigned names say nothing about what they hold. A guide: nothing fails by it.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sdgbias"
#: Lines that each room should have at most (CONTRIBUTING.md); "top": the modules of no room.
BUDGET = {
    **{"report": 4800, "analysis": 3700, "benchmark": 4300, "engines": 2700, "cli": 2300},
    **{"raw": 3300, "methods": 2200, "nightly": 2000, "suites": 2000, "scoring": 1400},
    **{"registry": 1300, "top": 1000, "store": 900},
}
OTHERS = {"flows": 350, "bench": 1500, "scripts": 1000, "tests": 24000}
DATA = {".yaml", ".yml", ".json", ".sql", ".j2", ".js", ".css", ".html", ".csv", ".toml"}
EMPTY_NAMES = ("found", "known", "told", "made", "said", "own", "asked", "mine", "there")


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def modules(folder: Path, *, deep: bool = True) -> list[Path]:
    return sorted(folder.rglob("*.py") if deep else folder.glob("*.py"))


def assigned_names(paths: Iterable[Path]) -> Iterator[str]:
    """Every name that is assigned, looped over or bound by `with`, once for each place."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def rooms() -> Iterator[tuple[str, list[Path], int]]:
    """Room, its modules, its budget."""
    for room, budget in BUDGET.items():
        top = room == "top"
        yield room, modules(PACKAGE if top else PACKAGE / room, deep=not top), budget


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--largest", type=int, default=10, metavar="N")
    args = parser.parse_args()
    print(f"{'room':<12}{'modules':>8}{'lines':>8}{'budget':>8}")
    total = [0, 0]
    for room, paths, budget in rooms():
        count = sum(map(lines, paths))
        total = [total[0] + len(paths), total[1] + count]
        print(f"{room:<12}{len(paths):>8}{count:>8,}{budget:>8,}")
    print(f"{'package':<12}{total[0]:>8}{total[1]:>8,}{sum(BUDGET.values()):>8,}")
    for room, budget in OTHERS.items():
        paths = modules(ROOT / room)
        print(f"{room:<12}{len(paths):>8}{sum(map(lines, paths)):>8,}{budget:>8,}")
    folders = (PACKAGE, ROOT / "expectations")
    data = [p for f in folders for p in f.rglob("*") if p.suffix in DATA and p.is_file()]
    print(f"{'data':<12}{len(data):>8}{sum(map(lines, data)):>8,}{6500:>8,}")
    print("\nLargest modules of the package")
    for path in sorted(modules(PACKAGE), key=lines, reverse=True)[: args.largest]:
        print(f"{lines(path):>6,}  {path.relative_to(ROOT)}")
    counts = Counter(assigned_names(modules(PACKAGE)))
    empty = ", ".join(f"{name} {counts[name]}" for name in EMPTY_NAMES)
    print(f"\nAssigned names that say nothing: {sum(counts[n] for n in EMPTY_NAMES):,} ({empty})")


if __name__ == "__main__":
    main()
