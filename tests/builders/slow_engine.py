"""The planted engine as the tests of several engines need it: slow, and noting what it is asked."""

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

    if any(word in part for part in sys.orig_argv for word in ("sdgbias", "default_worker")):
        from sdgbias.engines.planted import Planted

        plain, plain_generate = Planted.candidate_scores, Planted.generate
        end = time.monotonic() + 600

        def note(kind, prompts):
            head = f"{kind}\\t{os.getpid()}\\t{os.environ.get('OMP_NUM_THREADS')}"
            line = "".join(f"{head}\\t{hash_of(p)}\\n" for p in prompts)
            file = os.open(os.environ["PLANTED_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, line.encode())
            os.close(file)

        def hash_of(prompt):
            import hashlib
            text = f"{prompt.candidates}|{prompt.image_id}|{prompt.text}"
            return hashlib.sha256(text.encode()).hexdigest()[:16]

        def together():
            while time.monotonic() < end:
                with open(os.environ["PLANTED_LOG"]) as log:
                    engines = {line.split("\\t")[1] for line in log if line.endswith("\\n")}
                if len(engines) >= int(os.environ["PLANTED_ENGINES"]):
                    return
                time.sleep(0.05)

        def candidate_scores(self, prompts):
            time.sleep(float(os.environ["PLANTED_DELAY"]))
            note("score", prompts)
            if os.environ["PLANTED_HANG"] in map(hash_of, prompts):
                time.sleep(600)
            together()
            return plain(self, prompts)

        def generate(self, prompts, starts, max_new_tokens):
            note("decode", prompts)
            return plain_generate(self, prompts, starts, max_new_tokens)

        Planted.candidate_scores, Planted.generate = candidate_scores, generate
""")


def slow_planted(
    folder: Path, delay: float = 0.02, engines: int = 1, hang: str = ""
) -> dict[str, str]:
    """The environment in which the planted engine takes ``delay`` seconds a batch and notes its
    prompts in folder/log.
    ``engines``: so many have noted something before any of them answers, so that none does
    everything while another starts. ``hang``: the prompt (a hash) that it never answers."""
    (folder / "site").mkdir(parents=True, exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text(SITE)
    more = {
        "PLANTED_DELAY": str(delay),
        "PLANTED_LOG": str(folder / "log"),
        "PLANTED_ENGINES": str(engines),
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
    """What engines were asked so far: kind (score, decode), pid, threads, prompt (a hash)."""
    path = folder / "log"
    rows = (
        [line.split("\t") for line in path.read_text().rpartition("\n")[0].splitlines()]
        if path.exists()
        else []
    )
    return pd.DataFrame(rows, columns=["kind", "pid", "threads", "prompt"])


def cached(results: Path, model: str) -> dict[str, pd.DataFrame]:
    """The rows of the score cache beside a results file, as a run reads them."""
    from sdgbias.scoring.cache import ScoreCache

    (folder,) = (results.parent / "scores" / model).iterdir()
    return {
        kind: ScoreCache(results.parent, model, folder.name).read(kind)
        for kind in ("scores", "generations")
    }
