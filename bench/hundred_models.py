"""A hundred registered models in one night, ten of them failing in ten different ways: who is
published, who is put aside and why.

    python -m bench.hundred_models [--good 90] [--bad 10] [--jobs 2] [--questions 24] [--nights 2]

Models are planted formulas on a tiny synthetic benchmark, each in a process of its own, as `sdgbias
nightly` runs them. Of the ten, seven fail by themselves (folders of weights and a loopback hub that
are what they should not be); in three the engine is made to run out of memory, to hang, or to
crash, inside the real command. The second night asks the same registry again. Analysis, W&B and
announcement are left out: they are no part of the question.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import yaml

from bench import measure, summary
from tests.builders import loopback
from tests.builders.commands import add_model

REPOSITORY = Path(__file__).resolve().parents[1]
#: model -> what its reason must hold
REASONS = {
    "bad-crash": "SIGSEGV",
    "bad-gated": "Gated",
    "bad-hang": "InfrastructureError",
    "bad-memory": "OutOfMemory",
    "bad-missing": "no config.json",
    "bad-newlines": "candidate-mass",
    "bad-pickle": "model.safetensors",
    "bad-remote-code": "own code",
    "bad-token": "no single token",
    "bad-torn": "deserializing",
}
#: The engine of a planted model, made to fail inside the real command.
BROKEN = """
import os, signal, sys, time
from sdgbias.engines.planted import Planted
from sdgbias.cli import main
plain = Planted.candidate_scores
def memory(self, prompts):
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
    bytearray(64 << 30)
def newlines(self, prompts):
    made = plain(self, prompts)
    made.mass[:] = 1e-6
    made.top_token[:] = ["\\n"] * len(prompts)
    return made
