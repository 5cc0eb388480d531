"""The transformers engine: exact first-token candidate scores of any image-text-to-text model, in
padded batches.

Prompts go through the processor's chat template (raw text where it has none). Batches are
left-padded and, where the model accepts positions, these are counted from each prompt's first real
token, so padding never changes a score. Safetensors only; remote code only when the registry entry
allows it.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from sdgbias.engines import Backend
from sdgbias.engines.fingerprint import VERSIONS, fingerprint
from sdgbias.engines.hf import batching, branching, decoding, prompting, scores, shared_prefix
from sdgbias.engines.hf.head import keep_precise
from sdgbias.engines.hf.loading import (
    NO_MEMORY,
    attention,
    decoder_start,
    language_part,
    load_model,
    too_many,
    window,
)
from sdgbias.engines.hf.pixels import PixelCache
from sdgbias.engines.hf.processor import load_processor
from sdgbias.engines.hf.prompting import adds_special_tokens, minus_ids, render, template_of
from sdgbias.engines.hf.tokens import find_candidates
from sdgbias.engines.options import HfOptions, read
from sdgbias.errors import ModelError, OutOfMemory
from sdgbias.types import DIGITS, LETTERS, OPTION_LETTERS, Generated, ModelSpec, Prompt, ScoreBatch

_VERSION = VERSIONS["hf"]


class HuggingFace(Backend):
    def __init__(self, spec: ModelSpec, root: Path) -> None:
        self.dtype = getattr(torch, spec.dtype)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        options = read(spec, HfOptions)
        self.processor, self.template = load_processor(spec, root), template_of(spec)
        prompting.check_template(self.processor, self.template, spec)
        model = load_model(spec, root)
        if hasattr(model, "hf_device_map"):  # split over devices: prompts go where it begins
            self.model, self.device = model.eval(), model.get_input_embeddings().weight.device
        else:
            self.model = model.eval().to(self.device)
        keep_precise(self.model)
        self.pixels = PixelCache(self.processor.image_processor)
        self.processor.image_processor = self.pixels
        self.name = spec.name
        self.max_images = options.max_images
        self.tokenizer = self.processor.tokenizer
        self.tokenizer.padding_side = "left"
        if self.tokenizer.pad_token is None:  # any will do: no score depends on padding
            first = self.tokenizer.convert_ids_to_tokens(0)
            self.tokenizer.pad_token = self.tokenizer.eos_token or first
        self.candidates = find_candidates(
            self.tokenizer, LETTERS + DIGITS, optional=LETTERS.lower() + OPTION_LETTERS
        )
        self.minus_ids = minus_ids(self.tokenizer)
        parameters = inspect.signature(self.model.forward).parameters
        self.accepts = set(parameters)
        #: For a model that gives the tokens of a picture spatial positions: (inputs) -> positions
        #: (3, B, L).
        self.place = getattr(getattr(self.model, "model", self.model), "get_rope_index", None)
        #: For a model that requires a picture (InstructBLIP): its language model alone scores the
        #: prompts that show none.
        self.needs_picture = (
            "pixel_values" in parameters
            and parameters["pixel_values"].default is inspect.Parameter.empty
        )
        #: Whether the processor refuses text without a picture (PaliGemma).
        self.asks_for_picture = not prompting.supports_text_only(self.processor)
        #: Whether pictures have to be marked in the text here, which no chat template does.
        self.marks_pictures = prompting.marks_pictures(self.processor)
        #: What the decoder of an encoder-decoder model (Florence-2, T5) begins every answer with.
        self.begin = decoder_start(self.model)
        #: Whether a further token can be decoded from the cache alone; not where every token
        #: carries a mask of the pictures that it attends to (Mllama).
        self.steps = (
            "past_key_values" in self.accepts
            and "cross_attention_mask" not in self.accepts
            and not self.begin
        )
        #: Whether such a step was seen to give the logits of the whole prompt.
        self.stepped = False
        self.width = int(getattr(self.model.config.get_text_config(), "hidden_size", 0))
        #: Whether the processor takes one picture per prompt, not a list of them.
        self.flat_pictures = not (
            getattr(self.processor, "chat_template", None)
            or getattr(self.processor, "image_token", None)
        )
        self.batch_size = spec.batch_size
        #: Work done so far: prompts, tokens_of_prompts (scored alone), tokens_prefilled (with
        #: sharing), images_encoded, forwards.
        self.counts: Counter[str] = Counter()
        #: Whether prompts are scored together: not where the model can't, nor after a group's
        #: scores differed from those prompt by prompt.
        self.shares = options.share_prefix and shared_prefix.possible(self)
        #: Prompts of up to so many tokens see all of their beginning; None: however long.
        self.window = window(self.model.config)
        #: Whether positions are passed to the model, and the kinds of prompts (with a picture:
        #: True, without: False) for which they are known to be its own (batching.py).
        self.places, self.placed = "position_ids" in self.accepts, set[bool]()
        #: Whether padded batches give the scores of single prompts, with a picture (True) and
        #: without (False), as far as known (batching.py).
        self.batches: dict[bool, bool] = {}
        #: The kinds of groups (with a picture: True, without: False) whose first group was scored
        #: both ways with equal scores.
        self.proven: set[bool] = set()
        #: The same kinds -> whether answers that branch off one prefill equal plain generation.
        self.branches: dict[bool, bool] = {}
        self.fingerprint = fingerprint(
            spec,
            root,
            _VERSION,
            self.device.type,
            f"attention {attention(self.model.config)}",
            f"prompts {prompting.probe_hash(self.processor, self.template)}",
            f"pictures {json.dumps(options.processor, sort_keys=True)}",
        )

    def render(self, prompt: Prompt) -> str:
        return render(self.processor, prompt, self.template)

    def inputs(
        self, prompts: Sequence[Prompt], suffix: str = "", once: bool = False
    ) -> dict[str, torch.Tensor]:
        """The processor's output for prompts that all show pictures, or none; ``once``: include the
        pictures of the first prompt only, which all others show too."""
        texts = [self.render(p) + suffix for p in prompts]
        most = max((len(p.images) for p in prompts), default=0)
        if self.marks_pictures:
            texts = [
                self.processor.image_token * len(p.images) + text
                for p, text in zip(prompts, texts, strict=True)
            ]
        if self.max_images is not None and most > self.max_images:
            raise ModelError(too_many(self.name, most, f"takes {self.max_images} at most"))
        images = self.pixels.open(prompts)
        options: dict[str, Any] = {"padding": True, "return_tensors": "pt"}
        if not adds_special_tokens(self.processor, texts[0]):
            options["add_special_tokens"] = False
        # some processors return this input of their model on request only (Cosmos)
        name = "mm_token_type_ids"
        if name in self.accepts and name in getattr(self.processor, "model_input_names", ()):
            options["return_mm_token_type_ids"] = True
        self.pixels.once, self.pixels.left_out = once, False
        try:
            if most or not self.asks_for_picture:
                batch = self._processed(images if most else None, texts, options)
            else:
                batch = prompting.encode_text_only(self.processor, texts, options)
        except (ValueError, TypeError, IndexError) as error:
            if most < 2:
                raise
            cause = (
                str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            )
            raise ModelError(
                too_many(self.name, most, f"its processor refuses: {cause}")
            ) from error
        finally:
            self.pixels.once = False
        made = {k: v for k, v in batch.items() if isinstance(v, torch.Tensor) and k != "labels"}
        positions = self._positions(made) if self.places else None
        if positions is not None:
            made["position_ids"] = positions
        if once:
            whole = (
                (*shared_prefix.OF_TEXT, "pixel_values")
                if self.pixels.left_out
                else shared_prefix.OF_TEXT
            )
            made = {k: v if k in whole else v[: v.shape[0] // len(texts)] for k, v in made.items()}
        return {
            k: v.to(self.device, self.dtype if v.is_floating_point() else v.dtype)
            for k, v in made.items()
        }

    def _processed(self, images: Any, texts: list[str], options: dict[str, Any]) -> Any:
        """The processor's output for a list of pictures per prompt; for a flat list, where it takes
        a nested list for the pages of one document (GOT-OCR), or puts pictures where they come
        among its arguments (Idefics)."""
        flat = self.flat_pictures and images is not None and all(len(own) == 1 for own in images)
        if not flat:
            try:
                return self.processor(images=images, text=texts, **options)
            except (ValueError, TypeError):
                if images is None or any(len(own) != 1 for own in images):
                    raise
                made = self.processor(images=[own[0] for own in images], text=texts, **options)
                self.flat_pictures = True
                return made
        return self.processor(images=[i for own in images for i in own], text=texts, **options)

    def _positions(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor | None:
        """(B, L) counted from each prompt's first real token, or (3, B, L) for a model with a rule
        of its own (mRoPE); None where the processor's output lacks the inputs of that rule, so that
        the model has to compute the positions."""
        if self.place is None:
            return (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        needed = {
            n
            for n, p in inspect.signature(self.place).parameters.items()
            if p.default is p.empty and p.kind != p.VAR_KEYWORD
        }
        if not needed <= set(inputs):
            return None
        known = {k: v for k, v in inputs.items() if k != "pixel_values"}
        positions: torch.Tensor = self.place(**self.known_to(self.place, known))[0]
        return positions

    def known_to(self, function: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs that a function of the model accepts."""
        accepted = (
            self.accepts
            if function == self.model.forward
            else set(inspect.signature(function).parameters)
        )
        return {k: v for k, v in inputs.items() if k in accepted}

    def forward(self, inputs: dict[str, Any], **more: Any) -> Any:
        """One forward pass of the model; logits of the last token only, unless `logits_to_keep`
        requests others."""
        options = {"logits_to_keep": 1, **more} if "logits_to_keep" in self.accepts else more
        if self.begin and "decoder_input_ids" not in inputs:
            begin = torch.tensor([self.begin] * len(inputs["input_ids"]), device=self.device)
            inputs = {**inputs, "decoder_input_ids": begin}
        # behind a cache a picture has been seen, though its mask may grow with the text (Kosmos)
        more_text = "past_key_values" in more or set(inputs) <= {*prompting.OF_TEXT_ONLY}
        model, shows = self.model, not more_text
        if self.needs_picture and not shows:
            model, options = language_part(self.model, self.name), {"logits_to_keep": 1, **more}
        try:
            return model(**self.known_to(model.forward, {**inputs, **options}))
        except ValueError:
            of_text = self.pixels.inner is None  # a language model has no other part that answers
            if shows or of_text or self.needs_picture or "past_key_values" in more:
                raise
            self.needs_picture = True  # as its own code raises (Kosmos)
            return self.forward(inputs, **more)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or NO_MEMORY in str(error):
                raise OutOfMemory(f"out of memory: {str(error).splitlines()[0]}") from None
            raise

    def plain(
        self, prompts: Sequence[Prompt], rows: Sequence[int], spaced: bool
    ) -> Iterator[shared_prefix.Scored]:
        """One padded batch (all with a picture, or all without), prompts scored independently.
        Where a model takes no positions, padding would shift them: there a batch consists of
        prompts of one length."""
        inputs = self.inputs([prompts[row] for row in rows])
        lengths = inputs["attention_mask"].sum(-1)
        if not self.places and len(set(lengths.tolist())) > 1:
            for length in sorted(set(lengths.tolist())):
                same = [row for row, n in zip(rows, lengths.tolist(), strict=True) if n == length]
                yield from self.plain(prompts, same, spaced)
            return
        out = self.forward(inputs, use_cache=spaced)
        logits = out.logits[:, -1]  # (B, V)
        after = self._after_space(inputs, out) if spaced else None
        self.counts["tokens_prefilled"] += int(lengths.sum())
        self.counts["tokens_of_prompts"] += int(lengths.sum())
        self.counts["images_encoded"] += sum(len(prompts[row].images) for row in rows)
        self.counts["forwards"] += 1
        for b, row in enumerate(rows):
            yield shared_prefix.Scored(
                row, logits[b], None if after is None else after[b], int(lengths[b])
            )

    def _after_space(self, inputs: dict[str, Any], out: Any) -> torch.Tensor:
        """(B, V) logits of the token that follows a lone space: from the cache, where its first use
        gave the logits of the whole prompts."""
        space = torch.full((out.logits.shape[0], 1), self.candidates.space or 0, device=self.device)
        cache = getattr(out, "past_key_values", None)
        if not self.steps or cache is None:
            return self._longer(inputs, space)
        if self.stepped:
            return branching.step(self, branching.masks(inputs), cache, space)
        whole = self._longer(inputs, space)
        self.steps = self.stepped = self._steps_as(whole, inputs, cache, space)
        return whole

    def _steps_as(
        self, whole: torch.Tensor, inputs: dict[str, Any], cache: Any, space: torch.Tensor
    ) -> bool:
        try:
            logits = branching.step(self, branching.masks(inputs), cache, space)
        except OutOfMemory:
            raise
        except Exception:  # a cache of another kind (RecurrentGemma)
            return False
        ids = sorted({i for own in self.candidates.ids.values() for i in own})
        return shared_prefix.alike(self.dtype, ids, logits, whole)

    def _longer(self, inputs: dict[str, Any], space: torch.Tensor) -> torch.Tensor:
        """(B, V) logits behind one more token (B, 1), of the whole prompts."""
        if self.begin:
            begin = torch.tensor([self.begin] * len(space), device=self.device)
            longer = {"decoder_input_ids": torch.cat([begin, space], dim=1)}
            return self.forward({**inputs, **longer}).logits[:, -1]  # type: ignore[no-any-return]
        length = inputs["input_ids"].shape[1]
        longer = {
            k: torch.cat([v, v[:, -1:]], dim=1)  # masks of pictures, kinds of tokens, ...
            for k, v in inputs.items()
            if v.dim() > 1 and v.shape[1] == length and k not in ("position_ids", "pixel_values")
        }
        longer["input_ids"] = torch.cat([inputs["input_ids"], space], dim=1)
        if "position_ids" in inputs:
            longer["position_ids"] = torch.cat(
                [inputs["position_ids"], inputs["position_ids"][..., -1:] + 1], dim=-1
            )
        logits: torch.Tensor = self.forward({**inputs, **longer}).logits[:, -1]
        return logits

    @torch.inference_mode()
    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        """Prompts about one picture share its encoding and their common prefix (shared_prefix.py),
        where the model allows it."""
        out = ScoreBatch.empty(prompts)
        self.counts["prompts"] += len(prompts)
        for scored in self._scored(prompts):
            scores.put(self, out, prompts, scored)
        return out

    def _spaced(self, prompt: Prompt) -> bool:
        return any(c in self.candidates.needs_space for c in prompt.candidates)

    def _scored(self, prompts: Sequence[Prompt]) -> Iterator[list[shared_prefix.Scored]]:
        """The scored prompts, by picture and candidates."""
        alone: list[int] = []
        for rows in shared_prefix.groups(prompts):
            done = self._together(prompts, rows) if self.shares and len(rows) > 1 else []
            if not done:
                alone += rows
            yield from scores.by_candidates(prompts, done)
        yield from scores.by_candidates(prompts, self._alone(prompts, alone))

    def _alone(self, prompts: Sequence[Prompt], rows: Sequence[int]) -> list[shared_prefix.Scored]:
        """Padded batches, grouped by whether the prompts show a picture and whether a lone space
        may come first."""
        kinds: dict[tuple[bool, bool], list[int]] = {}
        for row in rows:
            kinds.setdefault((bool(prompts[row].images), self._spaced(prompts[row])), []).append(
                row
            )
        size = self.batch_size
        return [
            s
            for (_, spaced), own in kinds.items()
            for at in range(0, len(own), size)
            for s in batching.score(self, prompts, own[at : at + size], spaced)
        ]

    def _together(
        self, prompts: Sequence[Prompt], rows: Sequence[int]
    ) -> list[shared_prefix.Scored]:
        """One group scored together; empty where that isn't possible, which the first group of each
        kind decides."""
        picture = bool(prompts[rows[0]].images)
        spaced = {row for row in rows if self._spaced(prompts[row])}
        try:
            done = list(shared_prefix.score(self, prompts, rows, spaced))
        except shared_prefix.BeyondWindow:
            return []
        except (OutOfMemory, ModelError):
            raise
        except Exception:
            if picture in self.proven:
                raise
            self.shares = False  # the model doesn't accept such a mask, cache or positions
            return []
        if picture not in self.proven:
            self.shares = self._agree(prompts, rows, done)
            self.proven.add(picture)
        return done if self.shares else []

    def _agree(
        self, prompts: Sequence[Prompt], rows: Sequence[int], shared: Sequence[shared_prefix.Scored]
    ) -> bool:
        """Whether prompts that are scored together get the same scores as alone."""
        by_row = {s.row: s for s in shared}
        return all(
            batching.same(self, prompts[s.row], s, by_row[s.row])
            for s in self._alone(prompts, rows[: self.batch_size])
        )

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        return decoding.generate(self, prompts, starts, max_new_tokens)
