"""Which vision-language families of the installed transformers this package scores, and how
exactly.

    python -m bench.families [NAME ...] [--rows FILE] [--page docs/reference/models.md]

For every model type that answers in text about pictures (AutoModelForImageTextToText, and those of
AutoModelForMultimodalLM that see): random weights of the family's own classes in
the files of a hub repository (tests/builders/families.py), loaded by the hf engine as a user's
machine loads them, asked all four views and regression, and compared with the bare model called by
hand, one prompt at a time: candidate scores to 1e-4 and greedy answers to the letter. Rows are kept
in FILE (JSON, one a line), so that a run that was cut off goes on; --page fills the
table of that page.
"""

from __future__ import annotations

import json
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import measure, summary

import sdgbias.engines  # isort: skip  # before transformers: torchvision beside a CPU torch

import numpy as np
import transformers

from sdgbias.engines.hf import ways
from sdgbias.errors import SdgbiasError
from sdgbias.registry.spec import ModelSpec
from tests.builders import families
from tests.builders.bare_model import Bare, four_views, largest_difference

#: Families that vLLM was seen to serve, and those seen not to be served.
SERVED_BY_VLLM = ("internvl", "llava", "llava_onevision", "qwen2_5_vl")
NOT_SERVED_BY_VLLM = ("instructblip", "instructblipvideo")
FLAGS = {None: "", True: "yes", False: "no"}
LIMIT = 1e-4
SECONDS = 400
#: What the library's own error doesn't say in one line.
WHY = {
    "blip": "captions a picture; has no language model that answers without one",
    "cosmos3_omni": "transformers has no processor class for it",
    "diffusion_gemma": "writes by diffusion: has no score for a next token",
    "fast_vlm": "loads with timm; the size of its patches is not built here",
    "fuyu": "not built here: its processor counts tokens of its own tokenizer",
    "gemma3n": "its layers need 30 of them, and timm; not built here",
    "granite4_vision": "not built here: windows of its projector don't fit a small tower",
    "perception_lm": "needs timm; its tower has no small configuration",
    "evolla": "reads proteins, not pictures",
    "instructblipvideo": "takes videos: its processor has no image processor",
    "mistral4": "a language model: transformers has no processor for it",
    "nemotron_h_omni": "its processor needs the package librosa: pip install librosa",
    "pi0": "a policy of a robot: puts out actions, no text",
    "pix2struct": "draws the question onto the picture: reads no tokens of text",
    "pp_formulanet": "reads formulas off a picture: takes no text",
    "shieldgemma2": "a safety classifier: puts out yes or no, no text",
    "udop": "reads documents: its processor wants words and boxes of an OCR program",
    "vision-encoder-decoder": "captions a picture: has no processor and takes no text",
}


class TooSlow(Exception):
    """A family that takes longer than SECONDS."""


def examine(name: str, folder: Path) -> dict[str, Any]:
    """One row: loads, scores, difference, answers, shares, tokens, why, seconds."""
    row: dict[str, Any] = dict.fromkeys(
        ("difference", "answers", "batches", "shares", "ways", "tokens")
    )
    row |= {"name": name, "built": False, "loads": False, "scores": False, "why": ""}
    began = time.perf_counter()
    signal.alarm(SECONDS)
    try:
        families.write(folder, name)
        row["built"] = True
        spec = ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled")
        engine: Any = sdgbias.engines.load(spec, Path())
        row["loads"] = True
        bare, prompts = Bare(folder), four_views()
        selected = [prompt for prompt in prompts if prompt.images or not bare.refuses_text]
        decision = ways.decide(engine, selected)
        row["batches"], row["shares"], row["ways"] = (
            decision.batch_size > 1,
            decision.share_prefix,
            decision.line,
        )
        row["difference"] = largest_difference(bare, engine, prompts)
        lengths = engine.candidate_scores(prompts[1:4:2]).n_tokens
        # the template writes a line end after the picture
        row["tokens"] = int(lengths[0] - lengths[1]) - bool(bare.processor.chat_template)
        numbers = [prompts[-2]] if bare.refuses_text else prompts[-2:]
        ours = [answers[0] for answers in engine.generate(numbers, [""], 3).texts]
        row["answers"] = ours == [bare.answer(p, 3) for p in numbers]
        sees = bool(np.abs(bare.scores(prompts[0]) - bare.scores(prompts[4])).max() > 0)
        row["scores"] = row["difference"] <= LIMIT and row["answers"] and sees
        if row["difference"] > LIMIT:
            row["why"] = f"scores differ by {row['difference']:.0e}"
        elif not row["answers"]:
            row["why"] = "greedy numbers differ from plain generation"
        elif not sees:
            row["why"] = "another picture changes no score"
    except Exception as error:  # every failure of a family is a row of the table
        row["why"] = WHY.get(name) or _line(error)
    finally:
        signal.alarm(0)
    row["seconds"] = round(time.perf_counter() - began, 1)
    return row


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())[:110]
    if isinstance(error, SdgbiasError):
        return text
    return f"{type(error).__name__}: {text}"


