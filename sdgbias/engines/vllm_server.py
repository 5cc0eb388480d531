"""vLLM's server as a process of the environment that has vLLM: its settings from the options of a
registry entry, its start, and its end with all of its children."""

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
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from sdgbias import exits
from sdgbias.engines.fingerprint import accelerator, pinned
from sdgbias.engines.options import VllmOptions, WeightOptions
from sdgbias.engines.vllm_support import interpreter
from sdgbias.errors import InfrastructureError, ModelError
from sdgbias.registry.spec import ModelSpec

#: A chat template that hands a rendered prompt on as it is.
_AS_IT_IS = (
    "{% for part in messages[0].content if part.type == 'text' %}{{ part.text }}{% endfor %}"
)
#: Options that are no settings of the same name.
_OTHER = {*WeightOptions.model_fields, "enforce_eager", "kv_cache_gib", "python"}
#: Longest folder in which vLLM's sockets, 37 characters long, have a path that the system takes.
_SOCKET_ROOM = 70
#: Seconds between two lines about a server that is still loading, and until it counts as stuck.
_TELL, _STUCK = 60.0, 3600.0
#: vLLM's words for a head that it can't run in float32; it only warns with the second.
_NO_FLOAT32 = ("unquantized lm_head", "does not support [torch.float32] head dtype")


def settings(
    spec: ModelSpec, root: Path, options: VllmOptions, pictured: bool = True
) -> dict[str, Any]:
    """What the entry says, as settings of `vllm serve`; None and False are left out. pictured: the
    model is shown pictures."""
    _, source, where = pinned(spec, root)
    cpu, gib = accelerator() == "cpu", options.kv_cache_gib
    eager, head = options.enforce_eager, {"head_dtype": "float32"}  # hf/model.py says why
    chosen = {
        "model": source,
        "served_model_name": spec.name,
        "dtype": spec.dtype,
        "trust_remote_code": spec.trust_remote_code,
        "load_format": "safetensors",
        "generation_config": "vllm",
        "seed": 0,
        "chat_template_content_format": "openai",
        "enable_prompt_tokens_details": True,
        "enable_prefix_caching": True,
        "disable_uvicorn_access_log": True,
        "hf_overrides": head | dict.fromkeys(_language_parts(spec, source, where), head),
        # the default of 128 tokens is longer than most prompts: nothing would be reused
        "block_size": 32 if cpu else None,
        "kv_cache_memory_bytes": int((gib or 1) * 2**30) if cpu or gib else None,
        "enforce_eager": cpu if eager is None else eager,
    }
    for name in ("revision", "tokenizer_revision", "code_revision"):
        chosen[name] = where.get("revision")
    if pictured:
        most = {"image": options.max_images} if options.max_images else {}
        chosen["limit_mm_per_prompt"] = {"video": 0} | most
        # The same pixels as in the transformers engine, bit for bit: Pillow's. Only image
        # processors accept this keyword; the newer one, `backend`, also reaches video processors,
        # which have no Pillow version.
        chosen["mm_processor_kwargs"] = {"use_fast": False, **options.processor}
    return {**chosen, **options.model_dump(exclude=_OTHER, exclude_defaults=True)}


def _language_parts(spec: ModelSpec, source: str, where: Mapping[str, Any]) -> list[str]:
    """Names of the parts of a multimodal model's configuration that its language model reads."""
    from transformers import AutoConfig

    trust = spec.trust_remote_code
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust, **where)
    except (OSError, ValueError):  # a family that only vLLM may know
        return []
    text = config.get_text_config()
    return [name for name, part in vars(config).items() if part is text]


