"""File helpers.

Paths that come from data stay inside the folder that the user named; a fault in a raw file carries
the name of its rule.

Hand-written YAML is parsed strictly, and changed in a few fields without touching the rest of the
text.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import resources
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

import yaml

from sdgbias.errors import DiskFull, InputError, SdgbiasError, StoreError, argument
from sdgbias.types import FACET


def packaged(*parts: str) -> Path:
    """A file or folder that ships inside the package; without ``parts``, the package's folder."""
    return Path(str(resources.files("sdgbias").joinpath(*parts)))


def project_file(*parts: str) -> Path:
    """A file that a new project starts with: in sdgbias/project of an installed wheel,
    at the top of a checkout."""
    folder = packaged("project")
    return (folder if folder.is_dir() else packaged().parent).joinpath(*parts)


class FileError(InputError):
    """A raw file that can't be used; ``rule`` is its kebab-case name in the quarantine table."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(
            rule, message
        )  # both in args, so that it survives pickling from a worker process
        self.rule = rule

    def __str__(self) -> str:
        return str(self.args[1])


def confine(root: Path, relative: str) -> Path:
    """Return ``root / relative``, refusing absolute paths, '..' and links that lead out of
    ``root``.

    ``root`` itself may be a link (big folders often live on another disk). Raises InputError.
    """
    outside = InputError(
        f"{relative!r} climbs out of {root}; name a path inside that folder, without '..' or links"
    )
    if not relative or "\0" in relative:
        raise InputError(f"{relative!r} is no path inside {root}; name a file in that folder")
    steps = relative.replace("\\", "/").split("/")
    if Path(relative).is_absolute() or PureWindowsPath(relative).anchor or ".." in steps:
        raise outside
    path = root / relative
    # unlike Path.resolve, realpath leaves a link to itself as it is, and reading it is refused
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        raise outside
    return path


def regular_size(path: Path) -> int:
    """The size of a regular file; OSError for anything else, because a pipe may never end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return status.st_size


def beside(results: Path, suffix: str) -> Path:
    """The folder of this suffix that belongs to a results file: beside it or, where it is a link
    without one, beside the file that it leads to."""
    folder = results.with_suffix(suffix)
    if folder.exists() or not results.is_symlink():
        return folder
    return results.resolve().with_suffix(suffix)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to: renamed onto it at the end of the block,
    removed when the block fails (e.g. a full disk), so that no partial file remains."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def understood(
    path: Path, fault: str, onward: str, raised: type[SdgbiasError] = InputError
) -> Iterator[None]:
    """For a block that reads a file of known form. Raises ``raised`` where it can't be read or has
    another form; ``fault`` says so, ``onward`` is the advice at the end of the message."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        cause = getattr(error, "strerror", None) or (str(error).splitlines() or [""])[0]
        if isinstance(error, KeyError):
            cause = f"{cause} is missing"
        elif not cause or not isinstance(error, OSError | ValueError):
            cause = f"{type(error).__name__} {cause}".strip()
        cause = re.sub(r" <\S+ object at 0x\w+>", "", cause)  # Pillow's: another one each time
        raise raised(f"{path}: {fault} ({cause}); {onward}") from None


def json_file(
    path: Path, fault: str, onward: str, raised: type[SdgbiasError] = InputError
) -> dict[str, Any]:
    """The object in a JSON file; errors as of `understood`."""
    with understood(path, fault, onward, raised):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("no JSON object")
    return content


def refuse_other_case(path: Path, columns: Iterable[object], wanted: Iterable[str]) -> None:
    """InputError for a column that is one of ``wanted`` but for capital letters: it would be taken
    for another one and passed over."""
    names = list(map(str, columns))
    absent = {name.lower(): name for name in wanted if name not in names}
    for name in names:
        meant = absent.get(name.strip().lower())
        if meant is not None:
            raise InputError(f"{path}: column {name!r} has to be spelt {meant!r}; rename it")


@contextmanager
def reading(path: Path, onward: str) -> Iterator[Path]:
    """``path`` for a block that reads a table. Raises InputError where it isn't there or is none;
    ``onward``: the advice at the end of the message."""
    if not path.is_file():
        raise InputError(f"{path}: not there; {onward}")
    with understood(path, "can't be read", onward):  # pyarrow's ArrowInvalid is a ValueError
        yield path


#: What to do where a folder that the user named can't be written.
OTHER_OUT = "give a writable folder with --out"


@contextmanager
def writable(
    place: Path, onward: str = OTHER_OUT, error: type[SdgbiasError] = StoreError
) -> Iterator[None]:
    """For a block that writes to ``place``. Raises ``error`` (DiskFull in place of StoreError);
    ``onward``: the advice at the end of the message."""
    try:
        yield
    except OSError as fault:
        full = fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and error is StoreError
        why = fault.strerror or fault
        raise (DiskFull if full else error)(
            f"{place}: can't be written ({why}); {onward}"
        ) from None


@contextmanager
def writing(
    path: Path, onward: str = OTHER_OUT, error: type[SdgbiasError] = StoreError
) -> Iterator[Path]:
    """As `replacing`, and makes the folder; errors as of `writable`."""
    with writable(path, onward, error):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            yield part


def write_atomically(
    path: Path,
    content: str | bytes | Callable[[Path], object],
    onward: str = OTHER_OUT,
    error: type[SdgbiasError] = StoreError,
) -> None:
    """Writes a file whole or not at all (`writing`); ``content``: its text or bytes, or what writes
    them to a path."""
    with writing(path, onward, error) as part:
        if callable(content):
            content(part)
        else:
            part.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, content: Any, onward: str = OTHER_OUT, nan: bool = True) -> None:
    """Plain JSON with sorted keys, whole or not at all. ``nan``: whether NaN may be in it."""
    text = json.dumps(
        content, indent=2, sort_keys=True, default=str, ensure_ascii=False, allow_nan=nan
    )
    write_atomically(path, text + "\n", onward)


def cached_text(name: str, make: Callable[[], str], check: Callable[[str], object] = str) -> str:
    """The file ``name`` of the user's cache folder (XDG_CACHE_HOME, else ~/.cache). Made, and kept
    where the folder can be written, when it isn't there or ``check`` raises ValueError for it."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    kept = Path(home) / "sdgbias" / name
    with suppress(OSError, ValueError):
        text = kept.read_text(encoding="utf-8")
        check(text)
        return text
    text = make()
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_name(f".{name}.{os.getpid()}.part")  # other processes may make it, too
        part.write_text(text, encoding="utf-8")
        part.replace(kept)
    return text


