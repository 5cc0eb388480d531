"""The record files of the authors' release: exact lines, every fault under its rule's name, what a
foreign record is filled with."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from sdgbias.benchmark.card.intended_use import intended_use
from sdgbias.benchmark.release import import_ as release_import
from sdgbias.benchmark.release.authors import PARTS
from sdgbias.benchmark.release.export import dump, export, own_record
from sdgbias.benchmark.release.import_ import import_
from sdgbias.benchmark.splits import authors_split
from sdgbias.errors import InputError, UsageError
from sdgbias.types import Task

Record = dict[str, Any]
#: Alters the records of a file, given the file's name.
Change = Callable[[str, list[Record]], list[Record]]
Make = Callable[..., Path]
N = 26


def picture(seed: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (8, 12, 3), dtype=np.uint8)).save(
        out, "PNG"
    )
    return out.getvalue()


def mcq(number: int, test: str) -> Record:
    context = "\nContext: Given: urban=Rural" if test in ("T1", "T2") else ""
    options = {"A": "few", "B": "some", "C": "many"}
    shown = "\nOptions: A. few; B. some; C. many\nVALID OPTIONS: A, B, C"
    ids = {"id": 10 * number, "item_id": number, "image": f"images/{number:02d}.png"}
    question = {"question": f"Question: How many?{context}{shown}", **options}
    theirs = {"indicator": "Stunting in children under 5", "theirs": {"kept": [1, None]}}
    return {**ids, **question, "answer": "ABC"[number % 3], **theirs}


def number(item: int, test: str) -> Record:
    question = {"item_id": item, "image": f"images/{item:02d}.png", "question": "How heavy?"}
    return {**question, "answer": 20.5 + item, "target": "women_bmi"}


@pytest.fixture
def release(tmp_path: Path) -> Make:
    """A foreign release of N items; `change(name, records)` alters the records of a file before
    they are written."""

    def make(change: Change = lambda name, records: records, only: str = "") -> Path:
        folder = tmp_path / "release"
        for name in ("data", "images"):
            (folder / name).mkdir(parents=True)
        for at in range(N):
            (folder / "images" / f"{at:02d}.png").write_bytes(picture(at))
        for name, (task, test) in PARTS.items():
            of_task = mcq if task is Task.MCQ else number
            lines = map(json.dumps, change(name, [of_task(at, test.value) for at in range(N)]))
            if name.startswith(only):
                (folder / "data" / f"{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
        return folder

    return make


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def notes(out: Path) -> dict[str, Any]:
    written: dict[str, Any] = json.loads((out / "items_notes.json").read_text())["release"]
    return written


def kinds(out: Path, *names: str) -> list[str]:
    """What kind of questions the import saw in some files."""
    return [notes(out)["files"][name]["question"] for name in names]


def edited(item: int, files: str = "mcq", **fields: Any) -> Change:
    """Replace fields of one item in every file whose name starts with `files`; None removes a
    field."""

    def change(name: str, records: list[Record]) -> list[Record]:
        if name.startswith(files):
            records[item] = {k: v for k, v in {**records[item], **fields}.items() if v is not None}
        return records

    return change


def all_of(files: str, change: Callable[[str, Record], Record]) -> Change:
    """Every record of the files whose name starts with `files`, changed."""
    return lambda name, records: (
        [change(name, r) for r in records] if (name.startswith(files)) else records
    )


def read(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(folder / f"{name}.parquet")


def prompt_of(folder: Path, task: str, test: str, item: int) -> str:
    key = ["task", "test", "item_id"]
    return str(read(folder, "prompts").set_index(key).sort_index()["text"][task, test, item])


# ----------------------------------------------------------------------
# lines


def test_a_record_has_the_authors_fields_first_and_omits_those_without_a_value() -> None:
    item = {"item_id": 7, "question": "How many?", "option_a": 'a"\\\n\u00e9/', "option_b": "b"}
    item |= {"option_c": "", "answer": "A", "value": 0.1, "year": 2012, "tolerance": None}
    item |= {"photo_id": "", "paths": ["images/x.png"]}

    line = dump(own_record(Task.MCQ, "T1", item, "Question: How many?"))

    assert line == (
        '{"id": "mcq_T1_7", "item_id": 7, "image": "images/x.png", "question": "Question: How'
        ' many?", "A": "a\\"\\\\\\n\u00e9/", "B": "b", "answer": "A", "level": "T1", "task": "mcq",'
        ' "num_options": 2, "item_question": "How many?", "value": 0.1, "year": 2012}'
    )


# ----------------------------------------------------------------------
# what foreign records become


def test_blanks_are_filled_where_something_is_known(release: Make, out: Path) -> None:
    def change(name: str, records: list[Record]) -> list[Record]:
        for r in records[6:]:
            r["indicator"] = "Homelessness"
        records[2]["split"] = "VAL"
        records[1] |= {"answer": "b", "polarity": "up"} if name.startswith("mcq") else {}
        records[0]["cluster_id"] = "NI-2012-6#-00000007"
        records[0]["urban"], records[1]["urban"] = "Urban", "rural"
        return records

    lines = import_(release(change), out)
    items, unknown = read(out, "items_mcq"), N - 6
    assert list(items["polarity"]) == ["lower"] * 6 + [""] * unknown
    assert list(items["indicator"]) == ["stunting"] * 6 + ["Homelessness"] * unknown
    assert list(items["answer"]) == [mcq(at, "T1")["answer"] for at in range(N)]
    assert set(items["unit"][:6]) == {"% of children under 5"}
    assert set(items["pillar"]) == {"Health & Nutrition", ""}
    assert list(items["question"]) == ["How many?"] * N
    by_rule = list(authors_split("mcq", range(N)))
    assert list(items["split"]) == [*by_rule[:2], "val", *by_rule[3:]]
    place = ["NI-2012-6#-00000007", "NI", "NER", 2012]
    assert items.loc[0, ["cluster_id", "cname", "iso3", "year"]].tolist() == place
    assert list(items["urban"][:3]) == ["U", "R", ""]
    assert set(read(out, "clusters")["survey"]) == {"NI-2012-6#", ""}
    assert set(read(out, "items_regression")["tolerance"]) == {1.0}
    assert any(f"{unknown} multiple-choice items" in line for line in lines)
    said = {"indicators_not_ours": {"Homelessness": unknown}, "split_by_rule": N - 1}
    assert notes(out)["mcq"] == said


def test_complete_questions_stay_and_others_are_completed(release: Make, out: Path) -> None:
    """A context that came with the question is not written twice; half of a file decides."""

    def change(name: str, r: Record) -> Record:
        bare = r["question"].split("\nOptions")[0].removeprefix("Question: ")
        is_bare = name in ("mcq_T1", "mcq_T4") or (name, r["item_id"] < N // 2) == ("mcq_T3", True)
        is_bare |= name == "mcq_T5" and r["item_id"] <= N // 2
        return {**r, "question": bare, "urban": "R"} if is_bare else r

    lines = import_(release(all_of("mcq", change)), out)
    of_mcq = kinds(out, *(f"mcq_T{test}" for test in range(1, 6)))
    assert of_mcq == ["with context", "complete", "complete", "bare", "bare"]
    assert "question complete: mcq_T2, mcq_T3" in lines
    assert prompt_of(out, "mcq", "T2", 3) == mcq(3, "T2")["question"]
    options = "\nOptions: A. few; B. some; C. many\nVALID"
    given = "Question: How many?\nContext: Given: urban=Rural"
    assert prompt_of(out, "mcq", "T1", 0).startswith(given + options)
    consider = "Context: You may consider: asset_index, sanitation_index, urban\nOptions"
    assert consider in prompt_of(out, "mcq", "T4", 0)
    bare = prompt_of(out, "regression", "T5", 3)
    assert bare.startswith("Question: How heavy?\nAnswer strictly")


def test_t1_alone_is_enough(release: Make, tmp_path: Path, out: Path) -> None:
    folder = release(only="mcq_T1")
    (folder / "release.json").write_text('{"records": ["of another tool"]}')
    lines = import_(folder, out)
    assert "Missing files: mcq_T2, mcq_T3, mcq_T4, mcq_T5, regression_T2, regression_T5" in lines
    prompts = read(out, "prompts")
    assert set(prompts["test"]) == {"T1", "T5"}
    bare = "Question: How many?\nOptions: A. few; B. some; C. many\nVALID OPTIONS: A, B, C"
    assert set(prompts.loc[prompts["test"] == "T5", "text"]) == {bare}
    export(out, tmp_path / "again")
    assert [path.stem for path in (tmp_path / "again" / "data").iterdir()] == ["mcq_T1"]


def test_nan_is_a_field_without_a_value(release: Make, out: Path) -> None:
    """As pandas and Python write the fields that a record lacks."""
    nan = dict.fromkeys(("C", "indicator", "target", "split", "cluster_id"), float("nan"))

    def change(name: str, records: list[Record]) -> list[Record]:
        lacking = edited(0, C=nan["C"])(name, records)
        return [{**nan, **r, "question": f"Which: NaN, or? {r['question']}"} for r in lacking]

    import_(release(change), out)
    assert read(out, "items_mcq")["question"].str.contains("Which: NaN, or").all()
    for name in ("items_mcq", "items_regression"):
        assert not read(out, name).isin(["NaN"]).any(axis=None)
    assert read(out, "items_mcq")["option_c"].tolist() == ["", *["many"] * (N - 1)]


# ----------------------------------------------------------------------
# faults


def without(item: int, file: str) -> Change:
    return lambda name, records: [r for r in records if (name, r["item_id"]) != (file, item)]


def added(item: int, file: str, **fields: Any) -> Change:
    """One more record of an item in a file."""
    return lambda name, records: (
        [*records, {**records[item], **fields}] if name == file else records
    )


FEW = "Question: How few?\nOptions: A. few; B. some; C. many"
#: One fault an item, item 0 first; files and folders of pictures are made by `spoil_pictures`.
FAULTS = [
    ("missing-modality", edited(0, image="images/nowhere.png")),
    ("missing-modality", edited(1, image=None, images=[])),
    ("image-outside-folder", edited(2, image="../secret.png")),
    ("image-outside-folder", edited(3, image="/etc/hostname")),
    ("broken-image", edited(4, image="data/mcq_T1.jsonl")),
    ("answer-not-an-option", edited(5, answer="D")),
    ("answer-not-an-option", edited(6, C=None, answer="C")),
    ("invalid-options", edited(7, B=None, answer="A")),
    ("invalid-options", edited(8, A="many")),
    ("invalid-split", edited(9, split="train")),
    ("inconsistent-item", edited(10, "mcq_T3", question=FEW)),
    ("inconsistent-item", edited(11, "mcq_T3", A="none")),
    ("inconsistent-item", edited(12, "mcq_T3", image="images/05.png")),
    ("conflicting-records", added(13, "mcq_T2", id=-7)),
    ("invalid-options", edited(14, D="none of these")),
    ("invalid-options", edited(15, C="some")),
    ("incomplete-item", without(16, "mcq_T2")),
    ("broken-image", edited(17, image="images/cut.jpg")),
    ("broken-image", edited(18, image="images/cut.png")),
    ("missing-modality", edited(19, image="images/folder.png")),
    ("image-outside-folder", edited(20, image="images/link.png")),
    ("no-question", edited(21, question=None)),
    ("duplicate-record", added(22, "mcq_T1")),  # one of the two is kept
    ("no-item-id", added(23, "mcq_T1", item_id="1.5")),  # the item is kept
]
OF_NUMBERS = [edited(1, "regression", answer="many"), edited(2, "regression", answer="Infinity")]


def spoil_pictures(images: Path) -> None:
    whole = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(whole, "JPEG")
    (images / "cut.jpg").write_bytes(whole.getvalue()[:-200])
    (images / "cut.png").write_bytes(picture(2)[:-30])
    (images / "folder.png").mkdir()
    (images.parent.parent / "secret.png").write_bytes(picture(4))
    (images / "link.png").symlink_to(images.parent.parent / "secret.png")


def test_a_broken_item_leaves_with_its_rule_and_no_other(release: Make, out: Path) -> None:
    def change(name: str, records: list[Record]) -> list[Record]:
        no_list = edited(N - 1, images=[])  # its image is the one named by `image`
        for fault in (*(fault for _, fault in reversed(FAULTS)), *OF_NUMBERS, no_list):
            records = fault(name, records)
        return records

    folder = release(change)
    spoil_pictures(folder / "images")
    import_(folder, out)
    rows = read(out, "quarantine/release")
    rules = {("items_mcq", str(at)): rule for at, (rule, _) in enumerate(FAULTS[:-1])}
    rules |= {("items_regression", key): "answer-not-a-number" for key in ("1", "2")}
    rules |= {("items_mcq", f"mcq_T1 line {N + 1}"): "no-item-id"}
    assert rows.set_index(["table", "key"])["rule"].to_dict() == rules and len(rows) == len(rules)
    kept = set(range(len(FAULTS) - 2, N))
    assert set(read(out, "items_mcq")["item_id"]) == kept
    for name in ("prompts", "records"):
        assert set(read(out, name).query("task == 'mcq'")["item_id"]) == kept
    assert len(read(out, "items_regression")) == N - len(OF_NUMBERS)
    stored = pd.concat(map(pd.read_parquet, (out / "images").glob("*.parquet")))
    assert sorted(stored["image_id"]) == sorted(read(out, "images")["image_id"])


def test_texts_that_all_differ_are_not_compared(release: Make, out: Path) -> None:
    """A release whose context stands inside the question must not lose every item of that task to
    inconsistent-item."""
    differing = all_of("mcq", lambda name, r: {**r, "question": f"In {name}: how many?"})
    other = edited(4, "regression_T2", question="How light?")
    import_(release(lambda name, records: other(name, differing(name, records))), out)
    assert read(out, "quarantine/release").to_numpy().tolist() == [
        ["items_regression", "4", "inconsistent-item", "differs between files: question"]
    ]
    assert notes(out)["questions_not_compared"] == ["mcq"]


def test_order_of_lines_and_names_of_folders_change_no_table(release: Make, tmp_path: Path) -> None:
    folder = release()
    import_(folder, tmp_path / "one")
    folder = folder.rename(tmp_path / "re *[l]?")
    for path in (folder / "data").iterdir():
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(reversed(lines)))
    import_(folder, tmp_path / "two? [2]")
    one, two = tree(tmp_path / "one"), tree(tmp_path / "two? [2]")
    for name in ("items_mcq", "items_regression", "prompts", "images", "clusters"):
        assert one[f"{name}.parquet"] == two[f"{name}.parquet"]


def rewritten(damage: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """A folder whose mcq_T2.jsonl is damaged."""

    def spoil(folder: Path) -> None:
        path = folder / "data" / "mcq_T2.jsonl"
        path.write_bytes(damage(path.read_bytes()))

    return spoil


REFUSED: list[tuple[Callable[[Path], object], str]] = [
    (rewritten(lambda data: data[:-20]), f"mcq_T2.jsonl line {N}: no JSON record"),
    (rewritten(lambda data: b"[1, 2]\n" + data), "mcq_T2.jsonl line 1: no JSON record"),
    (rewritten(lambda data: b"\n" + data.replace(b"{", b"", 1)), "line 2: no JSON record"),
    (rewritten(lambda data: b""), "mcq_T2.jsonl: no record in it"),
    (rewritten(lambda data: b"\n\n"), "no record in it"),
    (rewritten(lambda data: data + b'{"A": "\xff\xfe"}\n'), f"line {N + 1}: no JSON record"),
    (rewritten(lambda data: data.replace(b"{", b'{"answer": "A", ', 1)), "line 1: no JSON record"),
    (rewritten(lambda data: data.replace(b'"answer"', b'"Answer"')), "has to be spelt 'answer'"),
    (
        lambda folder: (folder / "data").rename(folder / "files"),
        "no data file; expected data/mcq_T1",
    ),
    (lambda folder: (folder / "images").rename(folder / "pictures"), "no usable item"),
]


@pytest.mark.parametrize(("spoil", "said"), REFUSED)
def test_what_can_not_be_imported_is_one_line(
    release: Make, out: Path, spoil: Callable[[Path], object], said: str
) -> None:
    folder = release()
    spoil(folder)
    with pytest.raises(InputError, match=said) as caught:
        import_(folder, out)
    assert "\n" not in str(caught.value)
    assert not (out / "benchmark.json").exists()


def test_an_interrupted_import_is_taken_up_again_and_other_files_are_left_alone(
    release: Make, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = release()
    (tmp_path / "thesis.txt").write_text("kept")
    with pytest.raises(UsageError, match="not empty"):
        import_(folder, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "kept"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(release_import, "build_card", Mock(side_effect=KeyboardInterrupt))
        import_(folder, out)
    assert not (out / "benchmark.json").exists()
    import_(folder, out)
    import_(folder, tmp_path / "whole")
    assert tree(out) == tree(tmp_path / "whole")


def tree(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


# ----------------------------------------------------------------------
# and back again


def test_foreign_records_come_back_byte_for_byte(release: Make, tmp_path: Path, out: Path) -> None:
    folder = release()
    Image.new("RGB", (3, 3), "black").save(folder / "images" / "blank.png")
    import_(folder, out)
    export(out, tmp_path / "again", "blank-image")
    before, after = tree(folder), tree(tmp_path / "again")
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {
        "release.json",
        *(f"views/{name}{x}.jsonl" for name in PARTS for x in ("", "_text")),
    }
    assert json.loads(after["release.json"])["intended_use"] == intended_use()
    told = [json.loads(line) for line in after["views/regression_T2_text.jsonl"].splitlines()]
    assert {r["image"] for r in told} == {"images/blank.png"}
    assert all(r["question"].endswith("Round to 1 decimal place.\nIgnore the image.") for r in told)


def test_paths_become_distinct_clusters(release: Make, out: Path) -> None:
    paths = ["images/a.png", "images/b.png", "images/b.jpg", "other/a.png"]

    def change(name: str, r: Record) -> Record:
        return {**r, "image": paths[r["item_id"]]} if r["item_id"] < len(paths) else r

    folder = release(all_of("", change))
    (folder / "other").mkdir()
    for path in paths:
        (folder / path).write_bytes(picture(len(path)))
    import_(folder, out)
    places = list(read(out, "items_mcq")["cluster_id"][:5])
    assert places == ["a", "images/b.png", "images/b.jpg", "other/a", "04"]
