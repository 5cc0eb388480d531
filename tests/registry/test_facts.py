"""What a folder is told to be that is no model in transformers' format."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdgbias.errors import RegistryError
from sdgbias.registry.propose import propose
from tests.builders.hub_repositories import SMALL


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("adapter_config.json", "an adapter .*without its model; merge the two"),
        ("model_index.json", "a diffusers pipeline .*no text; choose a model that answers"),
        ("params.json", "maker's own format .*transformers' format, or convert"),
        ("snapshots", "hub's cache; give the folder of a commit in its snapshots"),
        ("notes.txt", "no config.json; choose a model in transformers' format"),
    ],
)
def test_a_folder_without_config_json_is_told_as_what_it_is(
    name: str, words: str, root: Path
) -> None:
    folder = root / "m"
    folder.mkdir()
    (folder / name).write_text("{}", encoding="utf-8")
    with pytest.raises(RegistryError, match=words):
        propose(f"path:{folder}", root, SMALL)
