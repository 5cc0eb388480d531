"""An example of each command and the command that usually follows, at the end of its help."""

from __future__ import annotations

from typing import Any

#: Command -> an example, and what to run next ('' where nothing follows).
EXAMPLES = {
    "demo": ("sdgbias demo", "sdgbias serve"),
    "sample": ("sdgbias sample --out my/raw --clusters 40", "sdgbias build --raw my/raw"),
    "raw check": ("sdgbias raw check /data/dhs", "sdgbias build --raw /data/dhs"),
    "raw track": ("sdgbias raw track data/dhs", "sdgbias build --raw data/dhs"),
    "build": ("sdgbias build --raw my/raw --out my/benchmark --mcq 500", "sdgbias evaluate MODEL"),
    "people sample": ("sdgbias people sample --out my/faces --people 240", "sdgbias people build"),
    "people build": (
        "sdgbias people build --raw my/faces --out my/people",
        "sdgbias evaluate MODEL --benchmark my/people",
    ),
    "people calibrate": ("sdgbias people calibrate clip-text-vit-b32", "sdgbias people read"),
    "people read": (
        "sdgbias people read clip-text-vit-b32",
        "sdgbias reproduce --paper fairness --table encoders",
    ),
    "suite example": ("sdgbias suite example my/questions", "sdgbias suite check my/questions"),
    "suite check": ("sdgbias suite check my/questions", "sdgbias suite build"),
    "suite build": (
        "sdgbias suite build my/questions --out my/suite",
        "sdgbias evaluate MODEL --benchmark my/suite",
    ),
    "review sample": (
        "sdgbias review sample --out my/review --share 0.05",
        "sdgbias review import",
    ),
    "review import": (
        "sdgbias review import one.csv two.csv --out reviews.parquet",
        "sdgbias build --review reviews.parquet",
    ),
    "release export": ("sdgbias release export --out my/release", ""),
    "release import": (
        "sdgbias release import my/release --out my/benchmark",
        "sdgbias evaluate MODEL --benchmark my/benchmark",
    ),
    "register-model": ("sdgbias register-model OWNER/NAME --dry-run", "sdgbias evaluate NAME"),
    "models": ("sdgbias models", "sdgbias models show NAME"),
    "models add": ("sdgbias models add OWNER/NAME --dry-run", "sdgbias evaluate NAME"),
    "models list": ("sdgbias models list --state enabled", "sdgbias models show NAME"),
    "models fetch": ("sdgbias models fetch NAME", "sdgbias models enable NAME"),
    "models show": ("sdgbias models show tiny-llava", "sdgbias models parity tiny-llava"),
    "models enable": ("sdgbias models enable NAME", "sdgbias nightly --model NAME"),
    "models quarantine": (
        'sdgbias models quarantine NAME --reason "out of memory" --days 7',
        "sdgbias models enable NAME",
    ),
    "models retire": (
        'sdgbias models retire NAME --reason "replaced"',
        "sdgbias models reopen NAME",
    ),
    "models reopen": ("sdgbias models reopen NAME", "sdgbias models enable NAME"),
    "models watch": ("sdgbias models watch --dry-run", "sdgbias models list --state candidate"),
    "models parity": ("sdgbias models parity NAME --against vllm", "sdgbias models enable NAME"),
    "models prompt": ("sdgbias models prompt NAME --test T1 --view full", "sdgbias plan NAME"),
    "plan": ("sdgbias plan NAME --passes none", "sdgbias evaluate NAME --limit 50"),
    "evaluate": ("sdgbias evaluate tiny-llava --limit 50", "sdgbias results"),
    "cade search": (
        "sdgbias cade search --pred-dir my/tables --task mcq --level T1 --out my/cade",
        "sdgbias cade apply",
    ),
    "cade apply": (
        "sdgbias cade apply --pred-dir my/tables --task mcq --level T1 --out my/cade --alpha 1",
        "",
    ),
    "results": (
        "sdgbias results --sql 'SELECT model, value FROM metrics LIMIT 5'",
        "sdgbias report",
    ),
    "report": ("sdgbias report --out my/report", "sdgbias serve --report my/report"),
    "serve": ("sdgbias serve --port 8321", ""),
    "analyse": ("sdgbias analyse --draws 2000", "sdgbias reproduce"),
    "reproduce": ("sdgbias reproduce --table 2", "sdgbias report"),
    "wandb log": ("sdgbias wandb log", "sdgbias wandb report"),
    "wandb report": ("sdgbias wandb report --entity my-team --out report.md", ""),
    "nightly": ("sdgbias nightly --dry-run", "sdgbias gate"),
    "gate": ("sdgbias gate", 'sdgbias gate accept RUN --reason "TEXT"'),
    "gate accept": ('sdgbias gate accept RUN --reason "new weights"', "sdgbias gate announce"),
    "gate announce": ("sdgbias gate announce --dry-run", ""),
    "stack up": (
        'sdgbias stack up --cron "30 1 * * *" --timezone Africa/Nairobi',
        "sdgbias stack status",
    ),
    "stack status": ("sdgbias stack status", "sdgbias stack down"),
    "stack down": ("sdgbias stack down", "sdgbias stack up"),
    "selfcheck": ("sdgbias selfcheck --out selfcheck.html", "sdgbias selfcheck --full"),
    "store info": ("sdgbias store info", "sdgbias store keep"),
    "store keep": ("sdgbias store keep --nights 90", "sdgbias store compact"),
    "store compact": ("sdgbias store compact", "sdgbias store backup"),
    "store backup": ("sdgbias store backup /backup/sdgbias", "sdgbias store verify"),
    "store restore": ("sdgbias store restore /backup/sdgbias", "sdgbias store info"),
    "store verify": ("sdgbias store verify", "sdgbias store restore"),
}


def teach(command: Any, path: tuple[str, ...] = ()) -> None:
    """Put its example at the end of the help of every command of a group."""
    for name, child in command.commands.items():
        here = (*path, name)
        example, onward = EXAMPLES.get(" ".join(here), ("", ""))
        if example:
            child.epilog = f"Example: {example}" + (f"\n\nNext: {onward}" if onward else "")
        if hasattr(child, "commands"):
            teach(child, here)
