"""`sdgbias register-model`: a hub repository or a folder becomes a registry entry."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdgbias.cli.options import DEFAULT_RESULTS, ResultsOption, probed
from sdgbias.errors import InfrastructureError, UsageError
from sdgbias.types import CANDIDATE, ENABLED

if TYPE_CHECKING:
    from sdgbias.registry.spec import ModelSpec


def _try_processor(spec: ModelSpec, root: Path) -> str:
    """Loads what makes prompts of text and pictures, without the weights, and says how that went.
    ModelError where the files can never be loaded; a hub that doesn't answer is no reason
    against a candidate."""
    if spec.backend not in ("hf", "vllm"):
        return "no processor of its own"
    from sdgbias.engines.hf.processor import load_processor

    try:
        processor = load_processor(spec, root)
    except InfrastructureError as error:
        return f"its processor was not tried: {error}"
    return f"its processor loads ({type(processor).__name__})"


def register_model(
    repo: Annotated[str, typer.Argument()],
    name: str = "",
    revision: str = "",
    backend: str = "",
    dtype: str = "",
    tensor_parallel: Annotated[int | None, typer.Option(min=1)] = None,
    max_images: Annotated[int | None, typer.Option(min=1)] = None,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code")] = False,
    notes: str = "",
    suites: str = "",
    gpu: str = "",
    enable: Annotated[bool, typer.Option("--enable/--candidate")] = True,
    probes: Annotated[int, typer.Option(min=6)] = 12,
    benchmark: Annotated[
        Path | None, typer.Option(envvar="SDGBIAS_BENCHMARK", show_envvar=False)
    ] = None,
    results: ResultsOption = DEFAULT_RESULTS,
    yes: Annotated[bool, typer.Option("--yes")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite")] = False,
) -> None:
    """Add a model as registry/models/NAME.yaml: its revision pinned, its memory judged, asked a few
    probes, shown, then written.

    It is enabled only when its probes pass, else a candidate with the reason. Reads no pickles,
    runs no code of the repository (unless --trust-remote-code). HF_ENDPOINT names another hub,
    SDGBIAS_GPUS=8x80 other GPUs. How memory is judged: registry/README.md.

    Args:
        repo: Hub id (owner/name) or a local folder.
        name: Name in the registry; default: the last part of REPO.
        revision: Branch, tag or commit; default: the newest commit.
        backend: hf, vllm or a zero-shot one; default: vllm where it serves it.
        dtype: float32, bfloat16, float16; default: the config's, float32 if small.
        tensor_parallel: GPUs that share it (vllm); default: as few as hold it.
        max_images: Pictures a prompt may show.
        trust_remote_code: Run the repository's own code; needs --notes.
        notes: Free text; for remote code: who read it, at which commit.
        suites: Suites of its nights: sdg, people or sdg,people; default: sdg.
        gpu: GPU kind of the work pool that runs it; default: cpu.
        enable: Enabled if its probes pass, or a candidate unasked.
        probes: Prompts scored before it is enabled.
        benchmark: Benchmark folder to draw probes from.
        yes: Write without asking.
        dry_run: Show what would be written, and write nothing.
        overwrite: Replace an entry of the same name.
    """
    from sdgbias.registry import entries, propose

    root = entries.find_root()
    propose.check_folder(repo, root)  # before engines are imported to look at the machine
    from sdgbias.registry import changes
    from sdgbias.scoring import admission, parity

    asked = tuple(part.strip() for part in suites.split(",") if part.strip())
    for fault in filter(None, map(entries.suite_fault, asked)):
        raise UsageError(f"--suites: {fault}")
    wanted = propose.Request(
        name=name,
        backend=backend,
        revision=revision,
        dtype=dtype,
        tensor_parallel=tensor_parallel or 0,
        max_images=max_images,
        trust_remote_code=trust_remote_code,
        notes=notes,
        suites=asked,
        gpu=gpu,
    )
    found = propose.propose(repo, root, admission.here(root), wanted)
    spec = found.spec
    changes.require_free(root, spec, overwrite)
    typer.echo("\n".join(found.verdicts))
    verdict = None
    if not enable:
        said = f"not probed: --candidate; {_try_processor(spec, root)}"
        spec = replace(
            spec,
            reason=found.obstacle
            or f"registered with --candidate: sdgbias models enable {spec.name}",
        )
    elif found.obstacle:
        said = "not probed: it can't run here"
    else:
        verdict = probed(spec, root, benchmark, probes)
        said, spec = verdict.line, verdict.entry or spec
        spec = (
            replace(spec, state=ENABLED, reason="")
            if verdict.passed
            else replace(spec, state=CANDIDATE, reason=verdict.line)
        )
    typer.echo(
        f"probes    {said}\nstate    "
        f" {spec.state}{f': {spec.reason}' if spec.reason else ''}\n\n{changes.to_yaml(spec)}"
    )
    if dry_run:
        typer.echo("Nothing is written (--dry-run). Next: the same command without it.")
        return
    if (
        not yes
        and sys.stdin.isatty()
        and not typer.confirm(f"Write registry/models/{spec.name}.yaml?", default=True)
    ):
        typer.echo("Nothing is written.")
        return
    path = changes.write(root, spec, overwrite=overwrite)
    if verdict and verdict.stored:
        parity.save(results.parent, dict(verdict.stored))
    onward = f"sdgbias evaluate {spec.name}" if spec.enabled else f"sdgbias models show {spec.name}"
    typer.echo(
        f"{path}: {spec.name} ({spec.backend}, {spec.dtype}, {spec.revision}), {spec.state}. Next:"
        f" {onward}"
    )
