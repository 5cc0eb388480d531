"""An engine in a process of its own: `python -m sdgbias.backends.serve`, spoken to through standard input and output.

It runs where neither pandas nor DuckDB is installed (.venv-vllm). The other end is elsewhere.py; the frames are pipe.py's. The first
frame names the registry entry, the answer its fingerprint; then every frame asks for scores or answers, until the pipe is closed.
Whatever a library prints goes to standard error.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from sdgbias import __version__
from sdgbias.backends import base, pipe
from sdgbias.types import ModelSpec


def main() -> None:
    asked, answers = _take_pipe()
    _end_with(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks; when it ends, this one does
    try:
        serve(asked, answers)
    except BrokenPipeError:
        os._exit(1)  # nobody listens any more


def _take_pipe() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output for ourselves: nothing else reads from the one, and what is printed goes to standard error."""
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return asked, answers


def _end_with(parent: int) -> None:
    """Ends this process soon after ``parent`` did, also in the middle of a batch that will never be asked for."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Answers frames until there are no more."""

    def take(size: int) -> bytes:
        data = asked.read(size)
        if len(data) < size:
            raise EOFError
        return data

    engine: Any = None
    while True:
        try:
            frame = pipe.read(take)
        except EOFError:
            return
        try:
            if engine is None:
                engine = base.load_here(ModelSpec(**frame[0]["spec"]), Path(frame[0]["root"]))
                header: dict[str, Any] = {"protocol": pipe.VERSION, "sdgbias": __version__, "fingerprint": engine.fingerprint}
                header["forces_starts"] = bool(getattr(engine, "forces_starts", True))
                payload = b""
            else:
                header, payload = _WORK[frame[0]["ask"]](engine, frame)
            header["counts"] = {name: int(count) for name, count in dict(getattr(engine, "counts", {})).items()}
        except Exception as error:
            header, payload = pipe.put_error(error), b""
        answers.write(pipe.pack(header, payload))
        answers.flush()


def _scores(engine: base.Backend, frame: pipe.Frame) -> pipe.Frame:
    return pipe.put_scores(engine.candidate_scores(pipe.get_prompts(frame)))


def _texts(engine: base.Backend, frame: pipe.Frame) -> pipe.Frame:
    return {"texts": engine.generate(pipe.get_prompts(frame), frame[0]["starts"], frame[0]["max_new_tokens"])}, b""


_WORK: dict[str, Callable[[base.Backend, pipe.Frame], pipe.Frame]] = {"scores": _scores, "texts": _texts}


if __name__ == "__main__":
    main()
