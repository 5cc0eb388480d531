"""The transformers engine: exact first-token candidate scores and greedy answers of any
image-text-to-text or language model, by the library's own `generate`.

Prompts go through the processor's chat template (raw text where it has none) into left-padded
batches; `generate` counts positions, begins the answers of encoder-decoder models and reads
pictures as each family does. Where the registry entry says so, the beginning that the prompts about
one picture share is computed once and its cache repeated for them, and so is a prompt for the
starts of its answers. Whether batches and shared beginnings give a model's scores was decided at
its admission (ways.py): nothing is tried here. Beside an accelerator the next batches are
decoded and processed while it computes one (inputs.py).
"""

from __future__ import annotations

import copy
import inspect
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from sdgbias.engines import Backend
from sdgbias.engines.fingerprint import VERSIONS, fingerprint
from sdgbias.engines.hf.inputs import Batch, InputMaker, alike, by_picture, common_length
from sdgbias.engines.hf.load import load_model
from sdgbias.engines.hf.model import (
    accepted,
    attention,
    language_part,
    memory_errors,
    plain_attention,
)
from sdgbias.engines.hf.processor import load_chat
from sdgbias.engines.hf.tokens import (
    Answer,
    Choices,
    FirstTokens,
    begins_behind_space,
    choices_of,
    cut_answer,
    decoded,
    end_ids,
    find_candidates,
    put,
)
from sdgbias.engines.options import HfOptions, read
from sdgbias.errors import ModelError, NonFiniteLogits, OutOfRange
from sdgbias.methods.answers import thought_begun
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, Generated, Prompt, ScoreBatch

#: Inputs with one value per token.
_OF_TOKENS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
#: Logits of a batch that are computed at once behind a shared beginning: rows times places.
PLACES = 512


class State(NamedTuple):
    """B prompts as far as the model has read them: (B, L) ids and mask, the cache of their keys and
    values, what places text behind a picture in parts of the model, (B, V) logits of the next
    token."""

    ids: torch.Tensor
    mask: torch.Tensor
    cache: Any
    places: list[tuple[Any, torch.Tensor]]
    logits: torch.Tensor


#: Rows of B prompts, (B, V) logits of their first tokens, those behind a lone space or None, and
#: lengths in tokens.
Scored = tuple[Sequence[int], torch.Tensor, torch.Tensor | None, list[int]]


class Forced(LogitsProcessor):  # type: ignore[misc]
    """Leaves each row the tokens of its choices, one position after the other, and everything
    behind them. step: tokens written so far. Where logits have to be ``finite``, NonFiniteLogits
    for a row whose largest one isn't."""

    def __init__(self, choices: Sequence[Choices], finite: bool = True) -> None:
        self.choices, self.finite, self.step = choices, finite, 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self.finite and not math.isfinite(float(scores.max(-1).values.sum())):
            raise NonFiniteLogits("a logit of the free answer is NaN or infinite")
        forced = [
            (row, token)
            for row, choices in enumerate(self.choices)
            if self.step < len(choices)
            for token in choices[self.step]
        ]
        self.step += 1
        if not forced:
            return scores
        rows, ids = torch.tensor(forced, device=scores.device).T
        allowed = scores.clone()  # what was given is put out as the model's own logits
        allowed[rows] = -torch.inf
        allowed[rows, ids] = scores[rows, ids]
        return allowed


