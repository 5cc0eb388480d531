"""An engine in a child process, also of another Python environment, and the protocol of the pipe to
it: frames of a JSON header and raw bytes. Nothing is unpickled.

A frame is 8 bytes length of the header (big-endian), 8 bytes length of the payload, the header
(JSON: prompts, options, texts, errors) and the payload: pictures one after the other (`sizes` in
the header), or the arrays of a ScoreBatch as .npz.

vLLM has a separate environment (docs/how-to/vllm.md) from the rest of the package. The interpreter
that runs the engine: the registry option `python`, else for vLLM the environment variable
SDGBIAS_VLLM_PYTHON, else this one where vLLM can be imported, else .venv-vllm at the project's
root, which `make vllm` builds.

The child runs `python -m sdgbias.engines.subprocess` (`main` below), also where neither pandas nor
DuckDB is installed (.venv-vllm); the parent's side is `ChildEngine`. They communicate through the
child's standard input and output. The first frame contains the registry entry, the reply its
fingerprint; every further frame requests scores or answers, until the pipe is closed. Whatever a
library prints goes to standard error.
"""

from __future__ import annotations

import gc
import importlib.util
import io
import json
import os
import select
import signal
import struct
import subprocess
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sdgbias import __version__, engines, errors, lifeline
from sdgbias.errors import EngineDied, InfrastructureError, ModelError, RegistryError
from sdgbias.types import Generated, ModelSpec, Prompt, ScoreBatch

VERSION = 2
_LENGTHS = struct.Struct(">QQ")
_MOST = 2**34  # a longer frame is not a valid one
#: Attributes of a loaded engine that its first answer names.
LOADED = ("fingerprint", "gives_scores", "forces_starts", "chooses_labels", "names")
_ARRAYS = ("logits", "mass", "minus_logit", "n_tokens", "upper")

Frame = tuple[dict[str, Any], bytes]


class FailedElsewhere(Exception):
    """A failure of the child process whose class is not in errors.py; `kind` is its class name
    there."""

    kind = ""


