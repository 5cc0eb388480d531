"""The verdict of a self-check: one page of text, JSON, or an HTML page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from sdgbias import __version__, templates
from sdgbias.analysis.selfcheck import FALSE_ALARM, SelfcheckVerdict
from sdgbias.analysis.selfcheck.checks import Check
from sdgbias.errors import UsageError, one_of
from sdgbias.files import write_atomically

FORMATS = (".html", ".json", ".txt")
HEADER = f"{'':64}{'planted':>9}{'measured':>10}   {'95 % interval':18}{'n':>7}"


def _number(x: float) -> str:
    if not math.isfinite(x):
        return "-"
    return f"{x:.0f}" if x == round(x) and abs(x) >= 10 else f"{x:.3f}"


def _interval(c: Check) -> str:
    if c.covered is not None:
        return f"{c.low:.3f} .. {c.high:.3f}"
    return "exact" if c.p in (0.0, 1.0) else "-"


def _line(c: Check, bad: bool) -> str:
    what = f"  FAILED {c.what:55}" if bad else f"  {c.what:62}"
    return f"{what}{_number(c.truth):>9}{_number(c.measured):>10}   {_interval(c):18}{c.n:>7}"


def _groups(v: SelfcheckVerdict) -> Iterable[tuple[str, list[Check]]]:
    """Title and checks of each planted model."""
    for plant in v.plants:
        title = f"{plant.name}: {plant.about}"
        yield title, [c for c in v.checks if c.plant == plant.name]


def opening(v: SelfcheckVerdict) -> list[str]:
    """The scope of the self-check and the error rate of its verdict."""
    return templates.lines("selfcheck_opening", v=v, version=__version__, false_alarm=FALSE_ALARM)


def text(v: SelfcheckVerdict) -> str:
    """One page: the headline checks of each planted model, and all failed checks."""
    bad = set(map(id, v.failed))
    lines = [*opening(v), "", HEADER]
    for title, checks in _groups(v):
        lines.append(title)
        shown = [c for c in checks if c.headline or id(c) in bad]
        lines += [_line(c, id(c) in bad) for c in shown[:12]]
        if len(checks) > len(shown[:12]):
            lines.append(
                f"  and {len(checks) - len(shown[:12])} more checks,"
                f" {sum(id(c) in bad for c in checks if c not in shown[:12])} failed"
            )
    return "\n".join(lines)


def as_json(v: SelfcheckVerdict) -> str:
    bad = set(map(id, v.failed))

    def finite(x: object) -> object:
        return None if isinstance(x, float) and not math.isfinite(x) else x

    rows = [
        {**{k: finite(x) for k, x in asdict(c).items()}, "passed": id(c) not in bad}
        for c in v.checks
    ]
    held, of = v.intervals()
    head = {
        "sdgbias": __version__,
        **{name: getattr(v, name) for name in ("passed", "size", "seed", "benchmark_id")},
        "false_alarm": FALSE_ALARM,
        "intervals": of,
        "intervals_that_hold": held,
        "plants": {p.name: p.about for p in v.plants},
    }
    return json.dumps({**head, "checks": rows}, indent=2)


def html(v: SelfcheckVerdict) -> str:
    """A self-contained page: verdict, every check."""
    bad = set(map(id, v.failed))
    return templates.render(
        "analysis/selfcheck/page.html.j2",
        opening=opening(v),
        groups=[(title, [(c, id(c) in bad) for c in checks]) for title, checks in _groups(v)],
        number=_number,
        interval=_interval,
    )


def check_name(path: Path) -> None:
    """Raise UsageError for a file name without a known format, before any work is done."""
    if path.suffix not in FORMATS:
        raise UsageError(f"--out {path}: {one_of('file ending', path.suffix, FORMATS)}")


def write(v: SelfcheckVerdict, path: Path) -> None:
    """Write the page in the format given by the file's extension. Raises UsageError, StoreError."""
    check_name(path)
    content = {".html": html, ".json": as_json, ".txt": text}[path.suffix](v)
    write_atomically(path, content, "choose another --out")
