"""The verdict of a self-check: one page of text, JSON, or an HTML page with a figure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from markupsafe import Markup

from sdgbias import __version__, templates
from sdgbias.analysis.selfcheck import FALSE_ALARM, SelfcheckVerdict
from sdgbias.analysis.selfcheck.checks import Check
from sdgbias.errors import UsageError, one_of
from sdgbias.files import packaged, write_atomically

FORMATS = (".html", ".json", ".txt")
HEADER = f"{'':64}{'planted':>9}{'measured':>10}   {'95 % interval':18}{'n':>7}"
SEEDS = "many seeds, arrays alone"


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
    """Title and checks of each planted model, then of the rules and of the seeds."""
    for plant in v.plants:
        yield (
            f"{plant.name}: {plant.about}",
            [c for c in v.checks if c.part == "pipeline" and c.plant == plant.name],
        )
    if fixed := [c for c in v.checks if c.part == "rules"]:
        yield "rules: first digits, gold values, counts of prompts", fixed
    for name in dict.fromkeys(c.plant for c in v.checks if c.part == "seeds"):
        yield f"{name}, {SEEDS}", [c for c in v.checks if c.part == "seeds" and c.plant == name]


def opening(v: SelfcheckVerdict) -> list[str]:
    """The scope of the self-check and the error rate of its verdict."""
    return templates.lines("selfcheck_opening", v=v, version=__version__, false_alarm=FALSE_ALARM)


def text(v: SelfcheckVerdict) -> str:
    """One page: the headline checks of each planted model, and all failed checks."""
    bad = set(map(id, v.failed))
    lines = [*opening(v), "", HEADER]
    for title, found in _groups(v):
        lines.append(title)
        shown = [c for c in found if c.headline or id(c) in bad]
        lines += [_line(c, id(c) in bad) for c in shown[:12]]
        if len(found) > len(shown[:12]):
            lines.append(
                f"  and {len(found) - len(shown[:12])} more checks,"
                f" {sum(id(c) in bad for c in found if c not in shown[:12])} failed"
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
    told = ("passed", "size", "seed", "fault", "benchmark_id")
    head = {
        "sdgbias": __version__,
        **{name: getattr(v, name) for name in told},
        "false_alarm": FALSE_ALARM,
        "intervals": of,
        "intervals_that_hold": held,
        "plants": {p.name: p.about for p in v.plants},
    }
    return json.dumps({**head, "checks": rows}, indent=2)


def figure(v: SelfcheckVerdict) -> str:
    """Planted against measured for every share of the pipeline, with 95 % intervals, as inline
    SVG."""
    import vl_convert
    import yaml

    bad = set(map(id, v.failed))
    rows = []
    for c in v.checks:
        shares = c.covered is not None and -1 <= c.truth <= 1 and c.low >= -1 and c.high <= 1
        if c.part == "pipeline" and shares:
            verdict = "failed" if id(c) in bad else "passed"
            ends = {"low": c.low, "high": c.high, "verdict": verdict}
            rows.append({"planted": c.truth, "measured": c.measured, **ends})
    spec = yaml.safe_load(packaged("data", "selfcheck_figure.yaml").read_text(encoding="utf-8"))
    svg: str = vl_convert.vegalite_to_svg(spec["figure"] | {"data": {"values": rows}})
    return svg


def html(v: SelfcheckVerdict) -> str:
    """A self-contained page: verdict, figure, every check."""
    bad = set(map(id, v.failed))
    return templates.render(
        "analysis/selfcheck/page.html.j2",
        opening=opening(v),
        figure=Markup(figure(v)),
        groups=[(title, [(c, id(c) in bad) for c in found]) for title, found in _groups(v)],
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
