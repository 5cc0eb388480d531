"""A repository whose model_type no library knows: it holds the code of its configuration, model and
processor, which `auto_map` names, around the weights of a small LLaVA."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText

from tests.builders import families

CODE = """
from transformers import LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor


class NewConfig(LlavaConfig):
    model_type = "newvl"


class NewForAnswers(LlavaForConditionalGeneration):
    config_class = NewConfig


class NewProcessor(LlavaProcessor):
    pass
"""


def write(folder: Path) -> tuple[Path, Path]:
    """(a LLaVA as transformers knows it, the same as a repository with code of its own, whose
    auto_map lists the model under AutoModel)."""
    plain = families.write_small(folder / "plain", "llava")
    own = families.write_small(folder / "own", "llava")
    # a type that the library doesn't know has its weights under the names that its modules have
    weights = AutoModelForImageTextToText.from_pretrained(own).state_dict()
    [file] = own.glob("*.safetensors")
    save_file({name: weight.clone() for name, weight in weights.items()}, file, {"format": "pt"})
    (own / "code_of_newvl.py").write_text(CODE, encoding="utf-8")
    change(own / "config.json", model_type="newvl", architectures=["NewForAnswers"])
    list_model(own, "AutoModel")
    maps = {"AutoProcessor": "code_of_newvl.NewProcessor"}
    change(own / "processor_config.json", processor_class="NewProcessor", auto_map=maps)
    return plain, own


def list_model(folder: Path, name: str) -> None:
    """Lists the repository's model under this auto class alone."""
    maps = {"AutoConfig": "code_of_newvl.NewConfig", name: "code_of_newvl.NewForAnswers"}
    change(folder / "config.json", auto_map=maps)


def change(path: Path, **settings: Any) -> None:
    """Sets these values in a JSON file."""
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**values, **settings}), encoding="utf-8")
