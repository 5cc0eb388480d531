"""Refusals word for word: the kind and the line of each stand in refusals.yaml beside its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import yaml

from sdgbias.errors import SdgbiasError

Refusal = Callable[..., AbstractContextManager[None]]


def refusal_of(request: pytest.FixtureRequest, folder: Path) -> Refusal:
    """`with refusal():` around what must end in one of the package's errors, of one line. Where a
    test has several, each is named; what varies (``folder`` is FOLDER) is given as NAME=text."""
    golden = request.path.with_name("refusals.yaml")
    test = request.node.originalname.removeprefix("test_").replace("_", " ")
    parameters = getattr(request.node, "callspec", None)

    @contextmanager
    def refusal(name: str = "", **varying: object) -> Iterator[None]:
        with pytest.raises(SdgbiasError) as caught:
            yield
        line = str(caught.value)
        for placeholder, text in {**varying, "FOLDER": folder}.items():
            line = line.replace(str(text), placeholder)
        case = name or (parameters.id if parameters else "refused")
        found = f"{type(caught.value).__name__}: {line}"
        stored = yaml.safe_load(golden.read_text("utf-8")) if golden.is_file() else {}
        of_test = stored.setdefault(test, {})
        if request.config.getoption("--write-golden"):
            of_test[case] = found
            text = yaml.safe_dump(stored, width=96, allow_unicode=True)
            golden.write_text(text, encoding="utf-8")
        assert "\n" not in line, line
        assert found == of_test.get(case), f"{test}, {case}: another refusal (--write-golden)"

    return refusal
