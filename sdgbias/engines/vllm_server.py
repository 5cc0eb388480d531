"""vLLM's server as a process of the environment that has vLLM: its arguments from the options of
a registry entry, its start, and its end with all of its children."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from sdgbias import exits
from sdgbias.engines.fingerprint import accelerator, pinned
from sdgbias.engines.options import VllmOptions
from sdgbias.engines.vllm_support import interpreter
from sdgbias.errors import InfrastructureError, ModelError
from sdgbias.registry.spec import ModelSpec

#: A chat template that hands a rendered prompt on as it is.
_AS_IT_IS = (
    "{% for part in messages[0].content if part.type == 'text' %}{{ part.text }}{% endfor %}"
)
#: The same pixels as in the transformers engine, bit for bit: Pillow's. Only image processors
#: accept this keyword; the newer one, `backend`, also reaches video processors, which have no
#: Pillow version.
_PIXELS = {"use_fast": False}
#: Options that are arguments of the same name.
_PASSED = (
    *("block_size", "data_parallel_size", "distributed_executor_backend"),
    *("gpu_memory_utilization", "max_model_len", "max_num_batched_tokens", "max_num_seqs"),
    *("pipeline_parallel_size", "quantization", "tensor_parallel_size"),
)
_QUIET = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TOKENIZERS_PARALLELISM": "false",
}
#: Longest folder in which vLLM's sockets, 37 characters long, have a path that the system takes.
_SOCKET_ROOM = 70
#: Seconds between two lines about a server that is still loading, and until it counts as stuck.
_TELL, _STUCK = 60.0, 3600.0
#: vLLM's words for a head that it can't run in float32.
_NO_FLOAT32 = ("unquantized lm_head", "does not support [torch.float32] head dtype")


class Server:
    """One server of a model. Raises InfrastructureError where no vLLM is installed."""

    def __init__(self, spec: ModelSpec, root: Path, options: VllmOptions) -> None:
        self.spec, self.root, self.options = spec, root, options
        self.python = interpreter(spec, root) or Path(sys.executable)
        self.url = ""
        self._folder = tempfile.TemporaryDirectory(prefix="sdgbias-vllm-")
        self._log = Path(self._folder.name) / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, key: str, pictured: bool) -> None:
        """Starts it and waits until it answers; ``pictured``: it is shown pictures. ModelError for
        a model that vLLM can't serve, InfrastructureError where it ends or takes too long."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        template = Path(self._folder.name) / "as-it-is.jinja"
        template.write_text(_AS_IT_IS, encoding="utf-8")
        environment = {**os.environ, **_QUIET, "VLLM_API_KEY": key}
        if len(self._folder.name) < _SOCKET_ROOM:
            environment["TMPDIR"] = self._folder.name  # sockets that it leaves go with the folder
        if accelerator() == "cpu":
            # else one small function is compiled with the C++ compiler, on every start
            environment["TORCHDYNAMO_DISABLE"] = "1"
        if not pinned(self.spec, self.root)[2]:
            environment["HF_HUB_OFFLINE"] = "1"  # a folder asks no hub
        module = ["-P", "-m", "vllm.entrypoints.openai.api_server"]
        address = ["--host", "127.0.0.1", "--port", str(port), "--chat-template", str(template)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(self.python), *module, *address, *self.arguments(pictured)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self.url = f"http://127.0.0.1:{port}/v1"
        try:
            self._wait(port)
        except BaseException:
            self.stop(patience=0)
            raise

    def arguments(self, pictured: bool) -> Iterator[str]:
        """What the entry says, as arguments of the server."""
        o, spec = self.options, self.spec
        _, source, where = pinned(spec, self.root)
        yield from ("--model", source, "--served-model-name", spec.name, "--dtype", spec.dtype)
        for name in ("revision", "tokenizer-revision", "code-revision") if where else ():
            yield from (f"--{name}", spec.revision)
        yield from ("--load-format", "safetensors", "--generation-config", "vllm", "--seed", "0")
        yield from ("--chat-template-content-format", "openai", "--enable-prompt-tokens-details")
        yield from ("--enable-prefix-caching", "--disable-uvicorn-access-log")
        head = {"head_dtype": "float32"}  # hf/load.py says why
        yield from ("--hf-overrides", json.dumps(head | self._nested(head)))
        if spec.trust_remote_code:
            yield "--trust-remote-code"
        if pictured:
            most = {"image": o.max_images} if o.max_images else {}
            yield from ("--limit-mm-per-prompt", json.dumps({"video": 0} | most))
            yield from ("--mm-processor-kwargs", json.dumps({**_PIXELS, **o.processor}))
        chosen = o.model_dump(include=set(_PASSED), exclude_none=True, exclude_defaults=True)
        cpu = accelerator() == "cpu"
        if cpu:
            # the default of 128 tokens is longer than most prompts: nothing would be reused
            chosen.setdefault("block_size", 32)
        for name, value in chosen.items():
            yield from (f"--{name.replace('_', '-')}", str(value))
        if cpu or o.kv_cache_gib:
            yield from ("--kv-cache-memory-bytes", str(int((o.kv_cache_gib or 1) * 2**30)))
        if cpu if o.enforce_eager is None else o.enforce_eager:
            yield "--enforce-eager"

    def _nested(self, head: dict[str, Any]) -> dict[str, Any]:
        """The same for the language model inside a multimodal one, which reads its own part of the
        configuration."""
        from transformers import AutoConfig

        _, source, where = pinned(self.spec, self.root)
        trust = self.spec.trust_remote_code
        try:
            config = AutoConfig.from_pretrained(source, trust_remote_code=trust, **where)
        except (OSError, ValueError):  # a family that only vLLM may know
            return {}
        text = config.get_text_config()
        return {name: head for name, part in vars(config).items() if part is text}

    def _wait(self, port: int) -> None:
        began = reported = time.monotonic()
        while True:
            if self.ended:
                raise self._refusal()
            with suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200:
                    break
            now = time.monotonic()
            if now - began > _STUCK:
                raise InfrastructureError(
                    f"{self.spec.name}: vLLM did not come up within {_STUCK:.0f} s"
                    f" ({self.last_words()})"
                )
            if now - reported > _TELL:
                reported = now
                line = (self._lines() or [""])[-1][:120]
                print(
                    f"{self.spec.name}: vLLM is loading, {now - began:.0f} s {line}",
                    file=sys.stderr,
                    flush=True,
                )
            time.sleep(0.25)
        if any(_NO_FLOAT32[1] in line for line in self._lines()):  # vLLM itself only warns
            raise self._refusal()

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _lines(self) -> list[str]:
        with suppress(OSError):
            text = self._log.read_text(encoding="utf-8", errors="replace")[-100_000:]
            return [line.strip() for line in text.splitlines() if line.strip()]
        return []

    def last_words(self) -> str:
        """How the server ended, with the line of its log that says why."""
        code = self._process.poll() if self._process else None
        how = "still runs" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by {exits.died_of(code)}"
        lines = self._lines()
        # of a chain of tracebacks, the last lines only say that a child ended
        errors = [line for line in lines if "Error: " in line or "Error(" in line]
        line = exits.crash(lines) or (errors or lines or [""])[0]
        return f"the server {how}" + (f": {line[:300]}" if line else "")

    def _refusal(self) -> InfrastructureError | ModelError:
        name, text = self.spec.name, "\n".join(self._lines())
        if any(words in text for words in _NO_FLOAT32):
            return ModelError(
                f"{name}: vLLM can't compute the logits of {self.spec.repo} in float32; set"
                f" backend: hf in registry/models/{name}.yaml"
            )
        words = self.last_words()
        lower = text.lower()
        if "kv cache" in lower or "cache blocks" in lower:
            words += "; lower max_model_len or raise kv_cache_gib in its registry entry"
        ours = not pinned(self.spec, self.root)[2] and "memory" not in lower
        return (ModelError if ours else InfrastructureError)(
            f"{name}: vLLM can't load {self.spec.repo}: {words}"
        )

    def stop(self, patience: float = 20.0) -> None:
        """Ends it with all processes that it started."""
        process = self._process
        if process is None:
            return
        for sign, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 20.0)):
            if sign == signal.SIGTERM and not patience:
                continue
            with suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        self._process = None


def _end_with_parent() -> None:
    """In the new process: the kernel ends it when this one ends, however that happens."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