class HuggingFace(Backend):
    """model, processor, tokenizer: the library's. batch_size, share_prefix: how prompts are scored,
    of the registry entry. counts: work done so far (prompts, tokens_of_prompts: as if each were
    scored alone, tokens_prefilled, images_encoded, forwards, decode_prefills)."""

    def __init__(self, spec: ModelSpec, root: Path) -> None:
        options = read(spec, HfOptions)
        self.name, self.dtype = spec.name, getattr(torch, spec.dtype)
        self.batch_size, self.share_prefix = spec.batch_size, bool(options.share_prefix)
        self.chat = load_chat(spec, root)
        self.processor, self.tokenizer = self.chat.processor, self.chat.tokenizer
        self.model, self.device = load_model(spec, root)
        #: Tokens that the model knows: a tokenizer may have more, such as a padding token.
        self.rows = len(self.model.get_input_embeddings().weight)
        if (self.tokenizer.pad_token_id or 0) >= self.rows:
            self.tokenizer.pad_token = None
        self.candidates = find_candidates(self.tokenizer)
        self.ends = end_ids(self.model.generation_config.eos_token_id, self.tokenizer)
        if texts := [end for end in self.ends if not isinstance(end, int)]:
            raise ModelError(
                f"{self.name}: eos_token_id of generation_config.json is the text {texts[0]!r};"
                " write the number of that token"
            )
        parameters = inspect.signature(self.model.forward).parameters
        #: Whether the model requires a picture (InstructBLIP): its language model alone answers the
        #: prompts that show none.
        self.needs_picture = (
            "pixel_values" in parameters
            and parameters["pixel_values"].default is inspect.Parameter.empty
        )
        ahead = self.device.type != "cpu"
        self.maker = InputMaker(self.chat, self.name, parameters, options.max_images, ahead)
        self.counts: Counter[str] = Counter()
        self.fingerprint = fingerprint(
            spec,
            root,
            VERSIONS["hf"],
            self.device.type,
            f"attention {attention(self.model.config)}",
            f"prompts {self.chat.probe_hash()}",
            f"pictures {json.dumps(options.processor, sort_keys=True)}",
        )

    def other_attention(self) -> AbstractContextManager[bool]:
        return plain_attention(self.model)

    def prefetch(
        self, prompts: Sequence[Prompt], starts: Sequence[str] = (), max_new_tokens: int = 0
    ) -> None:
        self.maker.prefetch(self._batches(prompts, answers=bool(starts)))

    def _batches(self, prompts: Sequence[Prompt], answers: bool = False) -> list[Batch]:
        """The batches in which N prompts are scored, or answered: of similar length, all with
        pictures or all without. For scores, prompts about one picture are put behind it where
        beginnings are shared, and those apart of which a candidate may come behind a lone space."""
        batches, alone = [], dict[tuple[bool, bool], list[int]]()
        for rows in by_picture(prompts):
            shown = bool(prompts[rows[0]].images)
            if shown and self.share_prefix and len(rows) > 1 and not answers:
                batches.append(Batch.of(rows, prompts, shared=True))
                continue
            for row in rows:
                spaced = not answers and self.candidates.spaced(prompts[row].candidates)
                alone.setdefault((shown, spaced), []).append(row)
        for rows in alone.values():
            lengths = [len(prompts[row].text) for row in rows]
            for some in alike(lengths, self.batch_size):
                batches.append(Batch.of([rows[b] for b in some], prompts))
        return batches

    # ------------------------------------------------------------------
    # the model

    def inputs(self, prompts: Sequence[Prompt]) -> dict[str, torch.Tensor]:
        """A left-padded batch of prompts that all show pictures, or none. ModelError for too many
        pictures."""
        return self._on_device(self.maker.get(Batch.of(range(len(prompts)), prompts)).tensors)

    def _on_device(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies, because a model may write into its inputs."""
        return {
            k: v.to(self.device, self.dtype if v.is_floating_point() else v.dtype, copy=True)
            for k, v in tensors.items()
        }

    def _part(self, inputs: dict[str, Any]) -> Any:
        """The model, or its language model alone, which answers these inputs."""
        if self.needs_picture and "pixel_values" not in inputs:
            return language_part(self.model, self.name)
        return self.model

    @contextmanager
    def _computing(self, inputs: dict[str, Any]) -> Iterator[None]:
        """OutOfMemory and OutOfRange in place of what torch raises."""
        try:
            with memory_errors():
                yield
        except IndexError as error:
            if "index out of range in self" not in str(error):
                raise
            places = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
            raise OutOfRange(
                f"{self.name}: a prompt of {inputs['input_ids'].shape[1]} tokens, the highest of"
                f" number {int(inputs['input_ids'].max())}; the model has {places} positions and"
                f" {self.rows} tokens"
            ) from None

    def forward(self, **inputs: Any) -> Any:
        """One forward pass."""
        model = self._part(inputs)
        self.counts["forwards"] += 1
        with self._computing(inputs):
            return model(**accepted(model, inputs))

    def _generate(
        self,
        inputs: dict[str, Any],
        new: int,
        choices: Sequence[Choices],
        finite: bool = True,
        **options: Any,
    ) -> tuple[list[list[int]], Any]:
        """(tokens of greedy answers of B rows, the library's own output): ``new`` tokens at most,
        the first of each row out of its ``choices`` (Forced)."""
        model, forced = self._part(inputs), Forced(choices, finite)
        # as an object: with loose arguments the library builds the family's default configuration
        # first, which takes as long as a forward pass of a small model
        settings = GenerationConfig(
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=self.tokenizer.pad_token_id,
            return_dict_in_generate=True,
            **options,
        )
        with self._computing(inputs):
            out = model.generate(
                **accepted(model, inputs),
                generation_config=settings,
                logits_processor=LogitsProcessorList([forced]),
            )
        self.counts["forwards"] += forced.step
        return out.sequences[:, -forced.step :].tolist(), out

    def _first_logits(
        self, inputs: dict[str, Any], then: int | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """((B, V) logits of the first token of each row by itself, those of the token behind a
        first one ``then`` or None)."""
        two = then is not None
        choices = [[(then,)]] * len(inputs["input_ids"]) if then is not None else []
        _, out = self._generate(
            inputs, 1 + two, choices, finite=False, output_logits=True, use_cache=two
        )
        return out.logits[0], out.logits[1] if two else None

    def _prefill(self, inputs: dict[str, Any]) -> State:
        _, out = self._generate(inputs, 1, [], finite=False, output_logits=True, use_cache=True)
        modules = [(m, getattr(m, "rope_deltas", None)) for m in self.model.modules()]
        places = [(m, deltas) for m, deltas in modules if isinstance(deltas, torch.Tensor)]
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        return State(ids, mask, out.past_key_values, places, out.logits[0])

    def _go_on(
        self,
        state: State,
        times: int,
        tokens: torch.Tensor,
        new: int,
        choices: Sequence[Choices],
        **options: Any,
    ) -> tuple[list[list[int]], Any]:
        """`_generate` behind each prompt ``times`` times in a row, each with one more token, of
        tokens (B x times, 1). The state stays as it is."""
        cache = copy.deepcopy(state.cache)
        if times > 1:
            cache.batch_repeat_interleave(times)
        for module, deltas in state.places:
            module.rope_deltas = deltas.repeat_interleave(times, 0)
        ids, mask = (part.repeat_interleave(times, 0) for part in (state.ids, state.mask))
        inputs = {
            "input_ids": torch.cat([ids, tokens], dim=1),
            "attention_mask": torch.cat([mask, torch.ones_like(tokens)], dim=1),
            "past_key_values": cache,
        }
        return self._generate(inputs, new, choices, **options)

    def _logits_behind(self, state: State, times: int, token: int | None) -> torch.Tensor:
        """(B x times, V) logits behind one more token."""
        column = torch.full_like(state.ids[:, :1], token or 0).repeat_interleave(times, 0)
        _, out = self._go_on(state, times, column, 1, [], finite=False, output_logits=True)
        logits: torch.Tensor = out.logits[0]
        return logits

    @torch.inference_mode()
    def behind(self, prompts: Sequence[Prompt], token: int, branches: int = 0) -> torch.Tensor:
        """(B, V) logits of each of B prompts behind one more token, by itself; of so many
        ``branches`` of each, which are computed once as far as the prompt (B x branches, V)."""
        inputs = self.inputs(prompts)
        if branches:
            return self._logits_behind(self._prefill(inputs), branches, token)
        _, logits = self._first_logits(inputs, token)
        assert logits is not None
        return logits

    # ------------------------------------------------------------------
    # scores

    @torch.inference_mode()
    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        out, tokens = ScoreBatch.empty(prompts), self.candidates
        self.counts["prompts"] += len(prompts)
        batches = self._batches(prompts)
        with self.maker.using(batches):
            for rows, logits, after, lengths in self._scored(batches):
                self.counts["tokens_of_prompts"] += sum(lengths)
                out.n_tokens[list(rows)] = lengths
                for candidates in dict.fromkeys(prompts[row].candidates for row in rows):
                    at = [b for b, row in enumerate(rows) if prompts[row].candidates == candidates]
                    behind = None if after is None else after[at]
                    first = self._read(candidates, logits[at], behind)
                    put(out, [rows[b] for b in at], candidates, first, tokens, self.tokenizer)
        return out

    def _scored(self, batches: Sequence[Batch]) -> Iterator[Scored]:
        for batch in batches:
            if batch.shared:
                yield from self._behind_picture(batch)
                continue
            inputs = self._on_device(self.maker.get(batch).tensors)
            lengths: list[int] = inputs["attention_mask"].sum(-1).tolist()
            spaced = self.candidates.spaced(batch.prompts[0].candidates)
            logits = self._first_logits(inputs, self.candidates.space if spaced else None)
            self.counts["tokens_prefilled"] += sum(lengths)
            self.counts["images_encoded"] += sum(len(prompt.images) for prompt in batch.prompts)
            yield batch.rows, *logits, lengths

    def _behind_picture(self, batch: Batch) -> Iterator[Scored]:
        """Prompts about one picture: what they begin with, picture included, is computed once, and
        its cache repeated for batches of what is left of them.

        A row holds its tokens, a lone space where candidates may come behind one, and padding,
        which no token in front of it sees; so the model counts positions itself. ModelError where
        the picture's tokens are not in the common beginning.
        """
        tensors, ids = self.maker.get(batch)
        whole = self._on_device(tensors)
        begin = common_length(ids)
        tails = [tokens[begin:] for tokens in ids]
        first = whole["input_ids"][0].tolist()
        length = len(first) - len(tails[0])
        if first[length:] != tails[0]:
            raise ModelError(
                f"{self.name}: its processor doesn't put the picture in front of the question; in"
                f" registry/models/{self.name}.yaml set options: share_prefix: false"
            )
        cut = {k: v[:, :length] if k in _OF_TOKENS else v for k, v in whole.items()}
        cache = self.forward(**cut, use_cache=True, logits_to_keep=1).past_key_values
        self.counts["tokens_prefilled"] += length
        self.counts["images_encoded"] += len(batch.prompts[0].images)
        for part in alike(list(map(len, tails)), self.batch_size, PLACES):
            part_tails = [tails[b] for b in part]
            spaced = any(self.candidates.spaced(batch.prompts[b].candidates) for b in part)
            logits, after = self._tails(cache, part_tails, spaced)
            self.counts["tokens_prefilled"] += sum(map(len, part_tails))
            lengths = [length + len(tail) for tail in part_tails]
            yield [batch.rows[b] for b in part], logits, after, lengths

    def _tails(
        self, cache: Any, tails: Sequence[list[int]], spaced: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(B, V) logits at the end of each of B rows behind a cache of one row, and one token on
        where ``spaced``."""
        space, pad = self.candidates.space or 0, self.tokenizer.pad_token_id
        most = max(map(len, tails)) + spaced
        ids = [[*tail, *[space] * spaced, *[pad] * (most - len(tail) - spaced)] for tail in tails]
        ends = torch.tensor([len(tail) - 1 for tail in tails], device=self.device)
        kept = torch.cat([ends, ends + 1] if spaced else [ends]).unique()  # type: ignore[no-untyped-call]
        branched = copy.deepcopy(cache)
        branched.batch_repeat_interleave(len(tails))
        logits = self.forward(
            input_ids=torch.tensor(ids, device=self.device),
            past_key_values=branched,
            use_cache=True,
            logits_to_keep=kept,
        ).logits  # (B, places, V)
        rows, at = torch.arange(len(tails), device=self.device), torch.searchsorted(kept, ends)
        after = torch.searchsorted(kept, ends + 1)
        return logits[rows, at], logits[rows, after] if spaced else None

    # ------------------------------------------------------------------
    # answers

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        texts: list[list[str]] = [[] for _ in prompts]
        truncated: list[list[bool]] = [[] for _ in prompts]
        answer = self._branched if self.share_prefix and len(starts) > 1 else self._plain
        batches = self._batches(prompts, answers=True)
        with self.maker.using(batches):
            for batch in batches:
                answers = answer(self.maker.get(batch).tensors, starts, max_new_tokens)
                for row, of_prompt in zip(batch.rows, answers, strict=True):
                    begun = thought_begun(self.chat.render(prompts[row]))
                    texts[row] = [
                        begun + decoded(self.tokenizer, ids).strip() for ids, _ in of_prompt
                    ]
                    truncated[row] = [cut for _, cut in of_prompt]
        return Generated(texts, truncated)

    def _plain(
        self, tensors: dict[str, torch.Tensor], starts: Sequence[str], limit: int
    ) -> list[list[Answer]]:
        """Answers of B prompts, one ordinary generation for each start."""
        first, prompts = None, len(tensors["input_ids"])
        if begins_behind_space(starts, self.candidates):
            logits = self._first_logits(self._on_device(tensors), self.candidates.space)
            first = self._read(DIGITS, *logits)
        choices = choices_of(starts, self.candidates, prompts, first)
        answers: list[list[Answer]] = [[] for _ in choices]
        for s in range(len(starts)):
            forced = [of_prompt[s] for of_prompt in choices]
            most = limit + max(map(len, forced))
            new, _ = self._generate(self._on_device(tensors), most, forced)
            for of_prompt, ids, choice in zip(answers, new, forced, strict=True):
                of_prompt.append(cut_answer(ids, len(choice), limit, self.ends))
        return answers

    def _branched(
        self, tensors: dict[str, torch.Tensor], starts: Sequence[str], limit: int
    ) -> list[list[Answer]]:
        """Answers of B prompts, each prompt computed once for its S starts."""
        n, state, first = len(starts), self._prefill(self._on_device(tensors)), None
        self.counts["decode_prefills"] += len(state.ids)
        if begins_behind_space(starts, self.candidates):
            behind = self._logits_behind(state, 1, self.candidates.space)
            first = self._read(DIGITS, state.logits, behind)
        choices = choices_of(starts, self.candidates, len(state.ids), first)
        forced = [choice for of_prompt in choices for choice in of_prompt]
        logits = Forced(forced)(state.ids, state.logits.repeat_interleave(n, 0))
        begun = logits.argmax(-1, keepdim=True)
        rest = [choice[1:] for choice in forced]
        new, _ = self._go_on(state, n, begun, limit + max(map(len, rest)), rest)
        answers = [
            cut_answer([token, *ids], len(choice), limit, self.ends)
            for [token], ids, choice in zip(begun.tolist(), new, forced, strict=True)
        ]
        return [answers[at : at + n] for at in range(0, len(answers), n)]

    def _read(
        self, candidates: str, logits: torch.Tensor, after: torch.Tensor | None
    ) -> FirstTokens:
        """How answers with these candidates begin, of (B, V) logits of the first token, and behind
        a lone space or None."""
        ids, space = self.candidates.wanted(candidates), self.candidates.space
        first = _first(logits, ids)
        if after is None or space is None or not self.candidates.spaced(candidates):
            return first
        return first.followed(space, _first(after, ids))


def _first(logits: torch.Tensor, ids: Sequence[int]) -> FirstTokens:
    """(B, V) logits as those of these tokens."""
    exact = logits.double()
    scores = zip(((i,) for i in ids), exact[:, list(ids)].T.cpu().numpy(), strict=True)
    total = torch.logsumexp(exact, dim=-1).cpu().numpy()
    return FirstTokens(dict(scores), total, [(top,) for top in exact.argmax(-1).tolist()])
