"""What a repository's files make of a prompt: chat templates and processors of several styles, and
the class that loads the model."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import PreTrainedConfig

from sdgbias.engines import load
from sdgbias.engines.hf import chat as chatting
from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.engines.hf.load import further_layers, language, load_model
from sdgbias.engines.hf.processor import fill_from_config, load_chat, load_processor
from sdgbias.errors import ModelError
from sdgbias.methods.answers import parse_number
from sdgbias.registry import entries
from sdgbias.registry.propose import Request, propose
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, IMAGE_FREE, Prompt
from tests.builders import families, language_models, own_code, thinker
from tests.builders.bare_model import four_views
from tests.builders.commands import ok, sdgbias
from tests.builders.hub_repositories import SMALL, saved
from tests.builders.pictures import noise
from tests.builders.refusals import Refusal
from tests.builders.sample_prompts import sample_prompts

ROOT = entries.find_root()
QUESTION, SHOWN = Prompt("Q?", "ABC"), Prompt("Q?", "ABC", (noise(1),), "one")
#: As Llama 3's own: a system block that says what day it is.
DATED = (
    "{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    "{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}{%- endif %}"
    "<s>Today Date: {{ date_string }} {{ strftime_now('%Y') }}\n"
    "{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}"
    "{% for m in messages %}{{ m['role'] }}: {% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}<image>{% else %}{{ p['text'] }}{% endif %}{% endfor %}\n"
    "{% endfor %}assistant:"
)
PLAIN = "{% for m in messages %}USER: {{ m['content'] }}{% endfor %} A:"
JOINED = "{{ 'USER: ' + messages[0]['content'] + ' A:' }}"
SILENT = "{% for m in messages %}{{ m['role'] }}{% endfor %}"


def spec(folder: Path, **options: object) -> ModelSpec:
    return ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled", options=options)


def with_template(folder: Path, template: str) -> Path:
    families.write_small(folder, "llava")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def dated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_template(tmp_path_factory.mktemp("dated"), DATED)


def test_options_reach_the_template_and_the_fingerprint_and_its_date_never_moves(
    dated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"enable_thinking": False, "system": "Be brief.", "answer_prefix": " The answer is"}
    plain, other = (HuggingFace(spec(dated, **o), Path()) for o in ({}, {"template": options}))
    assert plain.chat.render(QUESTION).startswith("<s>Today Date: 26 Jul 2024 2024\n<think>")
    text = other.chat.render(QUESTION)
    assert "<think>" not in text
    assert text.endswith("system: Be brief.user: Q?assistant: The answer is")
    assert plain.fingerprint != other.fingerprint
    monkeypatch.setattr(chatting, "TODAY", chatting.TODAY.replace(year=2025))
    assert HuggingFace(spec(dated), Path()).fingerprint != plain.fingerprint
    before = plain.chat.probe_hash()
    plain.processor.chat_template = DATED.replace("<image>", "<image>\n")
    assert plain.chat.probe_hash() != before, "the picture's place is in it"


@pytest.mark.parametrize("template", [PLAIN, JOINED], ids=["writes", "joins"])
def test_a_template_that_takes_content_as_one_text_gets_the_mark_of_the_picture(
    template: str, tmp_path: Path
) -> None:
    engine = HuggingFace(spec(with_template(tmp_path / "m", template)), Path())
    assert engine.chat.render(SHOWN) == "USER: <image>\nQ? A:"
    assert engine.chat.render(QUESTION) == "USER: Q? A:"
    other = Prompt("Q?", "ABC", (noise(2),), "two")
    one, two = engine.candidate_scores([SHOWN, other]).logits.tolist()
    assert one != two


#: A template that can't be used -> its options.
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "an argument that it doesn't read": (DATED, {"template": {"reasoning_effort": "low"}}),
    "no question": ("{{ messages[0]['role'] }}", {}),
    "no mark": (DATED.replace("<image>", ""), {}),
    "two marks": (DATED.replace("<image>", "<image><image>"), {}),
    "no setting of the image processor": (DATED, {"processor": {"max_pixel": 1}}),
}


@pytest.mark.parametrize(("template", "options"), REFUSED.values(), ids=REFUSED)
def test_a_template_that_would_lose_something_is_refused(
    template: str, options: dict[str, Any], tmp_path: Path, refusal: Refusal
) -> None:
    folder = with_template(tmp_path / "m", template)
    with refusal():
        HuggingFace(spec(folder, **options), Path())


def test_a_model_that_is_shown_no_picture_needs_no_mark(tmp_path: Path) -> None:
    folder = with_template(tmp_path / "m", DATED.replace("<image>", ""))
    assert HuggingFace(replace(spec(folder), views=("q_only", "ctx_q")), Path()).fingerprint


def test_a_model_without_a_chat_template(tmp_path: Path, refusal: Refusal) -> None:
    folder = families.write_small(tmp_path / "pali", "paligemma")
    with refusal():
        HuggingFace(spec(folder, template={"system": "x"}), Path())
    prefixed = HuggingFace(spec(folder, template={"answer_prefix": " A:"}), Path())
    assert prefixed.chat.render(Prompt("Q", "ABC")) == "Q A:"


def _in_tokenizer(folder: Path, template: object) -> None:
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "chat_template": template}), encoding="utf-8")


def _in_json(folder: Path, template: object) -> None:
    whole = json.dumps({"chat_template": template})
    (folder / "chat_template.json").write_text(whole, encoding="utf-8")


NAMED = [{"name": "rag", "template": "no"}, {"name": "default", "template": PLAIN}]


@pytest.mark.parametrize(
    ("put", "template", "text"),
    [
        (_in_tokenizer, PLAIN, "USER: <image>\nQ? A:"),
        (_in_tokenizer, NAMED, "USER: <image>\nQ? A:"),
        (_in_json, PLAIN, "USER: <image>\nQ? A:"),
        (_in_json, NAMED, "USER: <image>\nQ? A:"),
        # as language models leave it behind in models that were made of them
        (_in_tokenizer, SILENT, "Q?"),
    ],
)
def test_a_template_is_found_wherever_a_repository_holds_it(
    put: Callable[[Path, object], None], template: object, text: str, tmp_path: Path
) -> None:
    folder = families.write_small(tmp_path / "m", "llava")
    (folder / "chat_template.jinja").unlink()
    put(folder, template)
    assert load_chat(spec(folder), Path()).render(SHOWN) == text


def test_named_templates_without_a_default_are_refused(tmp_path: Path) -> None:
    """The model got the bare text of each prompt, without a word."""
    folder = families.write_small(tmp_path / "m", "llava")
    (folder / "chat_template.jinja").unlink()
    _in_tokenizer(folder, NAMED[:1])
    with pytest.raises(ModelError, match="several chat templates and none is named default"):
        load_chat(spec(folder), Path())


def test_settings_of_the_image_processor_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    folder = families.write_small(tmp_path / "qwen", "qwen2_5_vl")
    small = {"max_pixels": 28 * 28 * 4, "min_pixels": 28 * 28}
    one, two = (HuggingFace(spec(folder, **o), Path()) for o in ({}, {"processor": small}))
    sizes = [e.processor.image_processor.size["longest_edge"] for e in (one, two)]
    assert sizes == [84 * 84, 28 * 28 * 4] and one.fingerprint != two.fingerprint


def test_pixels_are_pillows_beside_a_video_processor_of_torchvision(tmp_path: Path) -> None:
    """torchvision is imported beside this torch, in a new process."""
    folder = families.write_small(tmp_path / "m", "llava_onevision")
    processor = load_processor(spec(folder), Path())
    assert type(processor.image_processor).__name__.endswith("Pil")
    assert processor.video_processor is not None
    code = (
        "import sdgbias.engines, torchvision, torch;"
        " from transformers import Qwen2VLVideoProcessor;"
        " assert hasattr(torch.ops.torchvision, 'nms'); Qwen2VLVideoProcessor()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_what_counts_picture_tokens_is_taken_from_config_json(tmp_path: Path) -> None:
    """Without it each prompt with a picture failed: LLaVA as the hub had it in 2023 and 2024."""
    folder = families.write_small(tmp_path / "m", "llava")
    path = folder / "processor_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    whole = load_processor(spec(folder), Path())
    for name in ("patch_size", "vision_feature_select_strategy", "num_additional_image_tokens"):
        settings.pop(name, None)
    path.write_text(json.dumps(settings), encoding="utf-8")
    shown = {"images": [[Image.new("RGB", (56, 56))]], "text": ["<image> Q"]}
    filled = load_processor(spec(folder), Path())
    assert filled(**shown)["input_ids"] == whole(**shown)["input_ids"]
    filled.patch_size = None
    with pytest.raises(ValueError, match=r"neither .* patch_size nor config.json vision_config\."):
        fill_from_config(filled, PreTrainedConfig)


def test_a_prompt_is_printed_as_the_model_gets_it(small_benchmark: Path) -> None:
    command = ("models", "prompt", "tiny-llava", "--benchmark", small_benchmark)
    shown = ok(*command, "--test", "T2", "--view", "full")
    assert re.search(r"picture tokens: 36 of \d+ in all", shown)
    assert re.search(r"candidate 'A': ids [\d ]+\(", shown) and "a number begins with a d" in shown
    processor = load_processor(entries.load(ROOT, "tiny-llava"), ROOT)
    line = next(x for x in shown.splitlines() if re.fullmatch(r"[\d ]+", x))
    assert processor.tokenizer.decode(list(map(int, line.split()))) in shown
    bare = ok(*command, "--view", "q_only")
    assert "picture tokens: none" in bare and "Context:" not in bare
    wrong = sdgbias(*command, "--item", "nowhere")
    assert wrong.returncode == 3 and "no item 'nowhere'; the first are" in wrong.stderr


# ----------------------------------------------------------------------
# the class that loads a model


@pytest.fixture(scope="module")
def newvl(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return own_code.write(tmp_path_factory.mktemp("newvl"))


@pytest.mark.parametrize("name", ["AutoModel", "AutoModelForVision2Seq"])
def test_code_that_was_read_runs_under_any_name_of_auto_map(
    name: str, newvl: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    plain, own = newvl
    own_code.list_model(own, name)
    prompts = [four_views()[at] for at in (0, 3)]
    expected = load(spec(plain), tmp_path).candidate_scores(prompts)
    trusted: Any = load(replace(spec(own), trust_remote_code=True, notes="read by A"), tmp_path)
    assert type(trusted.model).__name__ == "NewForAnswers"
    found = trusted.candidate_scores(prompts)
    assert np.allclose(found.logits, expected.logits, atol=1e-5, equal_nan=True)
    with pytest.raises(ModelError, match="needs the repository's own code; read it"):
        load(spec(own), tmp_path)


def test_what_is_not_to_be_loaded_is_refused(
    newvl: tuple[Path, Path], root: Path, refusal: Refusal
) -> None:
    """ShieldGemma 2 is listed among the models that answer; its repository says what it is. Code of
    another repository may be other code tomorrow, whatever was read here."""
    config = {"model_type": "shieldgemma2", "vision_config": {}}
    config["architectures"] = ["ShieldGemma2ForImageClassification"]
    classifier = saved(root / "c", config)
    folder = Path(shutil.copytree(newvl[1], root / "m"))
    maps = {"AutoProcessor": "other/code--code_of_newvl.NewProcessor"}
    own_code.change(folder / "processor_config.json", auto_map=maps)
    host = replace(SMALL, language=language)
    for kind, name in (("bert", "BertForMaskedLM"), ("bart", "BartForConditionalGeneration")):
        config = {"model_type": kind, "architectures": [name], "is_encoder_decoder": kind == "bart"}
        other = saved(root / kind, config)
        with refusal(f"{kind} is loaded"):
            load_model(replace(spec(other), views=IMAGE_FREE), root)
        with refusal(f"{kind} is proposed"):
            propose(f"path:{other}", root, host)
    deep = language_models.write(root / "deep", "llama")
    own_code.change(deep / "config.json", num_hidden_layers=1)
    with refusal("more layers than config.json says"):
        load_model(replace(spec(deep), views=IMAGE_FREE), root)
    with refusal("a classifier is loaded"):
        load_model(spec(classifier), root)
    with refusal("a classifier is proposed"):
        propose(f"path:{classifier}", root, SMALL)
    with refusal("code of another repository is loaded"):
        load(replace(spec(folder), trust_remote_code=True, notes="read by A"), root)
    with refusal("code of another repository is proposed"):
        propose(f"path:{folder}", root, SMALL, Request(trust_remote_code=True, notes="read by A"))


def test_a_layer_that_guesses_further_tokens_is_none_that_is_missing() -> None:
    names, more = ["model.layers.0.mlp.weight"], "model.layers.1.mlp.weight"
    assert further_layers([more, "vision.0.weight", "head"], names) == [more]
    assert further_layers([more, "model.layers.1.eh_proj.weight"], names) == []


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"_attn_implementation": "flash_attention_2"}, id="Phi-3.5-vision"),
        {"return_dict": False},
        {"torchscript": True},
    ],
)
def test_what_config_json_asks_for_and_cannot_be_had_here_gives_way(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    plain, asking = (families.write_small(tmp_path / name, "llava") for name in "ab")
    config = json.loads((asking / "config.json").read_text(encoding="utf-8"))
    own_code.change(asking / "config.json", **asked, text_config=config["text_config"] | asked)
    engines = [load(spec(folder), tmp_path) for folder in (plain, asking)]
    np.testing.assert_array_equal(*(e.candidate_scores([QUESTION]).logits for e in engines))


@pytest.mark.skipif(not importlib.util.find_spec("accelerate"), reason="needs the extra large")
def test_a_model_that_is_placed_by_its_map_scores_as_before() -> None:
    entry = entries.load(ROOT, "tiny-llava")
    split = replace(entry, options={**entry.options, "device_map": "auto"})
    whole, placed = HuggingFace(entry, ROOT), HuggingFace(split, ROOT)
    one, two = (e.candidate_scores(sample_prompts(3)).logits for e in (whole, placed))
    np.testing.assert_array_equal(one, two)
    assert placed.fingerprint == whole.fingerprint, "where layers lie changes no score"


# ----------------------------------------------------------------------
# a model that thinks aloud


@pytest.mark.parametrize("share", [True, False])
def test_thoughts_stay_in_an_answer_marked(share: bool, tmp_path: Path) -> None:
    """Their marks are special tokens here; a template that begins or closes the thought itself is
    part of the answer, too, so that a thought that was cut is none."""
    folder = thinker.write(tmp_path / "m", thinker.ALOUD)
    prompts = [Prompt("How many?", DIGITS), Prompt("How many years?", DIGITS)]

    def answers(limit: int, **template: str) -> Any:
        engine = HuggingFace(spec(folder, template=template, share_prefix=share), Path())
        return engine.generate(prompts, ["", "1"], limit)

    whole, short = answers(8), answers(2)
    assert [text for text, _ in whole.texts] == ["<think>5</think>7"] * 2
    assert [text for text, _ in short.texts] == ["<think>5"] * 2
    cut = [[first for first, _ in found.truncated] for found in (whole, short)]
    assert cut == [[False] * 2, [True] * 2]
    assert parse_number(whole.texts[0][0]) == 7.0 and parse_number(short.texts[0][0]) is None
    begun, closed = answers(1, answer_prefix="<think>"), answers(4, answer_prefix="<think></think>")
    assert [[text for text, _ in found.texts] for found in (begun, closed)] == [
        ["<think>5"] * 2,
        ["7"] * 2,
    ]
