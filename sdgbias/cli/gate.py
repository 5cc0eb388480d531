"""`sdgbias gate`: last night against the last good runs, what is accepted, and the message."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from sdgbias.cli.application import NIGHTS, group
from sdgbias.cli.options import (
    DEFAULT_RESULTS,
    JsonOption,
    ResultsOption,
    print_json,
    print_table,
)
from sdgbias.errors import InfrastructureError, RegistryError, RegressionBreach, UsageError
from sdgbias.progress import update

if TYPE_CHECKING:
    from sdgbias.nightly.regression import Judgement
    from sdgbias.nightly.regression.policy import Policy

gate_app = group("gate", NIGHTS)
#: Of more evaluations only those in breach are listed rule by rule.
_LISTED = 4
NOT_JUDGED = "not judged"
PolicyOption = Annotated[
    Path | None, Option("--policy", help="Policy file; default: registry/policy.yaml.")
]


@gate_app.callback(epilog="Example: sdgbias gate")
def gate(
    context: typer.Context,
    results: ResultsOption = DEFAULT_RESULTS,
    night: Annotated[
        str, Option(help="Night to judge, e.g. 2026-11-21T0130; default: the newest.")
    ] = "",
    model: Annotated[str, Option(help="One model alone. Default: all of the night.")] = "",
    policy: PolicyOption = None,
    run: Annotated[str, Option(help="Judge this run, even if it was judged before (for CI).")] = "",
    baseline: Annotated[
        str, Option(help="With --run: the run to compare with. Default: the last good one.")
    ] = "",
    as_json: JsonOption = False,
    strict: Annotated[
        bool,
        Option("--strict", help="Also fail on every verdict but PASS."),
    ] = False,
) -> None:
    """Judge the newest runs, accept a breach, send the message.

    The runs of the newest night (without nights, the newest run of each model) are compared rule by
    rule with the last good run of their model. Verdicts are PASS, BREACH, INSUFFICIENT_EVIDENCE,
    MISSING and FIRST_RUN. The exit code is 6 on a breach, else 0.
    """
    if context.invoked_subcommand is not None:
        return
    from sdgbias import store
    from sdgbias.nightly import regression
    from sdgbias.nightly.regression import baseline as runs

    if baseline and not run:
        raise UsageError("--baseline needs --run: name the run that is compared with it")
    if run and (night or model):
        raise UsageError("--run is judged alone; leave out --night and --model")
    chosen = _policy(policy)
    with store.connect(results, read_only=True):  # no results yet: said before anything else
        pass
    targets = [runs.by_hand(results, run)] if run else runs.of_night(results, night, model)
    judgements = regression.judge_runs(results, targets, chosen, baseline, update)
    if not run:
        _quarantine(judgements)
    print_judgements(judgements, as_json)
    _end(judgements, strict)


@gate_app.command("accept", epilog='Example: sdgbias gate accept RUN --reason "new weights"')
def accept(
    run: Annotated[str, Argument(help="Run whose breaches were looked at.")],
    reason: Annotated[str, Option(help="Why they are accepted, in one line.")],
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Accept the breaches of a run.

    Later runs are compared with this run, and it is no longer announced.
    """
    from sdgbias import store
    from sdgbias.nightly.regression import baseline as runs
    from sdgbias.registry import entries
    from sdgbias.types import QUARANTINED

    many, before = runs.accept(results, run, reason, datetime.now(UTC).replace(tzinfo=None))
    typer.echo(
        f"{run}: {many} breach{'es' if many > 1 else ''} accepted; the next runs are compared"
        f" with it{f'; this replaces the reason {before!r}' if before else ''}"
    )
    model = str(store.run_of(results, run)["model"])
    with suppress(RegistryError):  # the model of a results file from elsewhere has no entry here
        spec = entries.load(entries.find_root(), model)
        if spec.state == QUARANTINED:
            typer.echo(f"{model} stays quarantined ({spec.reason}): sdgbias models enable {model}")


@gate_app.command("announce", epilog="Example: sdgbias gate announce --dry-run")
def announce(
    results: ResultsOption = DEFAULT_RESULTS,
    night: Annotated[
        str, Option(help="Night to announce. Default: the newest, and those whose message failed.")
    ] = "",
    policy: PolicyOption = None,
    webhook_env: Annotated[
        str, Option(help="Name of the variable that has the address. Default: the policy's.")
    ] = "",
    link: Annotated[str, Option(help="Address of the page of the night, for the message.")] = "",
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print the message as JSON instead of sending it.")
    ] = False,
) -> None:
    """Send the result of the last night to the team.

    It goes to a chat, by mail or to a webhook. Each night is sent once; a message that failed is
    sent by the next call.
    """
    from sdgbias.analysis import nights
    from sdgbias.nightly import notify as messages

    chosen = _policy(policy)
    if dry_run:
        record = nights.load(results, night)
        if record is None:
            raise UsageError(f"{results}: no night to report; run `sdgbias nightly` first")
        print_json({"text": messages.message(record, link)})
        return
    done = messages.announce(
        results,
        webhook_env or chosen.webhook,
        datetime.now(UTC).replace(tzinfo=None),
        night=night,
        link=link,
    )
    for sent in done:
        outcome = {"sent": "sent", "known": "sent before"}.get(sent.status, "not sent")
        typer.echo(f"{sent.night}: {outcome}{f' ({sent.why})' if sent.why else ''}")
    failed = [s for s in done if s.status == "failed"]
    if failed:
        raise InfrastructureError(
            f"the webhook did not take {len(failed)} message(s) ({failed[-1].why}); again: sdgbias"
            " gate announce"
        )


