"""Writes a language model that is published as one GGUF file as a folder that `sdgbias
register-model` takes: safetensors (float32), configuration, tokenizer and chat template.

A quantized file is unpacked: the folder holds the numbers that the file stands for, so a model
that was published with 4 bits a weight stays a model of 4 bits a weight, only larger on disk.
Requires the packages gguf and accelerate, which sdgbias itself doesn't need:

    python -m pip install gguf accelerate
    python scripts/gguf_to_folder.py MODEL.gguf FOLDER
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def convert(source: Path, folder: Path) -> str:
    """Writes FOLDER; returns a line about what it holds. Raises ImportError without gguf or
    accelerate, OSError and ValueError for a file that transformers can't read."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    import sdgbias.engines  # noqa: F401  declares torchvision's operators, before transformers

    where, file = str(source.parent), source.name
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=file)
    read = AutoModelForCausalLM.from_pretrained(
        where,
        gguf_file=file,
        dtype=torch.float32,
        quantization_config=GgufConfig(gguf_file=file, dequantize=True),
    )
    weights = read.state_dict()
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # else the folder is taken for a quantized one
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(weights)
    plain.generation_config = read.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    template = "with a chat template" if tokenizer.chat_template else "without a chat template"
    count = sum(p.numel() for p in plain.parameters())
    return f"{folder}: {config.model_type}, {count / 1e6:.1f} million parameters, {template}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("source", type=Path, help="the GGUF file")
    parser.add_argument("folder", type=Path, help="folder to write; must not exist")
    given = parser.parse_args()
    if not given.source.is_file():
        print(f"error: {given.source}: no such file", file=sys.stderr)
        return 2
    if given.folder.exists():
        print(f"error: {given.folder}: exists already; name another folder", file=sys.stderr)
        return 2
    try:
        print(convert(given.source, given.folder))
    except ImportError as error:
        print(f"error: {error}; python -m pip install gguf accelerate", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        print(f"error: {given.source}: transformers can't read it: {first}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