def pack(header: dict[str, Any], payload: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


def read(take: Callable[[int], bytes]) -> Frame:
    """The next frame; ``take(n)`` returns n bytes or raises EOFError. ValueError for bytes that are
    not a frame."""
    header_size, payload_size = _LENGTHS.unpack(take(_LENGTHS.size))
    if max(header_size, payload_size) > _MOST:
        raise ValueError("not a frame")
    header = json.loads(take(header_size))
    if not isinstance(header, dict):
        raise ValueError("not a frame")
    return header, take(payload_size)


def put_prompts(prompts: Sequence[Prompt]) -> Frame:
    """Prompts as a frame; a picture that several of them show is sent once."""
    places: dict[bytes, int] = {}
    rows = [
        {
            "text": p.text,
            "candidates": p.candidates,
            "image_id": p.image_id,
            "images": [places.setdefault(image, len(places)) for image in p.images],
        }
        for p in prompts
    ]
    return {"prompts": rows, "sizes": [len(image) for image in places]}, b"".join(places)


def get_prompts(frame: Frame) -> list[Prompt]:
    header, payload = frame
    ends = np.cumsum([0, *header["sizes"]]).tolist()
    images = [payload[start:end] for start, end in pairwise(ends)]
    return [
        Prompt(r["text"], r["candidates"], tuple(images[i] for i in r["images"]), r["image_id"])
        for r in header["prompts"]
    ]


def put_scores(batch: ScoreBatch) -> Frame:
    arrays = {name: value for name in _ARRAYS if (value := getattr(batch, name)) is not None}
    data = io.BytesIO()
    np.savez(data, allow_pickle=False, **arrays)
    return {"top_token": list(batch.top_token)}, data.getvalue()


def get_scores(frame: Frame) -> ScoreBatch:
    header, payload = frame
    with np.load(io.BytesIO(payload), allow_pickle=False) as kept:
        arrays = {name: kept[name] for name in _ARRAYS if name in kept}
    return ScoreBatch(top_token=header["top_token"], **arrays)


def put_error(error: BaseException) -> dict[str, Any]:
    """An error as a header: its class, the nearest class of errors.py (for the exit code), and its
    message."""
    house = (
        kind.__name__
        for kind in type(error).__mro__
        if getattr(errors, kind.__name__, None) is kind
    )
    return {"error": type(error).__name__, "class": next(house, ""), "message": str(error)}


def get_error(header: dict[str, Any]) -> Exception:
    """The same class of errors.py, else FailedElsewhere; `kind` is the name of the original
    class."""
    kind = getattr(errors, str(header["class"]), None)
    known = isinstance(kind, type) and issubclass(kind, errors.SdgbiasError)
    error: Exception = (kind if kind and known else FailedElsewhere)(header["message"])
    if type(error).__name__ != header["error"]:
        error.kind = header["error"]  # type: ignore[attr-defined]
    return error


ENV_PYTHON = "SDGBIAS_VLLM_PYTHON"
OWN_ENVIRONMENT = Path(".venv-vllm") / "bin" / "python"
_GIVE_UP = 10.0  # seconds that a child may take to end once its pipe is closed


def interpreter(spec: ModelSpec, root: Path) -> Path | None:
    """The interpreter of the other environment that has to run this engine; None if this process
    can. RegistryError for an option that doesn't name an interpreter, InfrastructureError when vLLM
    is not installed anywhere."""
    named = spec.options.get("python")
    if named is not None:
        where = f"registry/models/{spec.name}.yaml: python is {named!r}"
        path = root / named if isinstance(named, str) and named else None
        return _checked(path, where, RegistryError)
    if spec.backend != "vllm":
        return None
    if os.environ.get(ENV_PYTHON):
        where = f"{ENV_PYTHON}={os.environ[ENV_PYTHON]}"
        return _checked(Path(os.environ[ENV_PYTHON]), where, InfrastructureError)
    if has_vllm():
        return None
    if os.access(root / OWN_ENVIRONMENT, os.X_OK):
        return root / OWN_ENVIRONMENT
    raise InfrastructureError(
        f"{spec.name}: no vLLM here: neither in this environment nor at {OWN_ENVIRONMENT} below"
        f" {root}; build it: make vllm, or name an interpreter that has it: export"
        f" {ENV_PYTHON}=/path/to/bin/python"
    )


def _checked(
    path: Path | None, where: str, kind: type[RegistryError] | type[InfrastructureError]
) -> Path:
    if path is None or not path.is_file() or not os.access(path, os.X_OK):
        raise kind(
            f"{where}: no interpreter there; valid: the path of a Python that has sdgbias and the"
            f" engine, e.g. {OWN_ENVIRONMENT}"
        )
    return path


def has_vllm() -> bool:
    """Whether vLLM can be imported here; a folder that happens to have its name doesn't count."""
    found = importlib.util.find_spec("vllm")
    return found is not None and found.origin is not None


class ChildEngine(engines.Backend):
    """An engine in a child process of the interpreter ``python``. Its errors are raised here by
    class (get_error); EngineDied when it is gone. Not to be shared between threads, `kill`
    aside."""

    def __init__(self, spec: ModelSpec, root: Path, python: Path) -> None:
        """Loads it. Raises InfrastructureError where the package there has another version."""
        self.spec, self.root, self.python = spec, root, python
        #: Work done so far, by this child as reported with its last answer, and by those before it.
        self.counts: Counter[str] = Counter()
        self._before: Counter[str] = Counter()
        self._start()

    def _start(self) -> None:
        own, passed = lifeline.given({k: v for k, v in os.environ.items() if k != ENV_PYTHON})
        self.child = subprocess.Popen(
            [str(self.python), "-P", "-m", "sdgbias.engines.subprocess"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=own,
            pass_fds=passed,
            bufsize=0,
        )
        self.last_words: deque[str] = deque(maxlen=200)  # a native crash has a stack of some 50
        self._listener = threading.Thread(
            target=_listen, args=(self.child.stderr, self.last_words), daemon=True
        )
        self._listener.start()
        weakref.finalize(self, _hang_up, self.child)
        try:
            loaded, _ = self._ask({"spec": asdict(self.spec), "root": str(self.root.resolve())})
            if (loaded["protocol"], loaded["sdgbias"]) != (VERSION, __version__):
                raise InfrastructureError(
                    f"{self.spec.name}: {self.python} has sdgbias {loaded['sdgbias']}, here it is"
                    f" {__version__}; install the same there: make vllm"
                )
        except BaseException:
            self.close()
            raise
        for name in LOADED:
            setattr(self, name, loaded[name])

    def restart(self) -> None:
        """Loads the engine in another child, in place of one that ended. Raises ModelError where
        its scores would be others."""
        before = self.fingerprint
        self.close()
        self._before = self.counts
        self._start()
        if self.fingerprint != before:
            raise ModelError(
                f"{self.spec.name}: started again, the engine loaded other weights or versions"
                f" ({self.fingerprint}) than before ({before}); what is finished is kept: let"
                " nothing change the model's folder, then run the same command again"
            )

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        return get_scores(self._ask({"ask": "scores"}, prompts))

    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        header, _ = self._ask(
            {"ask": "texts", "starts": list(starts), "max_new_tokens": max_new_tokens}, prompts
        )
        return Generated(header["texts"], header["truncated"])

    def _ask(self, header: dict[str, object], prompts: Sequence[Prompt] | None = None) -> Frame:
        shown, payload = ({}, b"") if prompts is None else put_prompts(prompts)
        answer = self._exchange(({**header, **shown}, payload))
        if "error" in answer[0]:
            raise get_error(answer[0])
        self.counts = Counter(self._before)
        self.counts.update(answer[0]["counts"])
        return answer

    def close(self) -> None:
        """Ends the child; kills it if it doesn't exit by itself."""
        for end in (self.child.stdin, self.child.stdout):
            if end is not None:
                end.close()
        try:
            self.child.wait(_GIVE_UP)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self._listener.join(_GIVE_UP)

    def kill(self) -> None:
        """Ends the engine at once; a call that waits for its answer raises EngineDied."""
        self.child.kill()

    def _exchange(self, frame: Frame) -> Frame:
        """Sends a frame and waits for its answer. Raises EngineDied."""
        try:
            self._send(memoryview(pack(*frame)))
            return read(self._take)
        except (EOFError, BrokenPipeError):
            raise self._died() from None
        except ValueError:
            raise InfrastructureError(
                f"{self.spec.name}: the engine in {self.python} answered with what is no frame"
            ) from None

    def _send(self, data: memoryview) -> None:
        assert self.child.stdin is not None
        while data:
            data = data[self.child.stdin.write(data) or 0 :]

    def _take(self, size: int) -> bytes:
        """``size`` bytes of the child's answer; EOFError when it has exited, even where a process
        that it left behind still holds the pipe."""
        assert self.child.stdout is not None
        ready = select.poll()
        ready.register(self.child.stdout, select.POLLIN)
        parts = bytearray()
        while len(parts) < size:
            if ready.poll(1000):
                part = self.child.stdout.read(min(size - len(parts), 1 << 20))
                if not part:
                    raise EOFError
                parts += part
            elif self.child.poll() is not None:
                raise EOFError
        return bytes(parts)

    def _died(self) -> EngineDied:
        try:
            code = self.child.wait(_GIVE_UP)
        except subprocess.TimeoutExpired:
            self.child.kill()
            code = self.child.wait()
        self._listener.join(_GIVE_UP)
        how = f"ended with exit code {code}"
        if code < 0:
            how = f"was killed by {lifeline.died_of(code)}"
        said = lifeline.crash(self.last_words) or (self.last_words[-1] if self.last_words else "")
        words = f": {said[:300]}" if said else ""
        return EngineDied(f"{self.spec.name}: the engine's process ({self.python}) {how}{words}")


def _hang_up(child: subprocess.Popen[bytes]) -> None:
    """Ends an engine that was dropped without being closed: a child exits when its pipe closes."""
    if child.stdin is not None:
        child.stdin.close()


def _listen(said: BinaryIO, words: deque[str]) -> None:
    """Keeps the last lines of a child's standard error, until it ends. Not a method: the thread
    must not keep the engine alive."""
    with said:
        for line in said:
            if line.strip():
                words.append(line.decode(errors="replace").strip())


def main() -> None:
    asked, answers = _take_pipe()
    lifeline.watch()  # also in the middle of a batch whose result is no longer needed
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is handled by the parent; when it ends, this process ends
    gc.set_threshold(50_000, 20, 100)  # as in the parent: torch is a million objects that stay
    try:
        serve(asked, answers)
    except BrokenPipeError:
        os._exit(1)  # the reader of the pipe is gone


def _take_pipe() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output for the frames only: nothing else reads from the former, and
    printed output goes to standard error."""
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return asked, answers


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Answers frames until the pipe is closed."""

    def take(size: int) -> bytes:
        data = asked.read(size)
        if len(data) < size:
            raise EOFError
        return data

    engine: engines.Backend | None = None
    while True:
        try:
            frame = read(take)
        except EOFError:
            return
        try:
            if engine is None:
                engine = engines.load_here(ModelSpec(**frame[0]["spec"]), Path(frame[0]["root"]))
                header, payload = _describe(engine), b""
            else:
                header, payload = _work(engine, frame)
            header["counts"] = {name: int(count) for name, count in engine.counts.items()}
        except Exception as error:
            header, payload = put_error(error), b""
        answers.write(pack(header, payload))
        answers.flush()


def _describe(engine: engines.Backend) -> dict[str, Any]:
    """The answer to the first frame."""
    header = {name: getattr(engine, name) for name in LOADED}
    if header["names"] is not None:
        header["names"] = sorted(header["names"])  # JSON has no sets
    return header | {"protocol": VERSION, "sdgbias": __version__}


def _work(engine: engines.Backend, frame: Frame) -> Frame:
    header, prompts = frame[0], get_prompts(frame)
    if header["ask"] == "scores":
        return put_scores(engine.candidate_scores(prompts))
    if header["ask"] == "texts":
        answers = engine.generate(prompts, header["starts"], header["max_new_tokens"])
        return asdict(answers), b""
    raise ValueError(f"asked for {header['ask']!r}; valid: scores, texts")


if __name__ == "__main__":
    with lifeline.quick_exit():
        main()