def _policy(named: Path | None) -> Policy:
    """The policy that is named, else the registry's, else the packaged one."""
    from sdgbias.nightly.regression import policy
    from sdgbias.registry import entries

    try:
        root = entries.find_root()
    except RegistryError:
        root = Path()
    return policy.load(named or policy.find(root))


def print_judgements(judgements: list[Judgement], as_json: bool) -> None:
    if as_json:
        print_json(_rows(judgements))
        return
    from sdgbias.analysis import night_text as words
    from sdgbias.analysis.nights import BREACH, FIRST, MISSING

    if not judgements:
        typer.echo(
            "No run to judge: the newest night published none. To judge one: sdgbias gate --run RUN"
        )
    many = len(judgements) > _LISTED
    if many:
        typer.echo(
            f"{len(judgements)} evaluations; rules are listed for those in breach."
            " All rules of a model: sdgbias gate --model NAME, of all: --json\n"
        )
    # what needs a person ends the list, right above the error: the rest scrolls out of sight
    for j in sorted(judgements, key=lambda j: j.breached):
        compared = f", compared with {j.baseline}" if j.baseline else ""
        gap = "" if many and not j.breached else "\n"
        if not j.rows:
            why = f"{NOT_JUDGED}, as the policy has no rule for this suite"
            typer.echo(f"{gap}{j.target.model} ({j.target.suite}): {why}. {j.target.run_id}")
            continue
        typer.echo(
            f"{gap}{j.target.model} ({j.target.suite}): {j.verdict}. {j.target.run_id}{compared};"
            f" {words.summary(j.rows)}"
            + (f"; accepted: {j.target.accepted}" if j.target.accepted else "")
        )
        if many and not j.breached:
            continue
        missing: dict[str, list[str]] = {}
        for r in j.rows:
            if r["verdict"] == MISSING:
                missing.setdefault(str(r["note"]), []).append(str(r["rule"]))
        for note, rules in missing.items():
            typer.echo(f"  {MISSING}  {', '.join(dict.fromkeys(rules))}: {note}")
        left_out = (MISSING, FIRST, "PASS") if many else (MISSING, FIRST)
        rows = [r for r in j.rows if r["verdict"] not in left_out]
        listed = [_line(r) for r in sorted(rows, key=lambda r: r["verdict"] == BREACH)]
        print_table(listed, indent="  ")


def _line(r: dict[str, Any]) -> tuple[str, ...]:
    """Columns: verdict, rule, what, before -> after, change with interval, n, allowed, MDE, note
    where it isn't a PASS."""
    from sdgbias.analysis import night_text as words
    from sdgbias.wording import NO_INTERVAL

    full = dict.fromkeys(words.NUMBERS) | r
    c = words.cells(full)
    value = " -> ".join(filter(None, (c["before"], c["value"])))
    ci = c["ci"] or (NO_INTERVAL if c["change"] or words.floor(r) else "")
    change = " ".join(filter(None, (c["change"], f"[{ci}]" if ci else "")))
    n, mde = f"n {c['n']}" if c["n"] != "0" else "", f"MDE {c['mde']}" if c["mde"] else ""
    note = "" if r["verdict"] == "PASS" and r["rule"] != "unchanged" else words.note(full)
    allowed = f"({'' if words.floor(r) else 'allowed '}{c['allowed']})" if c["allowed"] else ""
    named = (str(r["verdict"]), str(r["rule"]), words.what(r))
    cells = (*named, value, change, n, allowed, mde, note)
    return tuple(cell.replace("\u00a0", " ") for cell in cells)


def _rows(judgements: list[Judgement]) -> list[dict[str, object]]:
    return [
        j.about
        | {"verdict": j.verdict, "accepted": j.target.accepted, "rules": j.rows, "flips": j.flips}
        for j in judgements
    ]


def _quarantine(judgements: list[Judgement]) -> None:
    """Models whose breach is of a rule with `then: quarantine` leave the nightly until a person
    enables them."""
    from sdgbias.registry import entries

    for j in judgements:
        rules = sorted({str(r["rule"]) for r in j.breaches if r["quarantines"]})
        if not rules or not j.breached:
            continue
        reason = f"gate: {', '.join(rules)} in breach, run {j.target.run_id}"
        try:
            entries.set_state(entries.find_root(), j.target.model, "quarantined", reason=reason)
        except RegistryError as error:
            typer.echo(f"{j.target.model}: not quarantined: {error}", err=True)
        else:
            typer.echo(
                f"{j.target.model}: quarantined: {reason}; back again: sdgbias models enable"
                f" {j.target.model}",
                err=True,
            )


def _end(judgements: list[Judgement], strict: bool) -> None:
    """Raises RegressionBreach on a breach, and with --strict on anything that isn't a PASS."""
    from sdgbias.analysis.nights import PASS

    breached = [j for j in judgements if j.breached]
    if breached:
        rules = "; ".join(
            f"{j.target.model}: {', '.join(sorted({str(r['rule']) for r in j.breaches}))}"
            for j in breached
        )
        raise RegressionBreach(
            f"in breach: {rules}; look at it, then fix the model or: sdgbias gate accept"
            f" {breached[0].target.run_id} --reason TEXT"
        )
    open_ = [j for j in judgements if j.verdict != PASS and not j.target.accepted]
    if strict and open_:
        verdicts = ", ".join(f"{j.target.model} is {j.verdict or NOT_JUDGED}" for j in open_)
        raise RegressionBreach(f"--strict: {verdicts}; see the notes above")
