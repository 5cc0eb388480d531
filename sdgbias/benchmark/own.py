"""Custom questions: read and check a folder with suite.yaml and a table of items.

`read_folder` reads everything and reports every fault with file, line and advice; it never raises
because of a folder's contents. The format is described in docs/how-to/own-questions.md.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from sdgbias.benchmark.own_spec import FILE, Spec, near, read_spec
from sdgbias.benchmark.own_table import SUFFIXES, Fault, ItemTable, read_table
from sdgbias.errors import InputError
from sdgbias.files import confine
from sdgbias.progress import Progress, each, silent
from sdgbias.raw.images.composite import MAX_PIXELS, open_picture
from sdgbias.types import OPTION_LETTERS, View

SPLITS = ("val", "test")
VAL_SHARE = 0.2
#: Level of a question whose cell of a group column is empty.
UNKNOWN = "unknown"
MAX_BYTES = 64 * 2**20  # of one picture's file
#: Why a view is left out of a folder.
NO_PICTURES, NO_CONTEXT = "no question has a picture", "no question has a context"
#: Why CADE is left out.
NO_IMAGE_VIEW = "CADE needs a view with a picture, and " + NO_PICTURES
NO_VAL = "CADE is tuned on split val, and no question with a picture is in it"


@dataclass(frozen=True)
class Question:
    """One row of the table: options are the non-empty ones, answer is a letter, image a path inside
    the folder ('' none), groups the levels of the suite's group columns in their order."""

    line: int
    id: str
    text: str
    options: tuple[str, ...]
    answer: str
    image: str
    context: str
    split: str
    cluster: str
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Folder:
    """The parsed folder. spec is None when suite.yaml is unusable; with any fault the questions are
    incomplete. notes: remarks that are no faults."""

    root: Path
    spec: Spec | None
    questions: tuple[Question, ...]
    faults: tuple[Fault, ...]
    notes: tuple[str, ...] = ()

    @property
    def has_pictures(self) -> bool:
        return any(q.image for q in self.questions)

    @property
    def has_context(self) -> bool:
        return any(q.context for q in self.questions)

    @property
    def views(self) -> tuple[View, ...]:
        """The views that are possible for the folder."""
        return tuple(view for view in View if view not in self.left_out)

    @property
    def left_out(self) -> dict[View, str]:
        """View -> why it isn't possible for the folder."""
        lost = {} if self.has_pictures else {View.IMG_Q: NO_PICTURES, View.FULL: NO_PICTURES}
        return lost | ({} if self.has_context else {View.CTX_Q: NO_CONTEXT})

    @property
    def no_cade(self) -> str:
        """Why CADE is left out; '' when it isn't."""
        if not self.has_pictures:
            return NO_IMAGE_VIEW
        return "" if any(q.split == "val" and q.image for q in self.questions) else NO_VAL


def read_folder(root: Path, progress: Progress = silent) -> Folder:
    """Read a folder completely, with all its faults sorted by file and line."""
    if not root.is_dir():
        return Folder(root, None, (), (Fault(FILE, 0, f"{root} is no folder; name one"),))
    spec, faults = read_spec(root)
    if spec is None:
        return Folder(root, None, (), tuple(sorted(set(faults))))
    try:
        path = confine(root, spec.items)
        tables = sorted(p.name for p in root.iterdir() if p.suffix.lower() in SUFFIXES)
        if not path.is_file():
            raise InputError(f"{spec.items!r} is not there; {near(spec.items, tables)}")
    except InputError as error:
        faults.append(Fault(FILE, spec.line("items"), f"items: {error}"))
        return Folder(root, spec, (), tuple(sorted(set(faults))))
    table = read_table(path, spec.items)
    faults += table.faults
    missing = _missing_columns(spec, table)
    faults += missing
    questions: list[Question] = []
    if table.columns and not missing:
        questions = _questions(root, spec, table, faults, progress)
    if not questions and not faults:
        faults.append(Fault(spec.items, 0, "holds no question; add a row below the header"))
    if not faults and not spec.split:
        questions = assign_splits(spec.name, questions)
    faults += _split_faults(spec, questions, faults)
    found = Folder(root, spec, tuple(questions), tuple(sorted(set(faults))))
    return found if faults else replace(found, notes=tuple(_notes(found, spec)))


def _missing_columns(spec: Spec, table: ItemTable) -> list[Fault]:
    if not table.columns:
        return []
    return [
        Fault(
            FILE,
            spec.line(field),
            f"{field}: {spec.items} has no column {column!r}; {near(column, table.columns)}",
        )
        for field, column in spec.used()
        if column not in table.columns
    ]


