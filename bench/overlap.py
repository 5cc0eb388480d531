"""Whether the device waits for the processor: one model scored through the harness, with a
processor that takes as long as the model does.

    python -m bench.overlap [--model tiny-llava] [--clusters 20] [--mcq 60] [--runs 3]

device: the model with its own processor. processor: the time that the stand-in adds, which sleeps
before each batch with pictures and so takes no CPU, as if the model ran on another device; batches
are made ahead, as beside a GPU. both: the two together. Without overlap it would be their sum, at
best it is the larger of the two.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import summary
from bench.views import benchmark, through_harness
from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.raw.images.image_store import ImageReader
from sdgbias.registry import entries
from sdgbias.scoring.plan import make_plan
from sdgbias.suites import sdg


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny-llava")
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--mcq", type=int, default=60)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    root = entries.find_root()
    spec = entries.load(root, args.model)
    engine = HuggingFace(spec, root)
    engine.maker.ahead = True  # as beside a GPU
    slow = engine.maker.processor = Slow(engine.processor)
    took: dict[str, list[float]] = {"device": [], "both": []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = benchmark(Path(temporary), args.clusters, args.mcq)
        cells = sdg.load_prompts(folder)
        plan = make_plan(cells[cells["task"] == "mcq"], engine.fingerprint)
        pictured = plan.distinct[plan.distinct["image_id"] != ""]
        reader = ImageReader(folder)

        def score(seconds: float) -> float:
            slow.seconds, slow.batches = seconds, 0
            began = time.perf_counter()
            through_harness(engine, reader, spec, pictured, Path(temporary))
            return time.perf_counter() - began

        score(0.0)
        for _ in range(args.runs):
            took["device"].append(score(0.0))
            took["both"].append(score(took["device"][-1] / slow.batches))
    # the stand-in sleeps as long as the model took just before
    ratio = statistics.median(b / d for b, d in zip(took["both"], took["device"], strict=True))
    device, both = (statistics.median(took[name]) for name in ("device", "both"))
    row = summary.Row(
        f"{args.model}: a processor as slow as the model, on its own thread",
        f"{len(pictured)} prompts in {slow.batches} batches, {args.runs} runs",
        f"{ratio:.2f} times the time of either alone ({both:.2f} s)",
        "1.2 times",
        f"model alone {device:.2f} s; one after the other: 2 times",
        os.getloadavg()[0],
    )
    summary.record("overlap", [row])


if __name__ == "__main__":
    main()