def page(text: str, rows: list[dict[str, Any]]) -> str:
    """docs/reference/models.md with its first paragraph and its table as the rows have them."""
    scored, loaded = (sum(row[key] for row in rows) for key in ("scores", "loads"))
    first = (
        f"Generated by `bench/families.py` with transformers {transformers.__version__}: of the"
        f" {len(families.NAMES)} model types that answer in text about pictures"
        " (`AutoModelForImageTextToText`, and of `AutoModelForMultimodalLM` those that see)"
        f" {len(rows)} were tried, {loaded} load and {scored} score as the bare model does."
    )
    table = []
    for row in sorted(rows, key=lambda row: str(row["name"])):
        served = "yes" if row["name"] in SERVED_BY_VLLM else "?"
        served = "no" if row["name"] in NOT_SERVED_BY_VLLM else served
        flags = [FLAGS[row[key]] for key in ("loads", "scores", "batches", "shares")]
        tokens = "" if row["tokens"] is None else str(row["tokens"])
        why = str(row["why"]).replace("|", "\\|")
        cells = [f"`{row['name']}`", *flags, served, tokens, f"{row['seconds']:.0f}", why]
        table.append("| " + " | ".join(cells) + " |\n")
    text = re.sub(r"^Generated by .*$", lambda _: first, text, count=1, flags=re.MULTILINE)
    rule = re.compile(r"^(\| family \|.*\n\|[-|]+\|\n)(?:\|.*\n)*", re.MULTILINE)
    return rule.sub(lambda found: found[1] + "".join(table), text)


def main(given: list[str] | None = None) -> None:
    parser = measure.parser(__doc__)
    parser.add_argument("names", nargs="*", help="model types; default: all")
    parser.add_argument("--rows", type=Path, help="rows so far, and where new ones are put")
    parser.add_argument("--page", type=Path, help="Markdown page to fill from the rows")
    parser.add_argument("--no-run", action="store_true", help="only write the page from the rows")
    args = parser.parse_args(given)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    def slow(*_: Any) -> None:
        raise TooSlow(f"took longer than {SECONDS} s")

    signal.signal(signal.SIGALRM, slow)
    rows: dict[str, dict[str, Any]] = {}
    if args.rows and args.rows.is_file():
        kept = map(json.loads, args.rows.read_text(encoding="utf-8").splitlines())
        rows = {row["name"]: row for row in kept}
    for name in () if args.no_run else args.names or families.NAMES:
        if name in rows and not args.names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = rows[name] = examine(name, Path(folder))
        print(json.dumps(row), flush=True)
        if args.rows:
            with args.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    loaded = [row for row in rows.values() if row["loads"]]
    exact = sum(row["scores"] for row in loaded)
    figure = f"{exact} scored as by the bare model, of {len(loaded)} that load"
    beside = f"transformers names {len(families.NAMES)} families"
    if not (args.names or args.no_run):
        n = f"{len(rows)} tried, once"
        headline = summary.Row("vision-language families", n, figure, "none", beside)
        summary.record("families", [headline])
    if args.page:
        text = page(args.page.read_text(encoding="utf-8"), list(rows.values()))
        args.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