def _questions(
    root: Path, spec: Spec, table: ItemTable, faults: list[Fault], progress: Progress
) -> list[Question]:
    """Every row that could be read; its faults are added to ``faults``."""
    unit = "row" if spec.items.lower().endswith(".parquet") else "line"
    seen: dict[str, int] = {}
    pictures: dict[str, str] = {}  # path -> its fault, '' when it is usable
    golds: dict[tuple[str, ...], tuple[str, int]] = {}  # prompt -> its first answer and line
    found = []
    for line, row in each(progress, "reading questions", table.rows, every=64):
        problems: list[str] = []
        if not any(row.values()):
            faults.append(Fault(spec.items, line, "is an empty row; delete it"))
            continue
        row = {**row, "": ""}  # of a column that suite.yaml doesn't name
        text, image, context = row[spec.question], row[spec.image], row[spec.context]
        for field in ("id", "question", "answer"):
            if not row[getattr(spec, field)]:
                problems.append(f"{field} (column {getattr(spec, field)!r}) is empty; fill it")
        identity = row[spec.id]
        if identity and identity in seen:
            message = f"id {identity!r} is also that of {unit} {seen[identity]}; ids are unique"
            problems.append(message)
        seen.setdefault(identity, line)
        options, faulty = _options(spec, row)
        problems += faulty
        answer = ""
        if row[spec.answer] and not faulty:
            answer, fault = letter_of(row[spec.answer], options)
            problems += filter(None, [fault])
        if image and image not in pictures:
            pictures[image] = picture_fault(root, image)
        problems += filter(None, [pictures.get(image)])
        prompt = (text, *options, image, context)
        gold, first = golds.setdefault(prompt, (answer, line)) if answer else ("", 0)
        if gold != answer:
            problems.append(
                f"answer {answer} contradicts {unit} {first}, which has {gold} for the same text,"
                " options, picture and context; keep one of the two"
            )
        split = row[spec.split]
        if spec.split and split not in SPLITS:
            shown = f"is {split!r}" if split else "is empty"
            problems.append(f"split (column {spec.split!r}) {shown}; write val or test")
        if spec.cluster_by and not row[spec.cluster_by]:
            problems.append(f"cluster_by (column {spec.cluster_by!r}) is empty; fill it")
        faults += [Fault(spec.items, line, problem) for problem in problems]
        cluster = row[spec.cluster_by] if spec.cluster_by else identity
        groups = tuple(row[name] or UNKNOWN for name in spec.groups)
        found.append(
            Question(line, identity, text, options, answer, image, context, split, cluster, groups)
        )
    return found


def _options(spec: Spec, row: dict[str, str]) -> tuple[tuple[str, ...], list[str]]:
    """(the options of a row, its faults). Only cells at the end may be empty: a missing letter in
    the middle would shift the following ones."""
    cells = [row[name] for name in spec.options]
    given = [cell for cell in cells if cell]
    problems = []
    if len(given) < 2:
        count = "1 option" if given else "no option"
        problems.append(f"has {count}; fill 2 to {len(OPTION_LETTERS)} option columns")
    elif cells[: len(given)] != given:
        gap, after = cells.index(""), max(i for i, cell in enumerate(cells) if cell)
        problems.append(
            f"option {spec.options[gap]!r} is empty and {spec.options[after]!r} is not; leave"
            " options out at the end only"
        )
    for text in sorted(set(given)):
        if given.count(text) > 1:
            names = [n for n, cell in zip(spec.options, cells, strict=True) if cell == text]
            listed = " and ".join(map(repr, names))
            problems.append(f"options {listed} are both {text!r}; options of a question differ")
        if "\n" in text or "\r" in text:
            problems.append(f"option {text!r} has several lines; write it in one")
    return tuple(given), problems


def letter_of(answer: str, options: Sequence[str]) -> tuple[str, str]:
    """(letter of an answer that is given as letter or as text, ''), or ('', the fault)."""
    letters = OPTION_LETTERS[: len(options)]
    as_text = letters[options.index(answer)] if answer in options else ""
    as_letter = answer if answer in tuple(letters) else ""
    if as_text and as_letter and as_text != as_letter:
        return "", (
            f"answer {answer!r} is the letter of option {options[letters.index(answer)]!r} and the"
            f" text of option {as_text}; write the text of the option in other words"
        )
    if as_text or as_letter:
        return as_text or as_letter, ""
    close = near(answer, [*letters, *options])
    return "", f"answer {answer!r} is none of the options; {close}"


