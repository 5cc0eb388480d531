"""Writing registry entries: new ones, replaced ones, and a move to another state."""

from __future__ import annotations

import dataclasses
import io
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from sdgbias import files as yaml_text
from sdgbias.errors import RegistryError, one_of
from sdgbias.files import packaged
from sdgbias.registry.entries import (
    _ALWAYS,
    FIELDS,
    MOVES,
    SCHEMA_LINE,
    UNPINNED,
    _faults,
    _files,
    _parsed,
    _refuse_secrets,
    find_root,
    parse,
    read,
)
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import STATES


def to_dict(spec: ModelSpec) -> dict[str, Any]:
    """The fields to write, in ModelSpec's order: those of _ALWAYS and those that differ from the
    defaults."""
    blank = ModelSpec(name="", title="", backend="", repo="", revision="", state="")
    return {
        f: getattr(spec, f) for f in FIELDS if f in _ALWAYS or getattr(spec, f) != getattr(blank, f)
    }


def write(root: Path | None, spec: ModelSpec, overwrite: bool = False) -> Path:
    """Write ``registry/models/<name>.yaml`` (atomically) and return its path. RegistryError as
    require_free."""
    path = require_free(root := root or find_root(), spec, overwrite)
    _replace(path, SCHEMA_LINE + to_yaml(spec))
    return path


def require_free(root: Path, spec: ModelSpec, overwrite: bool = False) -> Path:
    """The file that ``write`` would write. RegistryError when the spec is not valid or the name is
    taken.

    An entry of the same repo whose revision is still 'unpinned' may always be completed; anything
    else needs ``overwrite``.
    """
    path = root / "registry" / "models" / f"{spec.name}.yaml"
    if root == packaged("project"):
        raise RegistryError(
            f"{spec.name}: no project here to register it in; make one: sdgbias init"
        )
    parse(to_dict(spec), path)
    taken = _files(root).get(spec.name)
    if taken is not None and not overwrite:
        old = read(taken)
        if (old.repo, old.revision) != (spec.repo, UNPINNED):
            raise RegistryError(
                f"{path}: exists already; replace it: --overwrite, or add a second entry: --name"
                " NAME"
            )
    return path


def to_yaml(spec: ModelSpec) -> str:
    """The text of an entry's file, below the line that names the schema."""
    return yaml.safe_dump(to_dict(spec), sort_keys=False, allow_unicode=True, width=10_000)


def _replace(path: Path, text: str) -> None:
    onward = "make registry/models writable, then again"
    yaml_text.write_atomically(path, text, onward, RegistryError)


def set_state(
    root: Path | None, name: str, state: str, *, reason: str = "", until: str | date = ""
) -> Path:
    """Moves one model to another state and returns its file. Only state, reason and until change;
    comments and order are preserved.

    reason: one line, needed unless the new state is 'enabled'. until: quarantined only, an ISO date
    from which on the nightly run scores it again; '' for a quarantine that lasts until the model is
    enabled by hand. RegistryError: no such entry, a broken one, an illegal move (MOVES).
    """
    return _rewrite(*moved(root, name, state, reason=reason, until=until))


def remove(root: Path | None, name: str) -> Path:
    """Deletes the entry of a model and returns what its file was. RegistryError: no such entry."""
    files = _files(root or find_root())
    if name not in files:
        raise RegistryError(one_of("model", name, files))
    try:
        files[name].unlink()
    except OSError as error:
        raise RegistryError(
            f"{files[name]}: can't be removed ({error.strerror}); make registry/models writable,"
            " then again"
        ) from None
    return files[name]


def set_ways(root: Path | None, name: str, decided: ModelSpec) -> Path:
    """Writes how a model's prompts are scored together, ``decided``'s batch_size and option
    share_prefix, into its entry and returns the file; nothing else changes. RegistryError as
    set_state."""
    path = _files(root or find_root())[name]
    old = read(path)
    share = decided.options.get("share_prefix")
    options = old.options if share is None else {**old.options, "share_prefix": share}
    new = dataclasses.replace(old, batch_size=decided.batch_size, options=options)
    return path if new == old else _rewrite(path, new)


def _rewrite(path: Path, new: ModelSpec) -> Path:
    """Gives an entry's file the values of another one, comments and order as they are."""
    # an environment for vLLM alone reads entries and may lack what changes them
    from ruamel.yaml import YAML
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    editor = YAML()
    editor.preserve_quotes, editor.width = True, 10_000
    entry, old = editor.load(path.read_text(encoding="utf-8")), read(path)
    fields = {name: getattr(new, name) for name in ("state", "batch_size", "reason", "until")}
    for field, value in fields.items():
        if value == getattr(old, field):
            continue
        # quoted, because other readers take a plain yes for true
        text = DoubleQuotedScalarString(value) if field in ("reason", "until") else value
        if field in entry and not value:
            del entry[field]
        elif field in entry:
            entry[field] = text
        else:
            entry.insert(list(entry).index("state") + 1 + (field == "until"), field, text)
    for option, setting in new.options.items():
        if old.options.get(option) != setting:
            entry.setdefault("options", {})[option] = setting
    written = io.StringIO()
    editor.dump(entry, written)
    if _parsed(written.getvalue(), path) != new:
        raise RegistryError(f"{path}: can't be changed by a program; change it by hand")
    _replace(path, written.getvalue())
    return path


def moved(
    root: Path | None, name: str, state: str, *, reason: str = "", until: str | date = ""
) -> tuple[Path, ModelSpec]:
    """(file, its entry's new text) of set_state, without writing it. Raises the same errors."""
    files = _files(root or find_root())
    if name not in files:
        raise RegistryError(one_of("model", name, files))
    path = files[name]
    old = read(path)
    if state not in STATES:
        raise RegistryError(f"{path}: {one_of('state', state, STATES)}")
    if state not in MOVES[old.state]:
        raise RegistryError(
            f"{path}: {old.state} can't become {state}; valid: {', '.join(MOVES[old.state])}"
        )
    new = dataclasses.replace(old, state=state, reason=reason.strip(), until=str(until))
    _refuse_secrets(to_dict(new), path)
    for fault in _faults(new):
        raise RegistryError(f"{path}: {fault}")
    return path, new
