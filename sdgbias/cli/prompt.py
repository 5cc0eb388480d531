"""`sdgbias models prompt`: a prompt as a model gets it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdgbias.cli.options import DEFAULT_BENCHMARK, BenchmarkOption
from sdgbias.errors import InputError, UsageError, one_of

if TYPE_CHECKING:
    from sdgbias.types import Prompt


def show_prompt(
    name: Annotated[str, typer.Argument()],
    item: str = "",
    test: str = "T1",
    view: str = "full",
    benchmark: BenchmarkOption = DEFAULT_BENCHMARK,
) -> None:
    """Print a prompt as the model gets it: the text that its chat template makes, with special
    tokens, the token ids, how many tokens the picture is, and the ids that can begin an answer.

    Needs the model's tokenizer and processor, not its weights. The template's date is fixed, so
    that tomorrow's prompt is today's.

    Args:
        name: Name of a registered model (sdgbias models).
        item: Item of the benchmark; default: its first.
        test: Test of the item, T1 to T5.
        view: View: full, img_q, ctx_q or q_only.
    """
    from sdgbias.engines.hf.prompt_text import lines
    from sdgbias.registry import entries
    from sdgbias.scoring.cost import TOKENIZED
    from sdgbias.types import NEEDS_PICTURES, VIEWS

    root = entries.find_root()
    spec = entries.load(root, name)
    if spec.backend not in TOKENIZED:
        raise UsageError(
            f"{name}: backend {spec.backend} has no tokenizer here; models prompt works for:"
            f" {', '.join(TOKENIZED)}"
        )
    if view not in spec.views and view in VIEWS:
        raise UsageError(
            f"{name}: --view {view} {NEEDS_PICTURES}; this model is asked: {', '.join(spec.views)}"
        )
    chosen, prompt = _prompt(benchmark, item, test, view)
    typer.echo("\n".join([f"{name}, {chosen}", *lines(spec, root, prompt)]))


def _prompt(benchmark: Path, item: str, test: str, view: str) -> tuple[str, Prompt]:
    """What is shown, in words, and the prompt. UsageError or InputError with the valid values."""
    from sdgbias import suites
    from sdgbias.raw.images.shards import ImageReader
    from sdgbias.types import Prompt, View

    views = [v.value for v in View]
    if view not in views:
        raise UsageError(one_of("--view", view, views))
    cells = suites.of(benchmark).cells(benchmark, suites.EvalSettings())
    items = cells["item_id"].astype(str)
    chosen = item or str(items.iloc[0])
    of_item = cells[items == chosen]
    if of_item.empty:
        raise InputError(
            f"{benchmark}: no item {chosen!r}; the first are {', '.join(items.unique()[:3])}"
        )
    tests = of_item["test"].unique().tolist()
    found = of_item[(of_item["test"] == test) & (of_item["view"] == view)]
    if found.empty:
        raise UsageError(f"item {chosen}: {one_of('--test', test, tests)}")
    row = found.iloc[0]
    pictures = ImageReader(benchmark)[row["image_id"]] if row["image_id"] else ()
    prompt = Prompt(row["text"], row["candidates"], pictures, row["image_id"])
    return f"item {chosen}, test {test}, view {view}", prompt