#: Limits of a hand-written YAML file: those of this repository have 3 kB, 230 nodes and 4 levels at
#: most. Anything larger than the limits is a mistake or an attack.
MOST_BYTES = 256 * 1024
MOST_NODES = 20_000
DEEPEST = 20

if TYPE_CHECKING:
    from yaml import SafeLoader as _SafeLoader
else:  # libyaml, ten times as fast, where PyYAML was built with it
    _SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_SafeLoader):
    """safe_load that refuses a duplicate key (plain yaml silently keeps the last one)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
            if isinstance(key, str) and key in seen:
                twice = f"field {key!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, twice, key_node.start_mark)
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """The content of a YAML text: no objects, no duplicate keys, no aliases (a few can expand to
    gigabytes, or be recursive), at most MOST_NODES nodes and DEEPEST levels. Raises yaml.YAMLError,
    or ValueError for a date that doesn't exist."""
    _bound(text)
    return yaml.load(text, Loader=_StrictLoader)  # a SafeLoader


def packaged_yaml(name: str) -> Any:
    """The content of a YAML file of sdgbias/data."""
    return load_yaml(packaged("data", name).read_text(encoding="utf-8"))


def json_object(path: Path) -> dict[str, Any]:
    """A small JSON object; {} when the file is missing, damaged or holds something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def is_release(benchmark: Path) -> bool:
    """Whether a benchmark's folder was created by `sdgbias release import`."""
    return bool(json_object(benchmark / "origin.json").get("release", False))


def build_command(benchmark: Path) -> str:
    """The command that makes a benchmark folder again, by what it holds."""
    card = json_object(benchmark / "benchmark.json")
    kinds = {"own": "suite build FOLDER", FACET: "people build"}
    kind = kinds.get(str(card.get("kind") or card.get("suite")), "build")
    if is_release(benchmark):
        kind = "release import FOLDER"
    return f"sdgbias {kind} --out {argument(benchmark)}"


@cache
def packaged_sql(name: str) -> dict[str, str]:
    """The queries of a file of sdgbias/data, each below a line '-- name: NAME', in their order."""
    text = packaged("data", name).read_text(encoding="utf-8")
    _, *parts = re.split(r"(?m)^-- name: ([\w-]+)$", text)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _bound(text: str) -> None:
    """Checks a text event by event, in constant memory, before anything is built."""
    depth = nodes = 0
    for event in yaml.parse(text, Loader=_SafeLoader):  # type: ignore[no-untyped-call]
        nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        why = ""
        if isinstance(event, yaml.AliasEvent):
            why = f"alias *{event.anchor}: write the value out"
        elif depth > DEEPEST:
            why = f"more than {DEEPEST} levels"
        elif nodes > MOST_NODES:
            why = f"more than {MOST_NODES:,} values"
        if why:
            raise yaml.composer.ComposerError(None, None, why, event.start_mark)  # type: ignore[arg-type]


def read_small(path: Path, errors: str = "strict") -> str:
    """The text of a regular file of at most MOST_BYTES. Anything else is refused before it is read,
    because a pipe or a device may never end. Raises InputError, OSError, UnicodeDecodeError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise InputError(f"{path}: no regular file")
    with open(handle, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise InputError(f"{path}: larger than {MOST_BYTES // 1024} kB")
    return data.decode("utf-8", errors)
