"""The transformers engine: exact first-token candidate scores of any image-text-to-text model, in padded batches.

Prompts go through the processor's own chat template (raw text where it has none). Batches are left-padded and, where the
model takes them, positions are counted from each prompt's first real token, so padding never changes a score. Safetensors
only; remote code only when the registry entry says so.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForImageTextToText, AutoProcessor

from sdgbias.backends.pixels import PixelCache
from sdgbias.backends.tokens import find_candidates
from sdgbias.errors import InfrastructureError, ModelError
from sdgbias.types import DIGITS, LETTERS, ModelSpec, Prompt, ScoreBatch

_VERSION = "hf-1"
_IDENTITY_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")


def _folder_digest(folder: Path) -> str:
    """Digest over names and bytes of everything in a model folder that can change a score."""
    digest = hashlib.sha256()
    for path in sorted({p for pattern in _IDENTITY_FILES for p in folder.glob(pattern)}):
        digest.update(path.name.encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def local_folder(spec: ModelSpec, root: Path) -> Path | None:
    """The folder of a 'local:' or 'path:' repository; None for a hub id."""
    kind, _, rest = spec.repo.partition(":")
    if kind not in ("local", "path"):
        return None
    folder = (root / rest) if kind == "local" else Path(rest)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: no config.json; registry entry {spec.name} says repo: {spec.repo}")
    return folder


class HuggingFace:
    def __init__(self, spec: ModelSpec, root: Path) -> None:
        folder = local_folder(spec, root)
        source = str(folder) if folder else spec.repo
        where: dict[str, Any] = {"trust_remote_code": spec.trust_remote_code}
        if folder is None:
            where["revision"] = spec.revision
        self.dtype = getattr(torch, spec.dtype)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            self.processor: Any = AutoProcessor.from_pretrained(source, backend="pil", **where)
            model: Any = AutoModelForImageTextToText.from_pretrained(source, dtype=self.dtype, use_safetensors=True, **where)
        except torch.OutOfMemoryError as error:
            raise InfrastructureError(f"{spec.name}: out of memory while loading; {str(error).splitlines()[0]}") from None
        except (OSError, ValueError, ImportError) as error:
            kind = InfrastructureError if folder is None else ModelError
            raise kind(f"{spec.name}: can't load {source}: {str(error).strip().splitlines()[0]}") from None
        self.model = model.eval().to(self.device)
        self.pixels = PixelCache(self.processor.image_processor)
        self.processor.image_processor = self.pixels
        self.tokenizer = self.processor.tokenizer
        self.tokenizer.padding_side = "left"
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.candidates = find_candidates(self.tokenizer, LETTERS + DIGITS)
        vocabulary = self.tokenizer.get_vocab()
        self.minus_ids = [vocabulary[t] for t in ("-", "\u2581-", "\u0120-") if t in vocabulary]
        self.accepts = set(inspect.signature(self.model.forward).parameters)
        self.counts_own_positions = hasattr(getattr(self.model, "model", self.model), "get_rope_index")
        identity = [_folder_digest(folder) if folder else f"{spec.repo}@{spec.revision}", spec.dtype, _VERSION]
        identity += [transformers.__version__, str(torch.__version__).split("+")[0]]
        self.fingerprint = hashlib.sha256("|".join(identity).encode()).hexdigest()[:16]

    def render(self, prompt: Prompt) -> str:
        """The text the tokenizer sees: the chat template around the prompt, with the image before the text."""
        if not getattr(self.processor, "chat_template", None):
            return prompt.text
        content: list[dict[str, str]] = [{"type": "image"}] if prompt.image is not None else []
        content.append({"type": "text", "text": prompt.text})
        messages = [{"role": "user", "content": content}]
        return str(self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))

    def _inputs(self, prompts: Sequence[Prompt], suffix: str = "") -> dict[str, torch.Tensor]:
        texts = [self.render(p) + suffix for p in prompts]
        images = [self.pixels.open(p) for p in prompts if p.image is not None]
        options: dict[str, Any] = {"padding": True, "return_tensors": "pt"}
        bos = self.tokenizer.bos_token
        if bos and texts[0].startswith(bos):
            options["add_special_tokens"] = False
        batch = self.processor(images=images or None, text=texts, **options)
        moved = {k: v.to(self.device) for k, v in batch.items() if isinstance(v, torch.Tensor)}
        if "pixel_values" in moved:
            moved["pixel_values"] = moved["pixel_values"].to(self.dtype)
        if "position_ids" in self.accepts and not self.counts_own_positions:
            mask = moved["attention_mask"]
            moved["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
        return moved

    def _forward(self, inputs: dict[str, Any], **more: Any) -> Any:
        known = {k: v for k, v in {**inputs, **more}.items() if k in self.accepts}
        if "logits_to_keep" in self.accepts:
            known["logits_to_keep"] = 1
        try:
            return self.model(**known)
        except torch.OutOfMemoryError as error:
            raise InfrastructureError(f"out of memory: {str(error).splitlines()[0]}") from None

    def _after_space(self, inputs: dict[str, Any], out: Any) -> torch.Tensor:
        """(B, V) log-probabilities of the token that follows a lone space."""
        batch = out.logits.shape[0]
        step = self._step(inputs, out.past_key_values, torch.full((batch, 1), self.candidates.space or 0, device=self.device))
        return torch.log_softmax(step.logits[:, -1].double(), dim=-1)

    def _step(self, inputs: dict[str, Any], cache: Any, token: torch.Tensor) -> Any:
        """One decoding step; extends the attention mask (and positions) held in `inputs`."""
        mask = inputs["attention_mask"]
        inputs["attention_mask"] = torch.cat([mask, mask.new_ones((mask.shape[0], 1))], dim=1)
        step: dict[str, Any] = {"input_ids": token, "attention_mask": inputs["attention_mask"]}
        if "position_ids" in inputs:
            inputs["position_ids"] = inputs["position_ids"][:, -1:] + 1
            step["position_ids"] = inputs["position_ids"]
        return self._forward(step, past_key_values=cache, use_cache=True)

    @torch.inference_mode()
    def _score_group(self, prompts: Sequence[Prompt], out: ScoreBatch, rows: Sequence[int]) -> None:
        """Scores one padded batch (all with an image, or all without) into rows of `out`."""
        inputs = self._inputs(prompts)
        spaced = any(c in self.candidates.needs_space for p in prompts for c in p.candidates)
        forward = self._forward(inputs, use_cache=spaced)
        logits = forward.logits[:, -1].double()  # (B, V)
        total = torch.logsumexp(logits, dim=-1)
        out.n_tokens[list(rows)] = inputs["attention_mask"].sum(-1).cpu().numpy()
        tops = [self.tokenizer.decode([int(t)]).strip() for t in logits.argmax(-1)]
        after = self._after_space(inputs, forward) if spaced else None
        for b, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
            merged = []
            for candidate in prompt.candidates:
                ids = list(self.candidates.ids[candidate])
                value = torch.logsumexp(logits[b, ids], dim=-1)
                if after is not None and candidate in self.candidates.needs_space:
                    value = torch.logaddexp(value, logits[b, self.candidates.space] + torch.logsumexp(after[b, ids], -1))
                merged.append(value)
            scores = torch.stack(merged)
            out.logits[row, : len(merged)] = scores.cpu().numpy()
            out.mass[row] = float(torch.exp(torch.logsumexp(scores, -1) - total[b]))
            out.top_token[row] = tops[b]
            if self.minus_ids:
                out.minus_logit[row] = float(torch.logsumexp(logits[b, self.minus_ids], -1))

    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        n, width = len(prompts), max((len(p.candidates) for p in prompts), default=0)
        out = ScoreBatch(
            np.full((n, width), np.nan, dtype=np.float32),
            np.full(n, np.nan, dtype=np.float32),
            np.full(n, np.nan, dtype=np.float32),
            [""] * n,
            np.zeros(n, dtype=np.int32),
        )
        for with_image in (True, False):
            rows = [i for i, p in enumerate(prompts) if (p.image is not None) is with_image]
            if rows:
                self._score_group([prompts[i] for i in rows], out, rows)
        return out

    def _forced(self, start: str) -> list[int]:
        """Token ids of a forced start, character by character ('-7' is two tokens)."""
        ids = []
        for character in start:
            if character == "-" and self.minus_ids:
                ids.append(self.minus_ids[0])
            elif character in self.candidates.ids:
                ids.append(self.candidates.ids[character][0])
            else:
                raise ModelError(f"a forced start may hold digits and a leading '-' only, not {start!r}")
        return ids

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int) -> list[list[str]]:
        if self.counts_own_positions or "past_key_values" not in self.accepts:
            return self._generate_by_prefix(prompts, starts, max_new_tokens)
        answers: list[list[str]] = [[""] * len(starts) for _ in prompts]
        for with_image in (True, False):
            rows = [i for i, p in enumerate(prompts) if (p.image is not None) is with_image]
            if not rows:
                continue
            texts = self._branch([prompts[i] for i in rows], starts, max_new_tokens)
            for i, said in zip(rows, texts, strict=True):
                answers[i] = said
        return answers

    def _branch(self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int) -> list[list[str]]:
        """Prefill once, repeat the KV cache per start, decode greedily; B prompts x S starts."""
        s = len(starts)
        inputs = self._inputs(prompts)
        prefill = self._forward(inputs, use_cache=True)
        cache = prefill.past_key_values
        cache.batch_repeat_interleave(s)
        state: dict[str, Any] = {k: inputs[k].repeat_interleave(s, 0) for k in ("attention_mask", "position_ids") if k in inputs}
        logits = prefill.logits[:, -1].repeat_interleave(s, 0)  # (B*S, V)
        forced = [self._forced(start) for start in starts] * len(prompts)
        ends = self._end_ids()
        said: list[list[int]] = [[] for _ in forced]
        done = [False] * len(forced)
        for step in range(max_new_tokens + max(map(len, forced))):
            greedy = logits.argmax(-1).tolist()
            token = [queue[step] if step < len(queue) else greedy[i] for i, queue in enumerate(forced)]
            for i, t in enumerate(token):
                done[i] = done[i] or t in ends or step >= len(forced[i]) + max_new_tokens
                if not done[i]:
                    said[i].append(t)
            if all(done):
                break
            ids = torch.tensor(token, device=self.device)[:, None]
            logits = self._step(state, cache, ids).logits[:, -1]
        texts = [self.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in said]
        return [texts[i : i + s] for i in range(0, len(texts), s)]

    def _end_ids(self) -> set[int]:
        configured = self.model.generation_config.eos_token_id
        ids = configured if isinstance(configured, list) else [configured]
        return {i for i in (*ids, self.tokenizer.eos_token_id) if i is not None}

    def _generate_by_prefix(self, prompts: Sequence[Prompt], starts: Sequence[str], limit: int) -> list[list[str]]:
        """For models that place positions themselves or keep no plain cache: one ordinary generation per start."""
        answers: list[list[str]] = [[] for _ in prompts]
        for start in starts:
            for i, prompt in enumerate(prompts):
                inputs = self._inputs([prompt], suffix=start)
                inputs.pop("position_ids", None)
                ids = self.model.generate(**inputs, max_new_tokens=limit, do_sample=False)
                length = inputs["input_ids"].shape[1]
                new = ids[0, length:] if ids.shape[1] > length else ids[0]
                answers[i].append(start + self.tokenizer.decode(new, skip_special_tokens=True).strip())
        return answers
