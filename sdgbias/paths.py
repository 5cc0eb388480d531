"""Files named by data: their paths stay inside the folder that the user named, their faults carry a rule name."""

from __future__ import annotations

from pathlib import Path, PureWindowsPath

from sdgbias.errors import InputError


class FileError(InputError):
    """A raw file that can't be used; ``rule`` is its kebab-case name in the quarantine table."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(rule, message)  # both in args, so that it survives the way back from a worker process
        self.rule = rule

    def __str__(self) -> str:
        return str(self.args[1])


def confine(root: Path, relative: str) -> Path:
    """Return ``root / relative``, refusing absolute paths, '..' and links that lead out of ``root``.

    ``root`` itself may be a link (big folders often live on another disk). Raises InputError.
    """
    outside = InputError(f"{relative!r} climbs out of {root}; name a path inside that folder, without '..' or links")
    if not relative or "\0" in relative:
        raise InputError(f"{relative!r} is no path inside {root}; name a file in that folder")
    steps = relative.replace("\\", "/").split("/")
    if Path(relative).is_absolute() or PureWindowsPath(relative).anchor or ".." in steps:
        raise outside
    path = root / relative
    if not path.resolve().is_relative_to(root.resolve()):
        raise outside
    return path
