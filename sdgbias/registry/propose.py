"""New registry entries: the proposal of ``sdgbias register-model`` for a hub repository or a folder
of weights, with reasons.

Reads config.json, the processor's configuration and the headers or sizes of safetensors; never
weights, pickles or code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sdgbias.errors import HubUnreachable, RegistryError, UsageError, argument, one_of
from sdgbias.registry import hub, machine
from sdgbias.registry.entries import (
    HUB_ID,
    load_readable,
    parse,
    to_dict,
)
from sdgbias.registry.facts import answers_not, code_elsewhere, look
from sdgbias.registry.hub import ModelFacts
from sdgbias.registry.machine import Machine
from sdgbias.registry.spec import BACKENDS, VALID_REPOS, ModelSpec
from sdgbias.types import CANDIDATE, ENABLED, FACET, IMAGE_FREE, QUARANTINED

#: What an entry says that isn't there.
NO_ENTRY = ModelSpec("", "", "", "", "", state="", dtype="", batch_size=0)
#: Families that were trained on one picture per prompt: the benchmark's composite layout.
ONE_PICTURE = ("blip-2", "instructblip", "llava", "paligemma", "vipllava")
_WEIGHTED = ("hf", "vllm")
#: Baselines that choose a label -> the family that each loads.
_ZERO_SHOT = {"clip-zero-shot": "clip", "vit-zero-shot": "vit"}
#: Up to this many parameters float32 costs little on any device, and is proposed whatever the
#: config states: in half precision the answer to a prompt varies with the rest of its batch.
FLOAT32_PARAMS = 100_000_000


@dataclass(frozen=True)
class Request:
    """The user's choices; empty fields are proposed."""

    name: str = ""
    title: str = ""
    backend: str = ""
    revision: str = ""
    dtype: str = ""
    tensor_parallel: int = 0
    max_images: int | None = None
    trust_remote_code: bool = False
    notes: str = ""
    suites: tuple[str, ...] = ()
    gpu: str = ""


@dataclass(frozen=True)
class Served:
    """The architectures that a vLLM serves, by its own account."""

    version: str = ""
    architectures: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Host:
    """The host that would run the model. families, language: the model_types that this transformers
    supports as vision-language and as language models, computed only when needed, as is served;
    no_vllm: why vLLM can't run here, '' when it can; versions: of the libraries that decide."""

    machine: Machine
    families: Callable[[], frozenset[str]] = frozenset
    no_vllm: str = "vLLM isn't installed here"
    language: Callable[[], frozenset[str]] = frozenset
    served: Callable[[], Served] = Served
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Proposal:
    """spec: a valid candidate; verdicts: one line each, for the user; obstacle: why it can't be
    enabled here, '' when only its probes remain; gib: needed on each of its devices, 0 where not
    known."""

    spec: ModelSpec
    verdicts: tuple[str, ...]
    obstacle: str
    gib: float = 0.0
    devices: int = 1


