"""The planted engine, slow, and noting what it is asked."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pandas as pd

from tests.builders.commands import REPOSITORY

#: Run by every Python process that finds it on its path; engines live in processes that a test
#: can't reach otherwise.
SITE = textwrap.dedent("""
    import os, sys, time

    if any("sdgbias" in part for part in sys.orig_argv):
        from sdgbias.engines.planted import Planted

        plain, plain_generate = Planted.candidate_scores, Planted.generate

        def note(kind, prompts):
            line = "".join(f"{kind}\\t{os.getpid()}\\t{hash_of(p)}\\n" for p in prompts)
            file = os.open(os.environ["PLANTED_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, line.encode())
            os.close(file)

        def hash_of(prompt):
            import hashlib
            text = f"{prompt.candidates}|{prompt.image_id}|{prompt.text}"
            return hashlib.sha256(text.encode()).hexdigest()[:16]

        def candidate_scores(self, prompts):
            time.sleep(float(os.environ["PLANTED_DELAY"]))
            note("score", prompts)
            if os.environ["PLANTED_HANG"] in map(hash_of, prompts):
                time.sleep(600)
            return plain(self, prompts)

        def generate(self, prompts, starts, max_new_tokens):
            note("decode", prompts)
            return plain_generate(self, prompts, starts, max_new_tokens)

        Planted.candidate_scores, Planted.generate = candidate_scores, generate
""")


def slow_planted(folder: Path, delay: float = 0.02, hang: str = "") -> dict[str, str]:
    """The environment in which the planted engine takes ``delay`` seconds a batch and notes its
    prompts in folder/log. ``hang``: the prompt (a hash) that it never answers."""
    (folder / "site").mkdir(parents=True, exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text(SITE)
    more = {
        "PLANTED_DELAY": str(delay),
        "PLANTED_LOG": str(folder / "log"),
        "PLANTED_HANG": hang,
    }
    return {
        **os.environ,
        **more,
        "PYTHONPATH": f"{folder / 'site'}:{REPOSITORY}",
        "SDGBIAS_REGISTRY": str(folder),
        "COLUMNS": "80",
    }


def asked(folder: Path) -> pd.DataFrame:
    """What engines were asked so far: kind (score, decode), pid, prompt (a hash)."""
    path = folder / "log"
    rows = (
        [line.split("\t") for line in path.read_text().rpartition("\n")[0].splitlines()]
        if path.exists()
        else []
    )
    return pd.DataFrame(rows, columns=["kind", "pid", "prompt"])


def cached(results: Path, model: str) -> dict[str, pd.DataFrame]:
    """The rows of the score cache beside a results file, as a run reads them."""
    from sdgbias.scoring.cache import ScoreCache

    (folder,) = (results.parent / "scores" / model).iterdir()
    return {
        kind: ScoreCache(results.parent, model, folder.name).read(kind)
        for kind in ("scores", "generations")
    }
