"""The transformers engine: exact first-token candidate scores and greedy answers of any
image-text-to-text or language model, by the library's own `generate`.

Prompts go through the processor's chat template (raw text where it has none) into left-padded
batches; `generate` counts positions, begins the answers of encoder-decoder models and reads
pictures as each family does. Where the registry entry says so, the beginning that the prompts about
one picture share is computed once and its cache repeated for them, and so is a prompt for the
starts of its answers. Whether batches and shared beginnings give a model's scores was decided at
its admission (ways.py): nothing is tried here. Beside an accelerator the next batches are
decoded and processed while it computes one (prompt.py).
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from sdgbias.engines import Backend
from sdgbias.engines.fingerprint import VERSIONS, fingerprint
from sdgbias.engines.hf.load import (
    accepted,
    attention,
    language_part,
    load_model,
    load_processor,
    memory_errors,
    plain_attention,
)
from sdgbias.engines.hf.prompt import (
    Batch,
    InputMaker,
    batches,
    by_picture,
    check_template,
    common_length,
    probe_hash,
    render,
    template_of,
)
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
from sdgbias.errors import ModelError, NonFiniteLogits
from sdgbias.methods.answers import thought_begun
from sdgbias.registry.spec import ModelSpec
from sdgbias.types import DIGITS, LETTERS, OPTION_LETTERS, Generated, Prompt, ScoreBatch

_VERSION = VERSIONS["hf"]
#: Inputs with one value per token.
_OF_TOKENS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")

#: Logits of a batch that are computed at once behind a shared beginning: rows times places.
_PLACES = 512

_Scored = tuple[list[int], torch.Tensor, torch.Tensor | None, list[int]]


class _Rows(NamedTuple):
    """A batch: rows of the prompts that an engine was given, and how they are computed."""

    rows: list[int]
    behind_picture: bool = False
    spaced: bool = False

    def of(self, prompts: Sequence[Prompt]) -> Batch:
        return self.behind_picture, tuple(prompts[row] for row in self.rows)


@dataclasses.dataclass(frozen=True)
class State:
    """B prompts as far as the model has read them: (B, L) ids and mask, the cache of their keys and
    values, (B, V) logits of the next token."""

    ids: torch.Tensor
    mask: torch.Tensor
    cache: Any
    logits: torch.Tensor


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
        self.processor, self.template = load_processor(spec, root), template_of(spec)
        check_template(self.processor, self.template, spec)
        self.model, self.device = load_model(spec, root)
        self.tokenizer = self.processor.tokenizer
        self.candidates = find_candidates(
            self.tokenizer, LETTERS + DIGITS, optional=LETTERS.lower() + OPTION_LETTERS
        )
        self.ends = end_ids(self.model.generation_config.eos_token_id, self.tokenizer)
        parameters = inspect.signature(self.model.forward).parameters
        #: Whether the model requires a picture (InstructBLIP): its language model alone answers the
        #: prompts that show none.
        self.needs_picture = (
            "pixel_values" in parameters
            and parameters["pixel_values"].default is inspect.Parameter.empty
        )
        self.maker = InputMaker(
            self.processor,
            self.template,
            self.name,
            parameters,
            options.max_images,
            ahead=self.device.type != "cpu",
        )
        self.counts: Counter[str] = Counter()
        self.fingerprint = fingerprint(
            spec,
            root,
            _VERSION,
            self.device.type,
            f"attention {attention(self.model.config)}",
            f"prompts {probe_hash(self.processor, self.template)}",
            f"pictures {json.dumps(options.processor, sort_keys=True)}",
        )

    def render(self, prompt: Prompt) -> str:
        return render(self.processor, prompt, self.template)

    def inputs(self, prompts: Sequence[Prompt]) -> dict[str, torch.Tensor]:
        """A left-padded batch of prompts that all show pictures, or none. ModelError for too many
        pictures."""
        return self._on_device(self.maker.get(prompts).tensors)

    def _on_device(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies, because a model may write into its inputs."""
        return {
            k: v.to(self.device, self.dtype if v.is_floating_point() else v.dtype, copy=True)
            for k, v in tensors.items()
        }

    def prefetch(
        self, prompts: Sequence[Prompt], starts: Sequence[str] = (), max_new_tokens: int = 0
    ) -> None:
        rows = self._answered(prompts) if starts else self._batches(prompts)
        self.maker.prefetch([batch.of(prompts) for batch in rows])

    def other_attention(self) -> AbstractContextManager[bool]:
        return plain_attention(self.model)

    def _part(self, inputs: dict[str, Any]) -> Any:
        """The model, or its language model alone, which answers these inputs."""
        if self.needs_picture and "pixel_values" not in inputs:
            return language_part(self.model, self.name)
        return self.model

    def forward(self, **inputs: Any) -> Any:
        """One forward pass."""
        model = self._part(inputs)
        self.counts["forwards"] += 1
        with memory_errors():
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
        with memory_errors():
            out = model.generate(
                **accepted(model, inputs),
                max_new_tokens=new,
                do_sample=False,
                pad_token_id=self.tokenizer.pad_token_id,
                return_dict_in_generate=True,
                logits_processor=LogitsProcessorList([forced]),
                **options,
            )
        self.counts["forwards"] += forced.step
        return out.sequences[:, -forced.step :].tolist(), out

    @torch.inference_mode()
    def candidate_scores(self, prompts: Sequence[Prompt]) -> ScoreBatch:
        out, tokens = ScoreBatch.empty(prompts), self.candidates
        self.counts["prompts"] += len(prompts)
        for rows, logits, after, lengths in self._scored(prompts):
            out.n_tokens[rows] = lengths
            for candidates in dict.fromkeys(prompts[row].candidates for row in rows):
                at = [b for b, row in enumerate(rows) if prompts[row].candidates == candidates]
                alike, ids = [prompts[rows[b]] for b in at], tokens.wanted(candidates)
                first, behind = _first(logits[at], ids), None
                if after is not None and tokens.spaced(alike[0]):
                    behind = _first(after[at], ids)
                put(out, [rows[b] for b in at], alike, first, behind, tokens, self.tokenizer)
        return out

    def _batches(self, prompts: Sequence[Prompt]) -> list[_Rows]:
        """The batches in which N prompts are scored: their rows, whether behind the picture that
        they share, whether a candidate may come behind a lone space."""
        made, alone = [], dict[tuple[bool, bool], list[int]]()
        for rows in by_picture(prompts):
            if self.share_prefix and len(rows) > 1 and prompts[rows[0]].images:
                made.append(_Rows(rows, True))
                continue
            for row in rows:
                kind = bool(prompts[row].images), self.candidates.spaced(prompts[row])
                alone.setdefault(kind, []).append(row)
        for (_, spaced), rows in alone.items():
            long = [len(prompts[row].text) for row in rows]
            for batch in batches(long, self.batch_size):
                made.append(_Rows([rows[b] for b in batch], False, spaced))
        return made

    def _answered(self, prompts: Sequence[Prompt]) -> list[_Rows]:
        """The batches in which N prompts are answered."""
        kinds = [
            [row for row, prompt in enumerate(prompts) if bool(prompt.images) is pictured]
            for pictured in (True, False)
        ]
        size = self.batch_size
        return [_Rows(kind[at : at + size]) for kind in kinds for at in range(0, len(kind), size)]

    def _scored(self, prompts: Sequence[Prompt]) -> Iterator[_Scored]:
        """(rows, (B, V) logits of their first tokens, those behind a lone space or None, lengths in
        tokens), batch by batch."""
        split = self._batches(prompts)
        with self.maker.using([batch.of(prompts) for batch in split]):
            for rows, behind_picture, spaced in split:
                if behind_picture:
                    yield from self._behind_picture(prompts, rows)
                    continue
                then = self.candidates.space if spaced else None
                yield rows, *self.first_tokens([prompts[row] for row in rows], then)

    def first_tokens(
        self, prompts: Sequence[Prompt], then: int | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, list[int]]:
        """One left-padded batch, each prompt by itself: ((B, V) logits of the first token, those of
        the token behind a first one ``then`` or None, lengths in tokens)."""
        inputs = self.inputs(prompts)
        lengths: list[int] = inputs["attention_mask"].sum(-1).tolist()
        two = then is not None
        choices = [] if then is None else [[(then,)]] * len(prompts)
        _, out = self._generate(
            inputs, 1 + two, choices, finite=False, output_logits=True, use_cache=two
        )
        self.counts["tokens_of_prompts"] += sum(lengths)
        self.counts["tokens_prefilled"] += sum(lengths)
        self.counts["images_encoded"] += sum(len(prompt.images) for prompt in prompts)
        return out.logits[0], out.logits[1] if two else None, lengths

    def _behind_picture(self, prompts: Sequence[Prompt], rows: list[int]) -> Iterator[_Scored]:
        """Prompts about one picture: what they begin with, picture included, is computed once, and
        its cache repeated for batches of what is left of them.

        A row holds its tokens, a lone space where candidates may come behind one, and padding,
        which no token in front of it sees; so the model counts positions itself. ModelError where
        the picture's tokens are not in the common beginning.
        """
        tensors, ids = self.maker.get([prompts[row] for row in rows], behind_picture=True)
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
        self.counts["images_encoded"] += len(prompts[rows[0]].images)
        for part in batches(list(map(len, tails)), self.batch_size, _PLACES):
            part_tails = [tails[b] for b in part]
            spaces = [self.candidates.spaced(prompts[rows[b]]) for b in part]
            logits, after = self._tails(cache, part_tails, spaces)
            self.counts["tokens_prefilled"] += sum(map(len, part_tails))
            lengths = [length + len(tail) for tail in part_tails]
            self.counts["tokens_of_prompts"] += sum(lengths)
            yield [rows[b] for b in part], logits, after, lengths

    def _tails(
        self, cache: Any, tails: Sequence[list[int]], spaced: Sequence[bool]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(B, V) logits at the end of each of B rows behind a cache of one row, and one token on
        where any is ``spaced``."""
        space, more = self.candidates.space or 0, any(spaced)
        pad = self.tokenizer.pad_token_id
        most = max(map(len, tails)) + more
        ids = [[*tail, *[space] * more, *[pad] * (most - len(tail) - more)] for tail in tails]
        ends = torch.tensor([len(tail) - 1 for tail in tails], device=self.device)
        kept = torch.cat([ends, ends + 1] if more else [ends]).unique()  # type: ignore[no-untyped-call]
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
        return logits[rows, at], logits[rows, after] if more else None

    @torch.inference_mode()
    def generate(
        self, prompts: Sequence[Prompt], starts: Sequence[str], max_new_tokens: int
    ) -> Generated:
        texts = [[""] * len(starts) for _ in prompts]
        truncated = [[False] * len(starts) for _ in prompts]
        answer = self._branched if self.share_prefix and len(starts) > 1 else self._plain
        split = self._answered(prompts)
        with self.maker.using([batch.of(prompts) for batch in split]):
            for rows, *_ in split:
                of_batch = [prompts[row] for row in rows]
                for b, answers in enumerate(answer(of_batch, starts, max_new_tokens)):
                    begun = thought_begun(self.render(of_batch[b]))
                    for s, (ids, cut) in enumerate(answers):
                        text = decoded(self.tokenizer, ids).strip()
                        texts[rows[b]][s], truncated[rows[b]][s] = begun + text, cut
        return Generated(texts, truncated)

    def _plain(
        self, prompts: Sequence[Prompt], starts: Sequence[str], limit: int
    ) -> list[list[Answer]]:
        """Answers of B prompts, one ordinary generation for each start."""
        first = behind = None
        if begins_behind_space(starts, self.candidates):
            first, behind, _ = self.first_tokens(prompts, self.candidates.space)
        choices = self._choices(starts, len(prompts), first, behind)
        answers: list[list[Answer]] = [[] for _ in prompts]
        tensors = self.maker.get(prompts).tensors
        for s in range(len(starts)):
            forced = [of_prompt[s] for of_prompt in choices]
            inputs, most = self._on_device(tensors), limit + max(map(len, forced))
            new, _ = self._generate(inputs, most, forced)
            for b, ids in enumerate(new):
                answers[b].append(cut_answer(ids, len(forced[b]), limit, self.ends))
        return answers

    def _choices(
        self,
        starts: Sequence[str],
        prompts: int,
        first: torch.Tensor | None,
        behind: torch.Tensor | None,
    ) -> list[list[Choices]]:
        """As `choices_of`; (B, V) logits of the first token, and behind a lone space, or None."""
        ids, both = self.candidates.wanted(DIGITS), None
        if first is not None and behind is not None:
            both = _first(first, ids), _first(behind, ids)
        return choices_of(starts, self.candidates, prompts, both)

    def _branched(
        self, prompts: Sequence[Prompt], starts: Sequence[str], limit: int
    ) -> list[list[Answer]]:
        """Answers of B prompts, each prompt computed once for its S starts."""
        n, space = len(starts), self.candidates.space
        state = self.prefill(prompts)
        self.counts["decode_prefills"] += len(prompts)
        behind = None
        if begins_behind_space(starts, self.candidates):
            behind = self.follow(state, space)
        choices = self._choices(starts, len(prompts), state.logits, behind)
        forced = [choice for of_prompt in choices for choice in of_prompt]
        state = self.repeat(state, n)
        logits = Forced(forced)(state.ids, state.logits)
        first = logits.argmax(-1, keepdim=True)
        rest = [choice[1:] for choice in forced]
        new, _ = self._go_on(state, first, limit + max(map(len, rest)), rest)
        whole = [[*begun, *ids] for begun, ids in zip(first.tolist(), new, strict=True)]
        answers = [
            cut_answer(ids, len(choice), limit, self.ends)
            for ids, choice in zip(whole, forced, strict=True)
        ]
        return [answers[at : at + n] for at in range(0, len(answers), n)]

    def prefill(self, prompts: Sequence[Prompt]) -> State:
        """B prompts computed, all with pictures or all without."""
        inputs = self.inputs(prompts)
        _, out = self._generate(inputs, 1, [], finite=False, output_logits=True, use_cache=True)
        return State(
            inputs["input_ids"], inputs["attention_mask"], out.past_key_values, out.logits[0]
        )

    def repeat(self, state: State, times: int) -> State:
        """Each prompt ``times`` times in a row; the state given is used up."""
        state.cache.batch_repeat_interleave(times)
        for module in self.model.modules():  # what places text behind a picture, beside the cache
            places = getattr(module, "rope_deltas", None)
            if isinstance(places, torch.Tensor):
                module.rope_deltas = places.repeat_interleave(times, 0)
        rows = (part.repeat_interleave(times, 0) for part in (state.ids, state.mask, state.logits))
        ids, mask, logits = rows
        return State(ids, mask, state.cache, logits)

    def follow(self, state: State, token: int | None) -> torch.Tensor:
        """(B, V) logits behind one more token; the state stays as it is."""
        column = torch.full_like(state.ids[:, :1], token or 0)
        kept = dataclasses.replace(state, cache=copy.deepcopy(state.cache))
        _, out = self._go_on(kept, column, 1, [], finite=False, output_logits=True)
        logits: torch.Tensor = out.logits[0]
        return logits

    def _go_on(
        self,
        state: State,
        column: torch.Tensor,
        new: int,
        choices: Any,
        finite: bool = True,
        **options: Any,
    ) -> tuple[list[list[int]], Any]:
        """`_generate` behind a state and one more token (B, 1)."""
        inputs = {
            "input_ids": torch.cat([state.ids, column], dim=1),
            "attention_mask": torch.cat([state.mask, torch.ones_like(column)], dim=1),
            "past_key_values": state.cache,
        }
        return self._generate(inputs, new, choices, finite, **options)


def _first(logits: torch.Tensor, ids: Sequence[int]) -> FirstTokens:
    """(B, V) logits as those of these tokens."""
    exact = logits.double()
    scores = dict(zip(ids, exact[:, list(ids)].T.cpu().numpy(), strict=True))
    total = torch.logsumexp(exact, dim=-1).cpu().numpy()
    return FirstTokens(scores, total, exact.argmax(-1).tolist())
