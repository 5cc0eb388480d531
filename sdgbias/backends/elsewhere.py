"""An engine in another Python environment: a child process (serve.py) that is spoken to through a pipe.

vLLM lives in an environment of its own (docs/vllm.md), the rest of the house in another. Which interpreter runs the engine: the
registry option `python`, else for vLLM the environment variable SDGBIAS_VLLM_PYTHON, else this one where vLLM can be imported,
else .venv-vllm at the project's root, which `make vllm` builds.
"""

from __future__ import annotations

import importlib.util
import os
import select
import subprocess
import threading
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from sdgbias import __version__
from sdgbias.backends import pipe
from sdgbias.errors import InfrastructureError, RegistryError
from sdgbias.types import ModelSpec, Prompt, ScoreBatch

ENV_PYTHON = "SDGBIAS_VLLM_PYTHON"
OWN_ENVIRONMENT = Path(".venv-vllm") / "bin" / "python"
_GIVE_UP = 10.0  # seconds that a child may take to end once its pipe is closed


def interpreter(spec: ModelSpec, root: Path) -> Path | None:
    """The interpreter of another environment that has to run this engine; None: this process can. RegistryError for an option that
    names none, InfrastructureError when there is no vLLM anywhere."""
    named = spec.options.get("python")
    if named is not None:
        where = f"registry/models/{spec.name}.yaml: python is {named!r}"
        return _checked(root / named if isinstance(named, str) and named else None, where, RegistryError)
    if spec.backend != "vllm":
        return None
    if os.environ.get(ENV_PYTHON):
        return _checked(Path(os.environ[ENV_PYTHON]), f"{ENV_PYTHON}={os.environ[ENV_PYTHON]}", InfrastructureError)
    if has_vllm():
        return None
    if os.access(root / OWN_ENVIRONMENT, os.X_OK):
        return root / OWN_ENVIRONMENT
    raise InfrastructureError(
        f"{spec.name}: no vLLM here: neither in this environment nor at {OWN_ENVIRONMENT} below {root}; build it: make vllm, or name "
        f"an interpreter that has it: export {ENV_PYTHON}=/path/to/bin/python"
    )


def _checked(path: Path | None, where: str, kind: type[RegistryError] | type[InfrastructureError]) -> Path:
    if path is None or not path.is_file() or not os.access(path, os.X_OK):
        raise kind(f"{where}: no interpreter there; valid: the path of a Python that has sdgbias and the engine, e.g. {OWN_ENVIRONMENT}")
    return path


def has_vllm() -> bool:
    """Whether vLLM can be imported here; a folder that happens to bear its name doesn't count."""
    found = importlib.util.find_spec("vllm")
    return found is not None and found.origin is not None


class ChildEngine:
    """One engine in a child process. Its errors come back as the classes that they had there; a child that dies is an
    InfrastructureError with its exit code and its last words. Not to be shared between threads."""

    def __init__(self, spec: ModelSpec, root: Path, python: Path) -> None:
        self.name, self.python = spec.name, python
        #: What the engine did so far, as told with its last answer.
        self.counts: Counter[str] = Counter()
        environment = {name: value for name, value in os.environ.items() if name != ENV_PYTHON}
        self.child = subprocess.Popen(
            [str(python), "-P", "-m", "sdgbias.backends.serve"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, bufsize=0,
        )  # fmt: skip
        self.last_words: deque[str] = deque(maxlen=20)
        self._listener = threading.Thread(target=_listen, args=(self.child.stderr, self.last_words), daemon=True)
        self._listener.start()
        weakref.finalize(self, _hang_up, self.child)
        try:
            told, _ = self._ask({"spec": asdict(spec), "root": str(root.resolve())})
            if (told["protocol"], told["sdgbias"]) != (pipe.VERSION, __version__):
                raise InfrastructureError(
                    f"{self.name}: {python} has sdgbias {told['sdgbias']}, here it is {__version__}; install the same there: make vllm"
                )
        except BaseException:
            self.close()
            raise
        self.fingerprint = str(told["fingerprint"])
        self.forces_starts = bool(told["forces_starts"])

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        return pipe.get_scores(self._ask({"ask": "scores"}, prompts))

    def generate(self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int) -> list[list[str]]:
        header, _ = self._ask({"ask": "texts", "starts": list(starts), "max_new_tokens": max_new_tokens}, prompts)
        texts: list[list[str]] = header["texts"]
        return texts

    def close(self) -> None:
        """Ends the child; one that doesn't end by itself is killed."""
        for end in (self.child.stdin, self.child.stdout):
            if end is not None:
                end.close()
        try:
            self.child.wait(_GIVE_UP)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self._listener.join(_GIVE_UP)

    def _ask(self, header: dict[str, object], prompts: Sequence[Prompt] | None = None) -> pipe.Frame:
        shown, payload = ({}, b"") if prompts is None else pipe.put_prompts(prompts)
        try:
            self._send(memoryview(pipe.pack({**header, **shown}, payload)))
            told, answer = pipe.read(self._take)
        except (EOFError, BrokenPipeError):
            raise self._died() from None
        except ValueError:
            raise InfrastructureError(f"{self.name}: the engine in {self.python} answered with what is no frame") from None
        if "error" in told:
            raise pipe.get_error(told)
        self.counts = Counter(told["counts"])
        return told, answer

    def _send(self, data: memoryview) -> None:
        assert self.child.stdin is not None
        while data:
            data = data[self.child.stdin.write(data) or 0 :]

    def _take(self, size: int) -> bytes:
        """``size`` bytes of the child's answer; EOFError when it is gone, even where a process that it left behind holds the pipe."""
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

    def _died(self) -> InfrastructureError:
        try:
            code = self.child.wait(_GIVE_UP)
        except subprocess.TimeoutExpired:
            self.child.kill()
            code = self.child.wait()
        self._listener.join(_GIVE_UP)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        words = f": {self.last_words[-1][:300]}" if self.last_words else ""
        return InfrastructureError(f"{self.name}: the engine's process ({self.python}) {how}{words}")


def _hang_up(child: subprocess.Popen[bytes]) -> None:
    """Ends an engine that was dropped without being closed: a child whose pipe closes leaves."""
    if child.stdin is not None:
        child.stdin.close()


def _listen(said: BinaryIO, words: deque[str]) -> None:
    """Keeps the last lines of a child's standard error, until it ends. No method: the thread must not keep the engine alive."""
    with said:
        for line in said:
            if line.strip():
                words.append(line.decode(errors="replace").strip())
