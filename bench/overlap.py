"""Whether a device or a server waits for the processor: prompts scored through the harness, with
a stand-in for the processor that takes as long as the model does.

    python -m bench.overlap [--model tiny-llava] [--clusters 20] [--mcq 60] [--runs 3]
        [--only server]

The stand-in sleeps and so takes no CPU, as if the model ran on another device. For the engine hf it
sleeps before each batch with pictures, and batches are made ahead, as beside a GPU. For a server,
an endpoint on loopback that answers a request in 200 ms, eight at a time, it sleeps before each
picture that is read; for vLLM, which serves the model in an environment of its own (`make vllm`),
likewise. Without overlap the two would take their sum, at best the larger of the two.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from bench import measure, summary
from bench.views import benchmark, through_harness
from sdgbias.engines import Backend
from sdgbias.engines.api import Api
from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.engines.vllm import VLLM
from sdgbias.raw.images.shards import ImageReader
from sdgbias.registry import entries
from sdgbias.registry.spec import ModelSpec
from sdgbias.scoring.plan import make_plan
from sdgbias.suites import sdg
from tests.builders import loopback

#: Seconds in which the stand-in server answers, and requests that it answers at a time.
ANSWER, AT_ONCE = 0.2, 8
#: How vLLM serves the model.
SERVED: dict[str, object] = {"max_model_len": 512, "kv_cache_gib": 0.25, "max_images": 2}


class Slow:
    """A processor that sleeps ``seconds`` before each batch with pictures, of which there were
    ``batches``."""

    def __init__(self, processor: Any) -> None:
        self.processor, self.seconds, self.batches = processor, 0.0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.processor, name)

    def __call__(self, images: Any = None, **given: Any) -> Any:
        if images is not None:
            time.sleep(self.seconds)
            self.batches += 1
        return self.processor(images=images, **given)


class SlowReader(Mapping[str, tuple[bytes, ...]]):
    """Pictures of which each is read in ``seconds`` when it is asked for; ``read`` counts them."""

    def __init__(self, reader: Mapping[str, tuple[bytes, ...]]) -> None:
        self.reader, self.seconds, self.read = reader, 0.0, 0

    def __getitem__(self, image_id: str) -> tuple[bytes, ...]:
        time.sleep(self.seconds)
        self.read += 1
        return self.reader[image_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.reader)

    def __len__(self) -> int:
        return len(self.reader)


class Answers(loopback.Handler):
    """An endpoint that gives every question the same first tokens."""

    def do_POST(self) -> None:
        self.body()
        time.sleep(ANSWER)
        named = [{"token": token, "logprob": -1.5} for token in "ABC"]
        first = {**named[0], "top_logprobs": named}
        choice = {"message": {"content": "A"}, "logprobs": {"content": [first]}}
        self.reply_json({"model": "m", "choices": [choice]})


def compare_times(
    what: str, n: int, score: Callable[[float], tuple[float, int]], runs: int
) -> summary.Row:
    """score: seconds that the stand-in sleeps each time -> (seconds in all, how often it slept)."""
    alone, both = [], []
    _, times = score(0.0)  # what is imported at first use is not timed
    for _ in range(runs):
        alone.append(score(0.0)[0])
        # the stand-in sleeps as long as the model took just before
        both.append(score(alone[-1] / times)[0])
    ratio = statistics.median(b / a for b, a in zip(both, alone, strict=True))
    return summary.Row(
        what,
        f"{n} prompts, {times} times, {runs} runs",
        f"{ratio:.2f} times the time of either alone ({statistics.median(both):.2f} s)",
        "1.2 times",
        f"model alone {statistics.median(alone):.2f} s; one after the other: 2 times",
        os.getloadavg()[0],
    )


def main() -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("--model", default="tiny-llava")
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--mcq", type=int, default=60)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=("device", "server", "vllm"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = benchmark(Path(temporary), args.clusters, args.mcq)
        cells = sdg.load_prompts(folder)
        rows = make_plan(cells[cells["task"] == "mcq"], "f").distinct
        rows = rows[rows["image_id"] != ""]
        reader = ImageReader(folder)
        measured = []
        if args.only in (None, "device"):
            score = _on_device(args.model, reader, rows, Path(temporary))
            what = f"{args.model}: a processor as slow as the model, on its own thread"
            measured.append(compare_times(what, len(rows), score, args.runs))
        if args.only in (None, "server"):
            score = _read_slowly(_endpoint(), reader, rows, Path(temporary))
            what = f"endpoint, {ANSWER * 1000:.0f} ms an answer: pictures read as slowly"
            measured.append(compare_times(what, len(rows), score, args.runs))
        if args.only in (None, "vllm"):
            root = entries.find_root()
            spec = replace(entries.load(root, args.model), backend="vllm", options=SERVED)
            engine = VLLM(spec, root)
            score = _read_slowly(engine, reader, rows, Path(temporary))
            what = f"{args.model} served by vLLM: pictures read as slowly"
            measured.append(compare_times(what, len(rows), score, args.runs))
            engine.close()
    summary.record("overlap", measured)


def _on_device(
    model: str, reader: ImageReader, rows: pd.DataFrame, folder: Path
) -> Callable[[float], tuple[float, int]]:
    root = entries.find_root()
    spec = entries.load(root, model)
    engine = HuggingFace(spec, root)
    engine.maker.ahead = True  # as beside a GPU
    slow = engine.chat.processor = Slow(engine.processor)

    def score(seconds: float) -> tuple[float, int]:
        slow.seconds, slow.batches = seconds, 0
        began = time.perf_counter()
        through_harness(engine, reader, spec, rows, folder)
        return time.perf_counter() - began, slow.batches

    return score


def _endpoint() -> Api:
    _, address = loopback.start(Answers)
    os.environ["BENCH_KEY"] = "none"
    options: dict[str, object] = {"api_key_env": "BENCH_KEY", "concurrency": AT_ONCE}
    options["base_url"] = f"{address}/v1"
    return Api(ModelSpec("m", "M", "api", "m", "1", "candidate", options=options), Path())


def _read_slowly(
    engine: Backend, reader: ImageReader, rows: pd.DataFrame, folder: Path
) -> Callable[[float], tuple[float, int]]:
    slow = SlowReader(reader)
    spec = ModelSpec("m", "M", "hf", "m", "1", "candidate", batch_size=64)

    def score(seconds: float) -> tuple[float, int]:
        slow.seconds, slow.read = seconds, 0
        began = time.perf_counter()
        through_harness(engine, slow, spec, rows, folder)
        return time.perf_counter() - began, slow.read

    return score


if __name__ == "__main__":
    main()