def propose(
    repo: str, root: Path, here: Host, wanted: Request = Request(), base: ModelSpec | None = None
) -> Proposal:
    """A candidate for a hub id OWNER/NAME, ``local:FOLDER``, a folder inside the repository, or
    ``path:/ABSOLUTE/FOLDER``. Nothing is written.

    base: the entry whose settings are kept, NO_ENTRY for none; default: the one of the same
    repository (and name, if one is given). A hub revision is resolved to its commit. Errors:
    RegistryError (not found, no safetensors, neither a vision-language nor a language model, remote
    code), Gated, ExpiredToken, HubUnreachable (and no commit given).
    """
    if wanted.backend and wanted.backend not in BACKENDS:
        raise RegistryError(one_of("backend", wanted.backend, BACKENDS))
    if wanted.backend.startswith("planted") or wanted.backend == "api":
        raise RegistryError(
            f"backend {wanted.backend!r} has nothing to look up; copy an entry of registry/models"
            " by hand"
        )
    repo = _canonical_repo(repo, root)
    base = base or _existing_entry(repo, wanted.name, root)
    try:
        facts = look(repo, wanted.revision, root)
    except (hub.NoRepository, hub.AccessDenied, HubUnreachable) as error:
        if not Path(repo).parent.is_dir():
            raise
        # an id of the hub looks like a path: whoever meant one is told so
        raise type(error)(f"{error}; nor is there a folder {Path(repo).absolute()}") from None
    backend, why_backend = _backend(wanted, base, facts, here)
    dtype, why_dtype = _dtype(wanted, base, facts, here)
    views = IMAGE_FREE if _language(facts, here) else base.views
    params = facts.params or int((base.params_b or 0) * 1e9)
    weights, heads = facts.weights(dtype, params), machine.heads_of(facts.config)
    kept = base.options.get("tensor_parallel_size", base.options.get("num_gpus", 0))
    devices = wanted.tensor_parallel or (kept if isinstance(kept, int) else 0)
    if not devices and backend in _WEIGHTED:
        devices = machine.devices_for(weights, here.machine, heads)
    devices = devices or 1
    wanted = replace(wanted, dtype=dtype, tensor_parallel=devices)
    size = 256 if backend == "vllm" else machine.batch_size(params, weights, devices, here.machine)
    spec = _entry(backend, wanted, base, facts, views, size)
    trusted = spec.trust_remote_code and bool(spec.notes.strip())
    code = _judge(repo, backend, facts, here, trusted)
    spec = parse(to_dict(spec), f"register-model {repo}")
    gib = machine.need(weights, devices)
    obstacle, enable = facts.unread, f"sdgbias models enable {spec.name}"
    each = f" for each of {devices} devices" if devices > 1 else ""
    parts = f"weights {weights:.1f} GiB"
    room = f"about {gib:.1f} GiB{each} ({parts}); seen here: {here.machine.words()}"
    if not weights:
        room = "not known: neither parameters nor sizes of weights were found"
    elif not machine.fits(gib, devices, here.machine):
        obstacle = obstacle or f"too large for this machine: {room}; where it fits: {enable}"
    if not obstacle and backend == "vllm" and here.no_vllm:
        obstacle = f"{here.no_vllm}; where it is (docs/how-to/vllm.md): {enable}"
    pictures = spec.options.get("max_images")
    shown = f"pictures  up to {pictures or 'any number'} a prompt: any layout"
    if pictures == 1:
        shown = "pictures  one a prompt: benchmark layout composite"
    if not spec.pictured:
        shown = f"views     {', '.join(spec.views)}: a language model, shown no pictures"
    billions = f"{spec.params_b:g} billion parameters" if spec.params_b else "parameters unknown"
    about = f"{facts.family or 'family unknown'}, {billions}, {spec.dtype}{why_dtype}"
    if facts.quantised:
        about += f", weights quantised ({facts.quantised}): scores are those of these weights"
    verdicts = (
        f"model     {about}, licence {spec.licence or 'not stated'}{code}",
        f"revision  {facts.commit}",
        f"backend   {backend}: {why_backend}",
        shown,
        f"memory    {room}{'; too large' if obstacle.startswith('too large') else ''}",
    )
    waits = obstacle or f"not checked yet: {enable}"
    gib = gib if weights else 0.0
    return Proposal(replace(spec, reason=waits), verdicts, obstacle, gib, devices)


def check_folder(repo: str, root: Path) -> None:
    """RegistryError for a folder without a model, and for what is neither folder nor hub id. No
    request is sent."""
    repo = _canonical_repo(repo, root)
    if repo.startswith(("local:", "path:")):
        look(repo, "", root)


def _existing_entry(repo: str, name: str, root: Path) -> ModelSpec:
    """The entry of the same repository (and name, if given); enabled entries first, then
    quarantined ones; NO_ENTRY where there is none."""
    readable = load_readable(root)[0].values()
    same = [s for s in readable if s.repo.lower() == repo.lower() and name in ("", s.name)]
    same.sort(key=lambda s: (s.state != ENABLED, s.state != QUARANTINED, s.name))
    return next(iter(same), NO_ENTRY)


