"""Repositories of a hub on loopback, and folders of weights, for proposals of registry entries."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from sdgbias.registry.machine import Machine
from sdgbias.registry.propose import Host, Served
from tests.builders.hub import Repo, commit, weights

ARCHITECTURES = ("LlavaFor", "Qwen2_5_VLFor", "LlamaFor", "InternVLFor")
BIG = Host(
    Machine((80.0,) * 4, 500.0),
    lambda: frozenset({"llava", "qwen2_5_vl", "instructblip", "smolvlm", "internvl"}),
    "",
    served=lambda: Served("0.32.0", frozenset(ARCHITECTURES)),
)
SMALL = Host(Machine((), 8.0), BIG.families, "vLLM isn't installed here")
VLM = {
    "architectures": ["LlavaFor"],
    "model_type": "llava",
    "vision_config": {},
    "text_config": {},
    "dtype": "bfloat16",
}
OWN_CODE = {**VLM, "model_type": "newvl", "auto_map": {"AutoModel": "modeling_newvl.NewVL"}}
PLAIN = {"config.json": VLM, "model.safetensors": weights(10)}


def repo(**config: Any) -> Repo:
    return Repo(
        [commit({"config.json": {**VLM, **config}, "model.safetensors": weights(10)})],
        params=7_060_000_000,
    )


REPOS = {
    "open/Llava-7B": Repo(
        [commit(PLAIN, "old"), commit(PLAIN, "new")], params=7_060_000_000, licence="llama2"
    ),
    "open/qwen": Repo(
        [
            commit(
                {
                    "config.json": {
                        "architectures": ["Qwen2_5_VLFor"],
                        "model_type": "qwen2_5_vl",
                        "vision_config": {},
                        "text_config": {"torch_dtype": "float16"},
                    },
                    "preprocessor_config.json": {},
                    "model.safetensors": weights(10),
                }
            )
        ],
        params=3_000_000_000,
    ),
    "open/blip": repo(model_type="instructblip", architectures=["InstructBlipFor"]),
    "open/text": Repo(
        [
            commit(
                {
                    "config.json": {"model_type": "llama", "architectures": ["LlamaFor"]},
                    "model.safetensors": b"",
                }
            )
        ]
    ),
    "open/unknown": repo(model_type="brandnew"),
    "open/own-code": Repo([commit({"config.json": OWN_CODE, "model.safetensors": b""})]),
    "open/own-processor": Repo(
        [
            commit(
                {
                    **PLAIN,
                    "config.json": {**VLM, "model_type": "newvl"},
                    "preprocessor_config.json": {"auto_map": {}},
                }
            )
        ]
    ),
    "open/known-own-code": repo(auto_map={"AutoModel": "x.Y"}),
    "open/pickles": Repo([commit({"config.json": VLM, "pytorch_model.bin": b"\x80"})]),
    "open/empty": Repo([commit({"README.md": b""})]),
    "open/list": Repo([commit({"config.json": b"[]", "model.safetensors": b""})]),
    "open/asr": Repo(
        [commit({**PLAIN, "config.json": {"model_type": "whisper"}})],
        pipeline="automatic-speech-recognition",
    ),
    "open/hears-too": Repo([commit(PLAIN)], pipeline="automatic-speech-recognition"),
    "open/video": Repo([commit({**PLAIN, "config.json": OWN_CODE})], pipeline="video-text-to-text"),
    "open/huge": Repo([commit(PLAIN)], params=400_000_000_000),
    "shut/gated": Repo([commit(PLAIN)], gated=True),
    "shut/private": Repo([commit(PLAIN)], hidden=True),
    "shut/broken": Repo([commit(PLAIN)], broken=503),
    "shut/banned": Repo([commit(PLAIN)], broken=403),
}


TOKENS = {
    "hf_member0000000000": "member",
    "hf_stranger00000000": "stranger",
    "hf_old0000000000000": "expired",
}


def saved(folder: Path, config: Any, files: tuple[str, ...] = ("model.safetensors",)) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps(
        {"__metadata__": {}, "w": {"dtype": "F32", "shape": [1000, 2000], "data_offsets": [0, 0]}}
    ).encode()
    for name in files:
        (folder / name).write_bytes(struct.pack("<Q", len(header)) + header)
    return folder
