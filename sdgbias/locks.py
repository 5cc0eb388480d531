"""One process at a time behind a file. The lock dies with its process, so no crash leaves it held."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from sdgbias.errors import SdgbiasError


@contextmanager
def only_one(path: Path, unwritable: Callable[[OSError], SdgbiasError], busy: Callable[[str], SdgbiasError]) -> Iterator[TextIO]:
    """Holds the file's lock; gives the file, to leave a word in for whoever comes second.

    Raises what ``unwritable`` makes of the error when the file can't be opened, and what ``busy`` makes of the holder's word ('' without
    one) when another process has it.
    """
    try:
        handle = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise unwritable(error) from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.seek(0)
            raise busy(handle.read(200).strip()) from None
        yield handle