def _entry(
    backend: str,
    wanted: Request,
    base: ModelSpec,
    facts: ModelFacts,
    views: tuple[str, ...],
    batch_size: int,
) -> ModelSpec:
    repo = facts.repo
    # a snapshot of the hub's cache has the name of a commit
    cached = re.search(r"/models--(?:[^/]+--)?([^/]+)/snapshots/[^/]+$", repo)
    last = cached[1] if cached else repo.rstrip("/").split("/")[-1]
    stem = re.sub(r"[^a-z0-9._-]+", "-", last.split(":")[-1].lower()).strip("-._") or "model"
    params = float(f"{facts.params / 1e9:.3g}") if facts.params else base.params_b
    notes = wanted.notes or base.notes
    if repo.startswith("path:") and "machine-specific" not in notes:
        where = f"weights lie in {repo[5:]} of the machine that registered it."
        notes = f"machine-specific: {where} {notes}".strip()
    options = dict(base.options)
    if wanted.max_images is not None:
        options["max_images"] = wanted.max_images
    elif not base.name and facts.family in ONE_PICTURE:
        options["max_images"] = 1
    if wanted.tensor_parallel > 1 and backend == "vllm":
        options["tensor_parallel_size"] = wanted.tensor_parallel
    elif wanted.tensor_parallel > 1:
        options |= {"device_map": "auto", "num_gpus": wanted.tensor_parallel}
    if not wanted.suites and backend in _ZERO_SHOT and "suites" not in options:
        options["suites"] = [FACET]  # whose questions have labels to choose from
    options |= {"suites": list(wanted.suites)} if wanted.suites else {}
    options |= {"gpu": wanted.gpu} if wanted.gpu else {}
    return ModelSpec(
        name=wanted.name or base.name or stem,
        title=wanted.title or base.title or last,
        backend=backend,
        repo=repo,
        revision=facts.commit,
        state=CANDIDATE,
        reason="not checked yet",
        family=facts.family or base.family,
        params_b=params,
        dtype=wanted.dtype,
        batch_size=base.batch_size if base.backend == backend else batch_size,
        max_new_tokens=base.max_new_tokens,
        trust_remote_code=wanted.trust_remote_code or base.trust_remote_code,
        licence=facts.licence or base.licence,
        notes=notes,
        options=options,
        views=views,
    )


def _dtype(wanted: Request, base: ModelSpec, facts: ModelFacts, here: Host) -> tuple[str, str]:
    """(dtype, reason in brackets, '' where it is the requested or the config's one)."""
    given = wanted.dtype or base.dtype
    if given or facts.dtype == "float32" or not facts.params:
        return given or facts.dtype, ""
    stated = f"config: {facts.stated_dtype}; " if facts.stated_dtype else ""
    if facts.params <= FLOAT32_PARAMS:
        return "float32", f" ({stated}small enough for float32)"
    gib = machine.need(machine.weights_gib(facts.params, "float32"))
    cpu = not here.machine.gpus and not wanted.gpu  # option gpu: it runs on another machine
    if cpu and machine.fits(gib, max(wanted.tensor_parallel, 1), here.machine):
        return "float32", f" ({stated}no GPU here)"
    return facts.dtype, ""


def _backend(wanted: Request, base: ModelSpec, facts: ModelFacts, here: Host) -> tuple[str, str]:
    """(backend, reason)."""
    backend, why = wanted.backend, "as requested"
    if not backend and base.backend:
        backend, why = base.backend, f"as {base.name} has it"
    elif not backend and here.no_vllm:
        backend, why = "hf", here.no_vllm
    elif not backend and not here.machine.gpus and wanted.tensor_parallel <= 1:
        backend, why = "hf", "no GPU here"
    elif not facts.unread and not here.no_vllm and backend in ("", "vllm"):
        served, kind = here.served(), facts.architecture or f"model_type {facts.family!r}"
        serves = facts.architecture in served.architectures
        if backend and not serves:
            raise RegistryError(
                f"{kind} isn't served by vLLM {served.version}, by its own list; choose"
                " --backend hf, or a newer vLLM: docs/how-to/vllm.md"
            )
        if not backend:
            backend = "vllm" if serves else "hf"
            why = f"vLLM {served.version} {'serves' if serves else 'does not serve'} {kind}"
    backend = backend or "hf"
    if wanted.tensor_parallel > 1 and backend != "vllm":
        raise UsageError(
            f"--tensor-parallel {wanted.tensor_parallel}: backend {backend} ({why}) uses one"
            " device; choose --backend vllm"
        )
    return backend, why


