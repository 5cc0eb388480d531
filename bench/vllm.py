"""vLLM in this process against `vllm serve` over loopback, on the same prompts with pictures.

    .venv-vllm/bin/python bench/vllm.py [--width 160] [--layers 4] [--picture 96] [--places 12]

A round takes places that no engine has seen, 28 prompts each, half of them with a picture. It is
scored in process and through the server, once with half of the engine's batch in flight and once
with all of it; the two take turns, and the medians over the rounds are of prompts per second and of
processor seconds per prompt (this process, and for the server its own as well). With --width,
--layers or --picture the model is tiny-llava's architecture at that size, with random weights.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[0] = str(
    REPOSITORY
)  # in place of this folder, whose vllm.py would stand in for the package

from sdgbias.engines.api.engine import Api  # noqa: E402
from sdgbias.engines.vllm import VLLM  # noqa: E402
from sdgbias.types import ModelSpec  # noqa: E402
from tests.builders.sample_prompts import prompts_of  # noqa: E402

KEY = "BENCH_KEY"
TINY = REPOSITORY / "registry/weights/tiny-llava"


def enlarged(folder: Path, width: int, layers: int, picture: int) -> Path:
    """tiny-llava's architecture at another size, with random weights; patches of 14 pixels."""
    import torch
    from transformers import AutoProcessor, LlavaConfig, LlavaForConditionalGeneration

    config = LlavaConfig.from_pretrained(TINY)
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = width, 3 * width, layers
    text.head_dim, text.max_position_embeddings = 64, 2048
    text.num_attention_heads = text.num_key_value_heads = width // 64
    vision.image_size, vision.patch_size = picture, 14
    config.image_seq_length = (picture // 14) ** 2
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config).to(torch.float32)
    model.save_pretrained(folder)
    processor = AutoProcessor.from_pretrained(TINY)
    processor.patch_size = 14
    size = {"height": picture, "width": picture}
    processor.image_processor.size, processor.image_processor.crop_size = size, size
    processor.save_pretrained(folder)
    return folder


@contextmanager
def served(
    folder: Path, batch: int, length: int, log: Path
) -> Iterator[tuple[str, psutil.Process]]:
    """(address, process) of a server, with the settings of the engine in this process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--max-model-len", str(length), "--enforce-eager"]
    command += ["--block-size", "32", "--generation-config", "vllm", "--load-format", "safetensors"]
    command += ["--mm-processor-kwargs", '{"use_fast": false}', "--max-num-seqs", str(batch)]
    command += ["--kv-cache-memory-bytes", str(2**30), "--disable-uvicorn-access-log"]
    quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    quiet |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    with log.open("w") as out:
        server = subprocess.Popen(
            command,
            env={**os.environ, **quiet, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        while True:
            if server.poll() is not None:
                server.wait()
                raise SystemExit(f"the server ended: {log.read_text()[-3000:]}")
            try:
                httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1", psutil.Process(server.pid)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def processor_seconds(process: psutil.Process) -> float:
    every = [process, *process.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in every)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--width", type=int, default=0)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--picture", type=int, default=336, help="pixels of a side")
    parser.add_argument("--places", type=int, default=12, help="places per round, 28 prompts each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = TINY
        if args.width:
            folder = enlarged(Path(scratch) / "m", args.width, args.layers, args.picture)
        length = 1024 if args.width else 512
        options = {"max_model_len": length, "kv_cache_gib": 1, "max_num_seqs": args.batch}
        spec = ModelSpec("m", "M", "vllm", f"path:{folder}", "local", "enabled", options=options)
        inside = VLLM(spec, REPOSITORY)
        ids = {c: list(found) for c, found in inside.candidates.ids.items()}
        os.environ[KEY] = "loopback"
        with served(folder, args.batch, length, Path(scratch) / "log") as (url, server):
            named = {"api_key_env": KEY, "base_url": url, "model": "m", "candidate_ids": ids}
            clients = {
                share: Api(
                    ModelSpec("m", "M", "api", "m", "1", "x", options={**named, "concurrency": n}),
                    REPOSITORY,
                )
                for share, n in ((50, args.batch // 2), (100, args.batch))
            }
            print(json.dumps(measure(inside, clients, server, args), indent=1))


def measure(
    inside: VLLM, clients: dict[int, Api], server: psutil.Process, args: argparse.Namespace
) -> dict[str, object]:
    me = psutil.Process()
    rates: dict[tuple[str, int], list[float]] = defaultdict(list)
    work: dict[tuple[str, int], list[float]] = defaultdict(list)
    for number in range(args.rounds + 1):  # the first one warms up and isn't counted
        for share, client in clients.items():
            first = 1000 * number + 500 * (share // 100)  # places that were in no pass before
            prompts = [p for at in range(args.places) for p in prompts_of(first + at)]
            scores = {}
            for way in ["inside", "served"][:: 1 if number % 2 else -1]:
                before = sum(me.cpu_times()[:2]), processor_seconds(server)
                began = time.perf_counter()
                if way == "inside":
                    step = len(prompts) if share == 100 else args.batch // 2
                    scores[way] = [
                        inside.candidate_scores(prompts[at : at + step])
                        for at in range(0, len(prompts), step)
                    ]
                else:
                    scores[way] = [client.candidate_scores(prompts)]
                took = time.perf_counter() - began
                spent = sum(me.cpu_times()[:2]) - before[0]
                spent += processor_seconds(server) - before[1] if way == "served" else 0
                print(number, share, way, f"{took:.2f} s", f"{spent:.2f} CPU s", file=sys.stderr)
                if number:
                    rates[way, share].append(len(prompts) / took)
                    work[way, share].append(1000 * spent / len(prompts))
    pairs = {
        share: [a / b for a, b in zip(rates["inside", share], rates["served", share], strict=True)]
        for share in clients
    }
    return {
        "prompts per round": len(prompts),
        "prompts/s": {
            f"{way} {share} %": round(statistics.median(v), 1) for (way, share), v in rates.items()
        },
        "processor ms per prompt": {
            f"{way} {share} %": round(statistics.median(v), 2) for (way, share), v in work.items()
        },
        "inside / served": {
            f"{share} %": [round(x, 2) for x in (statistics.median(v), min(v), max(v))]
            for share, v in pairs.items()
        },
        "load": os.getloadavg(),
    }


if __name__ == "__main__":
    main()
