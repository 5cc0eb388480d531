"""Chat templates: a fixed date, options of the registry entry, and what of it is in the
fingerprint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sdgbias.engines.hf import prompting
from sdgbias.engines.hf.engine import HuggingFace
from sdgbias.engines.hf.processor import load_processor
from sdgbias.engines.hf.prompting import ChatTemplate, probe_hash, render
from sdgbias.errors import ModelError, RegistryError
from sdgbias.registry import entries
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import Prompt
from tests.builders import families
from tests.builders.commands import ok, sdgbias
from tests.builders.families import write_small
from tests.builders.pictures import noise

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


def spec(folder: Path, **options: object) -> ModelSpec:
    return ModelSpec("m", "M", "hf", f"path:{folder}", "local", "enabled", options=options)


@pytest.fixture
def dated(tmp_path: Path) -> Path:
    folder = write_small(tmp_path / "dated", "llava")
    (folder / "chat_template.jinja").write_text(DATED, encoding="utf-8")
    return folder


def test_the_date_in_a_template_never_moves(dated: Path) -> None:
    text = render(load_processor(spec(dated), Path()), Prompt("Q?", "ABC"))
    assert text.startswith("<s>Today Date: 26 Jul 2024 2024\n")


def test_options_reach_the_template_and_the_fingerprint(
    dated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"enable_thinking": False, "system": "Be brief.", "answer_prefix": " The answer is"}
    plain, other = (
        HuggingFace(spec(dated), Path()),
        HuggingFace(spec(dated, template=asked), Path()),
    )
    text = other.render(Prompt("Q?", "ABC"))
    assert "<think>" in plain.render(Prompt("Q?", "ABC")) and "<think>" not in text
    assert text.endswith("system: Be brief.user: Q?assistant: The answer is")
    assert plain.fingerprint != other.fingerprint
    monkeypatch.setattr(prompting, "TODAY", prompting.TODAY.replace(year=2025))
    assert HuggingFace(spec(dated), Path()).fingerprint != plain.fingerprint


def test_an_argument_that_the_template_does_not_read_is_refused(dated: Path) -> None:
    with pytest.raises(RegistryError, match="doesn't read reasoning_effort.*models prompt m"):
        HuggingFace(spec(dated, template={"reasoning_effort": "low"}), Path())


def test_the_probe_hash_sees_the_picture(dated: Path) -> None:
    processor = load_processor(spec(dated), Path())
    before = probe_hash(processor, ChatTemplate())
    processor.chat_template = processor.chat_template.replace("<image>", "<image>\n")
    assert probe_hash(processor, ChatTemplate()) != before


def test_settings_of_the_image_processor(tmp_path: Path) -> None:
    folder = write_small(tmp_path / "qwen", "qwen2_5_vl")
    small = {"max_pixels": 28 * 28 * 4, "min_pixels": 28 * 28}
    plain = load_processor(spec(folder), Path())
    fewer = load_processor(spec(folder, processor=small), Path())
    sizes = [p.image_processor.size["longest_edge"] for p in (plain, fewer)]
    assert sizes == [84 * 84, 28 * 28 * 4]
    with pytest.raises(RegistryError, match="has no setting max_pixel; valid: .*max_pixels"):
        load_processor(spec(folder, processor={"max_pixel": 1}), Path())
    one, two = (HuggingFace(spec(folder, **o), Path()) for o in ({}, {"processor": small}))
    assert one.fingerprint != two.fingerprint


def test_a_prompt_is_printed_as_the_model_gets_it(small_benchmark: Path) -> None:
    command = ("models", "prompt", "tiny-llava", "--benchmark", small_benchmark)
    shown = ok(*command, "--test", "T2", "--view", "full")
    count = int(re.search(r"picture tokens: (\d+) of \d+ in all", shown)[1])  # type: ignore[index]
    assert count == 36
    root = entries.find_root()
    processor = load_processor(entries.load(root, "tiny-llava"), root)
    assert re.search(r"candidate 'A': ids [\d ]+\(", shown)
    line = next(x for x in shown.splitlines() if re.fullmatch(r"[\d ]+", x))
    text = processor.tokenizer.decode(list(map(int, line.split())))
    assert text in shown and "a number begins with a digit" in shown
    bare = ok(*command, "--view", "q_only")
    assert "picture tokens: none" in bare and "Context:" not in bare
    wrong = sdgbias(*command, "--item", "nowhere")
    assert wrong.returncode == 3 and "no item 'nowhere'; the first are" in wrong.stderr
    assert sdgbias(*command, "--view", "half").returncode == 2


def test_a_model_without_a_chat_template(tmp_path: Path) -> None:
    folder = write_small(tmp_path / "pali", "paligemma")
    with pytest.raises(RegistryError, match="no chat template"):
        HuggingFace(spec(folder, template={"system": "x"}), Path())
    prefixed = HuggingFace(spec(folder, template={"answer_prefix": " A:"}), Path())
    assert prefixed.render(Prompt("Q", "ABC")) == "Q A:"


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}USER: {{ m['content'] }}{% endfor %} A:",
        "{{ 'USER: ' + messages[0]['content'] + ' A:' }}",
    ],
    ids=["writes", "joins"],
)
def test_a_template_that_takes_content_as_one_text_gets_the_mark_of_the_picture(
    template: str, tmp_path: Path
) -> None:
    folder = write_small(tmp_path / "m", "llava")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    engine = HuggingFace(spec(folder), Path())
    shown = Prompt("Q?", "ABC", (noise(1),), "one")
    assert engine.render(shown) == "USER: <image>\nQ? A:"
    assert engine.render(Prompt("Q?", "ABC")) == "USER: Q? A:"
    seen, other = engine.candidate_scores(
        [shown, Prompt("Q?", "ABC", (noise(2),), "two")]
    ).logits.tolist()
    assert seen != other


def test_a_template_that_leaves_the_question_out_is_refused(dated: Path) -> None:
    (dated / "chat_template.jinja").write_text("{{ messages[0]['role'] }}", encoding="utf-8")
    with pytest.raises(ModelError, match="leaves the question out; repair") as raised:
        HuggingFace(spec(dated), Path())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("times", [0, 2])
@pytest.mark.parametrize("name", ["llava", "idefics3"])
def test_a_template_that_marks_a_picture_never_or_twice_is_refused(
    name: str, times: int, tmp_path: Path
) -> None:
    folder = families.write(tmp_path / "m", name)
    template = folder / "chat_template.jinja"
    text = template.read_text(encoding="utf-8").replace("<image>", "<image>" * times)
    template.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=f"<image> {times} times for one picture.*; repair"):
        HuggingFace(spec(folder), Path())
    HuggingFace(replace(spec(folder), views=("q_only", "ctx_q")), Path())  # shown no picture


def test_a_processor_that_finds_the_place_of_a_picture_itself_is_taken(tmp_path: Path) -> None:
    """Qianfan-OCR's template writes another mark than the one that its processor names."""
    folder = families.write(tmp_path / "m", "qianfan_ocr")
    shown = Prompt("Q?", "ABC", (noise(1),), "one")
    engine = HuggingFace(spec(folder), Path())
    assert engine.processor.image_token not in engine.render(shown)
    assert engine.candidate_scores([shown]).n_tokens[0] > 200