def _language(facts: ModelFacts, here: Host) -> bool:
    """Whether the model reads text alone: as this transformers knows its family, or, of a family
    that it doesn't know, as a repository without a processor of pictures has it."""
    if facts.sees or facts.family in here.families():
        return False
    return facts.family in here.language() or ("auto_map" in facts.config and not facts.processor)


def _judge(repo: str, backend: str, facts: ModelFacts, here: Host, trusted: bool) -> str:
    """RegistryError for a model that can't be scored or needs remote code without permission; else
    a note on such code."""
    needed = _ZERO_SHOT.get(backend, facts.family)
    if facts.family != needed and not facts.unread:
        raise RegistryError(
            f"{repo}: backend {backend} scores model_type {needed!r}, not {facts.family!r}; leave"
            " --backend out, or choose another model"
        )
    if backend not in _WEIGHTED or facts.unread:
        return ""
    encodes = facts.config.get("is_encoder_decoder") is True
    if why := answers_not(facts.architecture, encodes and _language(facts, here)):
        raise RegistryError(f"{repo}: {why}")
    if trusted and (why := code_elsewhere(repo, facts.config, facts.processor)):
        raise RegistryError(f"{repo}: {why}")
    # Phi-4 multimodal is listed for speech: what a family is known for counts more than the tag
    if facts.purpose and facts.family not in here.families() and not trusted:
        raise RegistryError(
            f"{repo}: the hub lists it for {facts.purpose!r}; choose an image-text-to-text or a"
            " text-generation model"
        )
    kind, own_code = facts.family, "auto_map" in facts.config or "auto_map" in facts.processor
    supported = kind in here.families() or (not facts.sees and kind in here.language())
    if not supported and not facts.sees and not own_code:
        raise RegistryError(
            f"{repo}: model_type {kind!r} has no vision_config, and this transformers knows it"
            " neither as image-text-to-text nor as a language model; choose one of these"
        )
    if not supported and not own_code and "For" not in (facts.architecture or "For"):
        raise RegistryError(
            f"{repo}: an encoder ({facts.architecture}): puts out vectors, no text; choose a model"
            " that answers"
        )
    if supported:
        unused = "; its own code (auto_map) isn't run: transformers knows the family"
        return unused if own_code and not trusted else ""
    if own_code and not trusted:
        raise RegistryError(
            f"{repo}: model_type {kind!r} needs code of its own (auto_map), which isn't run; read"
            f" it, then: sdgbias register-model {argument(repo)} --trust-remote-code --notes"
            " 'read by WHO at COMMIT'"
        )
    if not own_code:
        writer = facts.config.get("transformers_version")
        text = f" (config.json was written by transformers {writer})"
        by = text if isinstance(writer, str) else ""
        raise RegistryError(
            f"{repo}: model_type {kind!r} is unknown to this transformers as"
            f" image-text-to-text{by}; a newer one may know it: pip install --upgrade transformers"
        )
    return "; runs code of its own"


def _canonical_repo(repo: str, root: Path) -> str:
    """Folders inside the repository become local:..., other folders path:/... (noted as
    machine-specific); ids are not changed."""
    if repo.startswith(("local:", "path:")):
        return repo
    folder = Path(repo).expanduser()
    if folder.is_dir():
        folder, home = folder.resolve(), root.resolve()
        inside = folder.is_relative_to(home)
        return f"local:{folder.relative_to(home).as_posix()}" if inside else f"path:{folder}"
    if repo.startswith(("/", "./", "../", "~")):
        raise RegistryError(
            f"{repo}: no such folder; give a folder, path:/ABSOLUTE/FOLDER or a hub id OWNER/NAME"
        )
    if not HUB_ID.fullmatch(repo):
        raise RegistryError(f"repo {repo!r}; valid: {VALID_REPOS}")
    return repo
