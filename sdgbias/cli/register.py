"""`sdgbias register-model`: a hub repository or a folder becomes a registry entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from sdgbias.cli.application import MODELS, app
from sdgbias.cli.options import (
    DEFAULT_RESULTS,
    DryRunOption,
    ProbeBenchmark,
    ResultsOption,
    YesOption,
    ask_probes,
    comma_list,
    confirmed,
)
from sdgbias.errors import InfrastructureError, UsageError
from sdgbias.types import CANDIDATE, ENABLED

if TYPE_CHECKING:
    from sdgbias.registry.propose import Proposal
    from sdgbias.registry.spec import ModelSpec


@app.command(
    "register-model",
    rich_help_panel=MODELS,
    epilog="Example: sdgbias register-model OWNER/NAME --dry-run",
)
def register_model(
    repo: Annotated[str, Argument(help="Hub id (owner/name) or a local folder.")],
    name: Annotated[str, Option(help="Name of the entry. Default: the last part of REPO.")] = "",
    revision: Annotated[str, Option(help="Branch, tag or commit. Default: the newest.")] = "",
    backend: Annotated[
        str, Option(help="hf, vllm or a zero-shot backend. Default: vllm, if it serves the model.")
    ] = "",
    dtype: Annotated[
        str, Option(help="float32, bfloat16 or float16. Default: float32 if small, else config's.")
    ] = "",
    tensor_parallel: Annotated[
        int | None, Option(min=1, help="Number of GPUs for vllm. Default: as few as suffice.")
    ] = None,
    max_images: Annotated[
        int | None, Option(min=1, help="Most pictures that a prompt may show.")
    ] = None,
    trust_remote_code: Annotated[
        bool, Option("--trust-remote-code", help="Run the repository's own code; needs --notes.")
    ] = False,
    notes: Annotated[
        str, Option(help="Free text; for remote code: who read it, and at which commit.")
    ] = "",
    suites: Annotated[
        str,
        Option(help="Suites of its nights: sdg, people or both. Default: sdg; zero-shot: people."),
    ] = "",
    gpu: Annotated[str, Option(help="GPU kind of its work pool. Default: cpu.")] = "",
    enable: Annotated[
        bool,
        Option(
            "--enable/--candidate", help="Enable the model if its probes pass, or don't probe it."
        ),
    ] = True,
    probes: Annotated[
        int, Option(min=6, help="Number of prompts that are scored before it is enabled.")
    ] = 12,
    benchmark: ProbeBenchmark = None,
    results: ResultsOption = DEFAULT_RESULTS,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    overwrite: Annotated[
        bool, Option("--overwrite", help="Replace an entry of the same name.")
    ] = False,
) -> None:
    """Add a model from a hub or a folder to the registry.

    The revision is pinned, the memory is estimated, a few probes are scored, and the entry is shown
    and written to registry/models/NAME.yaml. It is enabled only if its probes pass; otherwise it is
    a candidate, with the reason. No pickles are read, and no code of the repository runs without
    --trust-remote-code. HF_ENDPOINT names another hub, SDGBIAS_GPUS=8x80 other GPUs. How the memory
    is estimated: registry/README.md.
    """
    from sdgbias.registry import entries, propose

    root = entries.find_root()
    propose.check_folder(repo, root)  # before engines are imported to look at the machine
    from sdgbias.registry import entries
    from sdgbias.scoring import admission, parity

    suite_names = tuple(comma_list(suites))
    for fault in filter(None, map(entries.suite_fault, suite_names)):
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
        suites=suite_names,
        gpu=gpu,
    )
    proposal = propose.propose(repo, root, admission.here(root), wanted)
    entries.require_free(root, proposal.spec, overwrite)
    typer.echo("\n".join(proposal.verdicts))
    spec, outcome, check = _judge(proposal, root, benchmark, probes if enable else 0)
    reason = f": {spec.reason}" if spec.reason else ""
    typer.echo(f"probes    {outcome}\nstate     {spec.state}{reason}\n\n{entries.to_yaml(spec)}")
    if dry_run:
        typer.echo("Nothing is written (--dry-run). Next: the same command without it.")
        return
    if not confirmed(yes, f"Write registry/models/{spec.name}.yaml?", default=True):
        typer.echo("Nothing is written.")
        return
    path = entries.write(root, spec, overwrite=overwrite)
    if check:
        parity.save(results.parent, dict(check))
    typer.echo(
        f"{path}: {spec.name} ({spec.backend}, {spec.dtype}, {spec.revision}), {spec.state}. Next:"
        f" sdgbias {'evaluate' if spec.enabled else 'models show'} {spec.name}"
    )


def _judge(
    proposal: Proposal, root: Path, benchmark: Path | None, probes: int
) -> tuple[ModelSpec, str, Mapping[str, Any] | None]:
    """(the entry with its state and the reason for it, the outcome of the probes in a line, the
    engine check to store). ``probes``: 0 for a candidate that isn't probed."""
    spec, obstacle = proposal.spec, proposal.obstacle
    if not probes:
        reason = f"registered with --candidate: sdgbias models enable {spec.name}"
        outcome = f"not probed: --candidate; {_try_processor(spec, root)}"
        return replace(spec, reason=obstacle or reason), outcome, None
    if obstacle:
        return spec, "not probed: it can't run here", None
    verdict = ask_probes(spec, root, benchmark, probes)
    state, reason = (ENABLED, "") if verdict.passed else (CANDIDATE, verdict.line)
    spec = replace(verdict.entry or spec, state=state, reason=reason)
    return spec, verdict.line, verdict.stored


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