class Server:
    """One server of a model. Raises InfrastructureError where no vLLM is installed."""

    def __init__(
        self, spec: ModelSpec, root: Path, options: VllmOptions, pictured: bool = True
    ) -> None:
        self.spec, self.settings = spec, settings(spec, root, options, pictured)
        self.python = interpreter(spec, root) or Path(sys.executable)
        self.on_hub = bool(pinned(spec, root)[2])
        self.url = ""
        self._folder = tempfile.TemporaryDirectory(prefix="sdgbias-vllm-")
        self._log = Path(self._folder.name) / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, key: str, template: str = _AS_IT_IS) -> None:
        """Starts it and waits until it answers. ModelError for a model that vLLM can't serve,
        InfrastructureError where it ends or takes too long."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        file = Path(self._folder.name) / "template.jinja"
        file.write_text(template, encoding="utf-8")
        address = {"host": "127.0.0.1", "port": port, "chat_template": str(file)}
        command = [str(self.python), "-P", "-m", "vllm.entrypoints.openai.api_server"]
        for name, value in {**self.settings, **address}.items():
            if value is None or value is False:
                continue
            command.append(f"--{name.replace('_', '-')}")
            if value is not True:
                command.append(value if isinstance(value, str) else json.dumps(value))
        environment = {**os.environ, "VLLM_API_KEY": key, "VLLM_LOGGING_LEVEL": "WARNING"}
        environment |= {"VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
        # many images forbid Python to keep what it compiled: each of the server's processes then
        # compiles all that it imports, 15 s of a core
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if len(self._folder.name) < _SOCKET_ROOM:
            environment["TMPDIR"] = self._folder.name  # sockets that it leaves go with the folder
        if accelerator() == "cpu":
            # else one small function is compiled with the C++ compiler, on every start
            environment["TORCHDYNAMO_DISABLE"] = "1"
        if not self.on_hub:
            environment["HF_HUB_OFFLINE"] = "1"  # a folder asks no hub
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self.url = f"http://127.0.0.1:{port}/v1"
        try:
            self._wait(f"http://127.0.0.1:{port}/health")
        except BaseException:
            self.stop(patience=0)
            raise

    def _wait(self, health: str) -> None:
        name, began = self.spec.name, time.monotonic()
        shown_at = 0.0
        while True:
            if self.ended:
                raise self._refusal()
            with suppress(httpx.HTTPError):
                # of http alone: reading certificates would take a tenth of a core meanwhile
                if httpx.get(health, timeout=2, trust_env=False, verify=False).status_code == 200:
                    break
            seconds = time.monotonic() - began
            if seconds > _STUCK:
                words = f"vLLM did not come up within {_STUCK:.0f} s ({self.last_words()})"
                raise InfrastructureError(f"{name}: {words}")
            if seconds - shown_at > _TELL:
                shown_at, line = seconds, (self._lines() or [""])[-1][:120]
                print(
                    f"{name}: vLLM is loading, {seconds:.0f} s {line}", file=sys.stderr, flush=True
                )
            time.sleep(0.25)
        if any(_NO_FLOAT32[1] in line for line in self._lines()):
            raise self._refusal()

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def _lines(self) -> list[str]:
        with suppress(OSError):
            text = self._log.read_text(encoding="utf-8", errors="replace")[-100_000:]
            return [line.strip() for line in text.splitlines() if line.strip()]
        return []

    def last_words(self) -> str:
        """How the server ended, with the line of its log that says why."""
        code = self.process.poll() if self.process else -signal.SIGKILL  # by `stop`
        how = "still runs" if code is None else f"ended with exit code {code}"
        how = f"was killed by {exits.died_of(code)}" if code and code < 0 else how
        lines = self._lines()
        # of a chain of tracebacks, the last lines only say that a child ended; a warning names
        # errors that might come
        lines = [line for line in lines if "WARNING " not in line] or lines
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
        words = f"{name}: vLLM can't load {self.spec.repo}: {self.last_words()}"
        outside = self.on_hub or "memory" in text.lower()
        return InfrastructureError(words) if outside else ModelError(words)

    def stop(self, patience: float = 20.0) -> None:
        """Ends it with all processes that it started: asks them to, and after ``patience`` seconds
        (0: at once) kills what is left."""
        process = self.process
        if process is None:
            return
        signals = [(signal.SIGTERM, patience), (signal.SIGKILL, 20.0)]
        for sign, seconds in signals if patience else signals[1:]:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        self.process = None


def _end_with_parent() -> None:
    """In the new process: the kernel ends it when this one ends, however that happens."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