how = {
    "bad-memory": memory,
    "bad-hang": lambda self, prompts: time.sleep(3600),
    "bad-crash": lambda self, prompts: os.kill(os.getpid(), signal.SIGSEGV),
    "bad-newlines": newlines,
}
Planted.candidate_scores = how[sys.argv[2]]
main()
"""
GATE = {
    "alpha": 0.05,
    "rules": [
        {
            "name": "candidate-mass",
            "metric": "candidate_mass",
            "worse": "lower",
            "at_least": 0.2,
            "min_n": 2,
            "then": "quarantine",
        }
    ],
}


class Hub(loopback.Handler):
    """A hub that keeps every repository from this account."""

    def do_GET(self) -> None:
        why = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}
        self.reply(403, headers=why)

    do_HEAD = do_GET


def bad_folders(root: Path) -> None:
    """Copies of the embedded model, each spoilt in its own way."""
    source = REPOSITORY / "registry" / "weights" / "tiny-llava"
    folders = {
        name: root / "weights" / name
        for name in ("bad-torn", "bad-pickle", "bad-remote-code", "bad-token")
    }
    for folder in folders.values():
        shutil.copytree(source, folder)
    torn = folders["bad-torn"] / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
    (folders["bad-pickle"] / "model.safetensors").rename(
        folders["bad-pickle"] / "pytorch_model.bin"
    )
    config = json.loads((folders["bad-remote-code"] / "config.json").read_text())
    config |= {
        "model_type": "its-own",
        "auto_map": {"AutoConfig": "code.Config", "AutoModelForImageTextToText": "code.Model"},
    }
    (folders["bad-remote-code"] / "config.json").write_text(json.dumps(config))
    (folders["bad-remote-code"] / "code.py").write_text(
        "raise SystemExit('code of a stranger was run')\n"
    )
    words = folders["bad-token"] / "tokenizer.json"
    tokenizer = json.loads(words.read_text())
    tokenizer["model"]["vocab"] = {
        ("\u0100" if word == "A" else word.replace("A", "\u0100")): i
        for word, i in tokenizer["model"]["vocab"].items()
    }
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    tokenizer["model"]["merges"] = [m.replace("A", "\u0100") for m in merges]
    words.write_text(json.dumps(tokenizer))
    for name in (*folders, "bad-missing"):
        add_model(
            root, name, backend="hf", repo=f"local:weights/{name}", revision="local", batch_size=8
        )


def command(job, results: Path, number: int) -> Sequence[str]:  # type: ignore[no-untyped-def]
    from sdgbias.nightly import attempt

    plain = attempt.command(job, results, number)
    broken = job.model in ("bad-memory", "bad-hang", "bad-crash", "bad-newlines")
    return [sys.executable, "-c", BROKEN, *plain[3:]] if broken else plain


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--good", type=int, default=90)
    parser.add_argument("--bad", type=int, default=len(REASONS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--nights", type=int, default=2)
    args = parser.parse_args()
    from sdgbias import store
    from sdgbias.benchmark.build import Draw, build
    from sdgbias.nightly import attempt, records
    from sdgbias.nightly import run as nights
    from sdgbias.nightly.night_options import NightOptions
    from sdgbias.raw.synthetic import write_sample
    from sdgbias.registry import entries

    server, address = loopback.start(Hub)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        os.environ.update(
            HF_ENDPOINT=address,
            HF_HUB_OFFLINE="0",
            HF_HOME=str(root / "hf"),
            HF_TOKEN="x" * 20,
        )
        write_sample(root / "raw", 12, 5)
        build(
            root / "raw",
            root / "raw" / "indicators",
            root / "benchmark",
            Draw(mcq=args.questions, regression=2),
        )
        for n in range(args.good):
            add_model(root, f"good-{n:03d}", batch_size=64, options={"optimism": n / 100})
        bad_folders(root)
        reasons = dict(list(REASONS.items())[: args.bad])
        add_model(root, "bad-gated", backend="hf", repo="gated/model", revision="a" * 40)
        add_model(root, "bad-hang", options={"chunk_timeout": 2})
        for name in ("bad-memory", "bad-crash", "bad-newlines"):
            add_model(root, name, batch_size=64)
        for name in REASONS.keys() - reasons.keys():
            (root / "registry" / "models" / f"{name}.yaml").unlink()
        (root / "policy.yaml").write_text(yaml.safe_dump(GATE))
        s = NightOptions(
            root / "results" / "r.duckdb",
            root / "report",
            [root / "benchmark"],
            root=root,
            policy=root / "policy.yaml",
            jobs=args.jobs,
            timeout=600,
            draws=100,
            passes="none",
        )
        began = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
        first = 0.0
        for n in range(args.nights):
            at, clock = began + timedelta(days=n), time.perf_counter()
            done = nights.run(
                replace(s, scheduled_for=at.isoformat()),
                partial(datetime.fromisoformat, at.isoformat()),
                lambda text: print(f"  {text[:150]}", file=sys.stderr),
                partial(
                    attempt.keep_trying,
                    sleep=lambda seconds: time.sleep(min(seconds, 1)),
                    argv=command,
                ),
                steps=("gate",),
            )
            seconds = time.perf_counter() - clock
            print(
                f"\nnight {n + 1}: {len(done.outcomes)} models asked, {seconds:.0f} s, exit code"
                f" {done.exit_code}"
            )
            print(
                "  outcomes: "
                + ", ".join(
                    f"{k} {v}" for k, v in sorted(Counter(o.outcome for o in done.outcomes).items())
                )
            )
            specs = entries.load_all(root)
            aside = {name: spec for name, spec in specs.items() if spec.state == "quarantined"}
            print(f"  quarantined: {len(aside)} of {len(specs)}")
            for name, spec in aside.items():
                print(
                    f"    {name:16} until {spec.until or 'enabled by a person':19}"
                    f" {spec.reason[:150]}"
                )
            wrong = [
                name
                for name, words in reasons.items()
                if name not in aside or words not in aside[name].reason
            ]
            rows = records.history(s.results)
            seen = set(rows.loc[rows["night"] == done.night, "model"])
            runs = store.query(
                s.results,
                "SELECT count(*) AS n FROM runs WHERE model LIKE 'good-%' AND n_failed = 0",
            )["n"][0]
            print(f"  wrong reason or not put aside: {', '.join(wrong) or 'none'}")
            figure = f"{seconds:.0f} s, {runs} good ones published"
            figure += (
                f", {len(reasons) - len(wrong)} of {len(reasons)} put aside for the right reason"
            )
            first = first or seconds
            what, scale = f"a hundred models, night {n + 1}", f"{len(done.outcomes)} asked, once"
            beside = f"the first night: {first:.0f} s"
            if args.good >= 90:
                row = summary.Row(what, scale, figure, "90 and 10", beside)
                summary.record("hundred_models", [row])
            print(
                f"  lost: {len(set(specs) - seen)} models without a row in night_outcomes; runs of"
                f" the good models: {runs} of {args.good}"
            )
    loopback.stop(server)


if __name__ == "__main__":
    main()