_PLAIN = "{% for m in messages %}USER: {{ m['content'] }}{% endfor %} A:"


def _held_by_tokenizer(folder: Path, template: object) -> None:
    (folder / "chat_template.jinja").unlink()
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "chat_template": template}), encoding="utf-8")


def _in_json(folder: Path, template: object) -> None:
    (folder / "chat_template.jinja").unlink()
    whole = json.dumps({"chat_template": template})
    (folder / "chat_template.json").write_text(whole, encoding="utf-8")


@pytest.mark.parametrize("put", [_held_by_tokenizer, _in_json])
@pytest.mark.parametrize(
    "template",
    [
        _PLAIN,
        [{"name": "rag", "template": "no"}, {"name": "default", "template": _PLAIN}],
        [{"name": "chat", "template": _PLAIN}],
    ],
    ids=["one", "named", "only"],
)
def test_a_template_is_found_wherever_a_repository_holds_it(
    put: Callable[[Path, object], None], template: object, tmp_path: Path
) -> None:
    folder = write_small(tmp_path / "m", "llava")
    put(folder, template)
    shown = Prompt("Q?", "ABC", (noise(1),), "one")
    assert render(load_processor(spec(folder), Path()), shown) == "USER: <image>\nQ? A:"


def test_templates_of_which_none_is_the_default_are_named(tmp_path: Path) -> None:
    folder = write_small(tmp_path / "m", "llava")
    _in_json(folder, [{"name": name, "template": _PLAIN} for name in ("rag", "tool_use")])
    with pytest.raises(ModelError, match="named rag, tool_use, none of them default"):
        load_processor(spec(folder), Path())


def test_a_tokenizers_template_that_shows_no_picture_is_left_alone(tmp_path: Path) -> None:
    """As language models leave it behind in models that were made of them."""
    folder = write_small(tmp_path / "m", "llava")
    _held_by_tokenizer(folder, "{% for m in messages %}{{ m['role'] }}{% endfor %}")
    assert load_processor(spec(folder), Path()).chat_template is None


def test_a_processor_that_names_no_mark_takes_the_template_of_its_tokenizer(tmp_path: Path) -> None:
    """GIT and Kosmos put pictures in themselves, so there is no mark to look for."""
    folder = families.write(tmp_path / "m", "git")
    shown = Prompt("Q?", "ABC", (noise(1),), "one")
    text = render(load_processor(spec(folder), Path()), shown)
    assert text == "USER: <image>\nQ?ASSISTANT:"
    _held_by_tokenizer(folder, "{% for m in messages %}{{ m['role'] }}{% endfor %}")
    assert load_processor(spec(folder), Path()).chat_template is None