def picture_fault(root: Path, name: str) -> str:
    """The fault of an image, '' when it can be sent to a model."""
    if "://" in name:
        return f"image {name!r} is an address; put the picture into the folder and name its path"
    try:
        path = confine(root, name)
    except InputError:
        return (
            f"image {name!r} leads out of the folder; put the picture into the folder, without '..'"
            " or links"
        )
    except (OSError, RuntimeError):  # a circular link, or a name that is too long
        return f"image {name!r} can't be followed; name a file in the folder"
    try:
        if not path.is_file():
            kind = "is a folder" if path.is_dir() else "is not there"
            hint = "; write paths with /" if "\\" in name else ""
            return f"image {name!r} {kind}; give a path from the suite's folder{hint}"
        size = path.stat().st_size
        if size > MAX_BYTES:
            return f"image {name!r} has {size:,} bytes, at most {MAX_BYTES:,}; make it smaller"
        with warnings.catch_warnings():  # Pillow only warns about large images; refused here
            warnings.simplefilter("ignore")
            open_picture(path.read_bytes())
    except Image.DecompressionBombError:
        return f"image {name!r} has more than {MAX_PIXELS:,} pixels; make it smaller"
    except OSError as error:
        if isinstance(error, UnidentifiedImageError):
            return f"image {name!r} is no PNG or JPEG; save it as one"
        cause = error.strerror or str(error).splitlines()[0]
        return f"image {name!r} can't be read ({cause}); save it again"
    except Exception as error:  # any decoder error: the image can't be sent to a model
        return f"image {name!r} can't be decoded ({type(error).__name__}); save it again"
    return ""


def assign_splits(name: str, questions: Iterable[Question]) -> list[Question]:
    """The questions with val for the first clusters by hash until a fifth of the questions is in
    val, else test; all questions of a cluster are on one side. A single cluster is test."""
    listed = list(questions)
    sizes = Counter(q.cluster for q in listed)
    order = sorted(sizes, key=lambda c: hashlib.sha256(f"split|{name}|{c}".encode()).hexdigest())
    val: set[str] = set()
    count = 0
    for cluster in order[:-1]:  # test is never empty
        if count >= VAL_SHARE * len(listed):
            break
        val.add(cluster)
        count += sizes[cluster]
    return [replace(q, split="val" if q.cluster in val else "test") for q in listed]


def _split_faults(spec: Spec, questions: list[Question], faults: list[Fault]) -> list[Fault]:
    if faults or not questions or any(q.split == "test" for q in questions):
        return []
    message = f"no question has split test (column {spec.split!r}); results are of split test"
    return [Fault(spec.items, 0, message)]


def _notes(folder: Folder, spec: Spec) -> Iterable[str]:
    """Remarks for the user on a folder without faults."""
    questions = folder.questions
    for view, why in folder.left_out.items():
        yield f"view {view.value} is left out: {why}"
    if folder.no_cade:
        yield f"CADE is left out: {folder.no_cade}"
    elif not folder.has_context:
        yield "CADE takes Q-only in place of CTX+Q, as the paper does at T5 (no context)"
    for what, some in (("picture", folder.has_pictures), ("context", folder.has_context)):
        without = sum(not (q.image if what == "picture" else q.context) for q in questions)
        if some and without:
            yield f"{without} of {len(questions)} questions have no {what}"
    if not spec.split:
        n = sum(q.split == "val" for q in questions)
        share = f"{n} of {len(questions)} questions are val"
        yield f"no column split: {share}, by a hash of the cluster"
    else:
        sides: dict[str, set[str]] = {}
        for q in questions:
            sides.setdefault(q.cluster, set()).add(q.split)
        both = sum(len(side) > 1 for side in sides.values())
        if both:
            yield f"{both} clusters have questions in val and in test: CADE is tuned on their like"
    if not spec.cluster_by:
        yield "no cluster_by: each question is its own cluster"
    elif len({q.cluster for q in questions}) == 1:
        yield f"column {spec.cluster_by!r} has one value: there is no interval"
    for at, name in enumerate(spec.groups):
        levels = Counter(q.groups[at] for q in questions)
        if levels[UNKNOWN]:
            yield f"group {name}: {levels[UNKNOWN]} questions have no value and count as {UNKNOWN}"
        if len(levels) < 2:
            yield f"group {name} has one value: there is nothing to compare"
    texts = Counter((q.text, q.options, q.image, q.context) for q in questions)
    if repeated := [count for count in texts.values() if count > 1]:
        yield f"{sum(repeated)} rows repeat a question (same text, options, picture and context)"
