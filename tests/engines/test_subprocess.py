"""Frames between two processes: what goes in comes out, and nothing else is taken for one."""

from __future__ import annotations

import ast
import io
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdgbias.engines import subprocess
from sdgbias.engines.vllm import PromptTooLong
from sdgbias.errors import InputError, ModelError, OutOfMemory
from sdgbias.files import FileError
from sdgbias.types import Prompt, ScoreBatch


def taken(data: bytes) -> subprocess.Frame:
    stream = io.BytesIO(data)

    def take(size: int) -> bytes:
        part = stream.read(size)
        if len(part) < size:
            raise EOFError
        return part

    return subprocess.read(take)


prompts = st.builds(
    Prompt,
    text=st.text(),
    candidates=st.sampled_from(["AB", "ABC", "0123456789"]),
    images=st.lists(st.binary(max_size=9), max_size=3).map(tuple),
    image_id=st.text(max_size=5),
)


@given(st.lists(prompts, max_size=6))
def test_prompts_come_out_as_they_went_in(asked: list[Prompt]) -> None:
    header, payload = subprocess.put_prompts(asked)
    assert subprocess.get_prompts(taken(subprocess.pack(header, payload))) == asked


def test_a_picture_that_many_prompts_show_is_sent_once() -> None:
    asked = [Prompt(str(n), "AB", (b"picture", b"other")[: 1 + n % 2], "x") for n in range(10)]
    assert subprocess.put_prompts(asked)[1] == b"pictureother"


def batch(**more: np.ndarray) -> ScoreBatch:
    logits = np.array([[1.5, -np.inf, np.nan], [0.1, 0.2, 0.3]], dtype=np.float32)
    two = np.array([0.5, np.nan], dtype=np.float32)
    return ScoreBatch(logits, two, -two, ["A", " é"], np.array([7, 8], dtype=np.int32), **more)


@pytest.mark.parametrize(
    "more", [{}, {"upper": np.array([[np.nan, -3, np.nan], [np.nan] * 3], dtype=np.float32)}]
)
def test_scores_come_out_to_the_bit(more: dict[str, np.ndarray]) -> None:
    one = batch(**more)
    two = subprocess.get_scores(taken(subprocess.pack(*subprocess.put_scores(one))))
    assert two.top_token == one.top_token and (two.upper is None) == (one.upper is None)
    for name in ("logits", "mass", "minus_logit", "n_tokens", *more):
        a, b = getattr(one, name), getattr(two, name)
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


def test_pickles_are_refused() -> None:
    data = io.BytesIO()
    np.savez(data, logits=np.array([Path("x")], dtype=object))
    with pytest.raises(ValueError, match="pickle"):
        subprocess.get_scores(({"top_token": []}, data.getvalue()))
    with pytest.raises(ValueError, match="pickle|zip|Cannot load"):
        subprocess.get_scores(({"top_token": []}, pickle.dumps([1])))


@pytest.mark.parametrize(
    "noise",
    [
        b"INFO 11-21 loading weights ...........",
        struct.pack(">QQ", 2, 0) + b"[]",
        struct.pack(">QQ", 2, 0) + b"{x",
    ],
)
def test_noise_is_no_frame(noise: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        taken(noise)


@pytest.mark.parametrize("cut", [0, 5, 17, 20])
def test_a_frame_cut_short_is_the_end(cut: int) -> None:
    with pytest.raises(EOFError):
        taken(subprocess.pack({"counts": {}}, b"12345")[:cut])


def test_errors_keep_their_class_and_with_it_their_exit_code() -> None:
    for error in (ModelError("no token"), OutOfMemory("too large"), InputError("a\nb")):
        back = subprocess.get_error(subprocess.put_error(error))
        assert type(back) is type(error) and str(back) == str(error) and not hasattr(back, "kind")
    narrower = subprocess.get_error(subprocess.put_error(FileError("tile-broken", "x.npz: broken")))
    assert (
        type(narrower) is InputError
        and str(narrower) == "x.npz: broken"
        and narrower.kind == "FileError"
    )  # type: ignore[attr-defined]
    for error in (
        PromptTooLong("m: 600 tokens"),
        KeyError("x"),
    ):  # none of the house: the failure of a prompt, told by its name
        back = subprocess.get_error(subprocess.put_error(error))
        assert type(back) is subprocess.FailedElsewhere and back.kind == type(error).__name__
    assert (
        type(subprocess.get_error({"error": "X", "class": "one_of", "message": ""}))
        is subprocess.FailedElsewhere
    )


def _imported(path: Path) -> set[str]:
    """What a module imports when it is imported itself: not within functions or for types."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.If):
            waiting += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("engine", ["hf.engine", "vllm"])
def test_an_engine_of_another_environment_needs_little_there(engine: str) -> None:
    """Its process imports none of what only the rest of the package needs."""
    root = Path(subprocess.__file__).parents[2]
    waiting, seen = {subprocess.__name__, f"sdgbias.engines.{engine}"}, set[str]()
    while waiting:
        name = waiting.pop()
        parts = name.split(".")
        seen |= {name, parts[0]}
        if parts[0] != "sdgbias":
            continue
        path = root.joinpath(*parts)
        files = [path / "__init__.py", path.with_suffix(".py")]
        files += [parent / "__init__.py" for parent in path.parents if root in parent.parents]
        for file in filter(Path.is_file, files):
            waiting |= _imported(file) - seen
    assert {"numpy", "sdgbias.types"} <= seen
    assert not seen & {"pandas", "duckdb", "pyarrow", "scipy", "numba", "typer"}
