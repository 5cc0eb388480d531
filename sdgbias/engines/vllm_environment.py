"""The environment variables under which vLLM and its processes start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def set_environment(cpu: bool, own_process: bool) -> None:
    """Sets the environment variables of vLLM, here because the processes that it starts must see
    them too."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if own_process else "0"
    wanted = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if cpu:
        wanted["TORCHDYNAMO_DISABLE"] = (
            "1"  # else one small function is compiled with the C++ compiler: 15 s, on every start
        )
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


@contextmanager
def offline(local: bool) -> Iterator[None]:
    """A model in a folder sends no request to a hub while it loads, nor do this process's
    children."""
    before = os.environ.get("HF_HUB_OFFLINE")
    if local:
        os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if local and before is None:
            del os.environ["HF_HUB_OFFLINE"]
        elif before is not None:
            os.environ["HF_HUB_OFFLINE"] = before
