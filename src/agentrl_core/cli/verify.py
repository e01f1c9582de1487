"""`agentrl trace verify`: prints what of a run was changed, removed or added since it was sealed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from agentrl_core.cli.episode_text import fidelity_text
from agentrl_core.cli.find_run import RunsOption, find_run, open_run
from agentrl_core.cli.output import print_json
from agentrl_core.cli.printing import echo
from agentrl_core.cli.verify_facts import Verifier
from agentrl_core.config.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrl_core.cli.verify_facts import Verification


def verify(
    run: Annotated[str | None, typer.Argument(help="Run: its name, folder or database; default: the newest.")] = None,
    *,
    runs: RunsOption = Path("runs"),
    head: Annotated[
        str, typer.Option(metavar="DIGEST", help="Head of the chain as the run printed it, kept elsewhere since.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that a run is as it was sealed, and every trained token exactly the one that the engine sampled.

    Compares records, LLM calls, tool calls, tasks, steps, versions, checkpoints and published weights with the run's
    audit chain, and names all that was changed, removed or added. The exit code is 1 if anything was. Without --head, a
    change by someone who could write the whole chain anew is not found.
    """
    from agentrl_core.run.directory import RunDirectory

    place = find_run(run, runs)
    with open_run(place) as (store, row):
        found = Verifier(store, row, RunDirectory(place.directory)).check(head)
    if as_json:
        print_json(_json(found))
    else:
        for line in _lines(found):
            echo(line)
    if not found.intact:
        raise typer.Exit(1)


def _json(found: Verification) -> dict[str, object]:
    deviations = {name: item.deviation for name, item in found.deviations.items()}
    tokens = attrs.asdict(found.fidelity, recurse=False) | {"share": found.fidelity.share, "deviations": deviations}
    names = ("intact", "head", "num_seals", "num_records", "num_calls", "num_tool_calls")
    chain = {name: getattr(found, name) for name in names}
    others = {name: getattr(found.untrained, name) for name in ("trained", "exact", "unwitnessed")}
    tokens["untrained"] = {"tokens": others.pop("trained"), **others}
    return tokens | {"run": found.run, **chain, "findings": found.findings, "notes": found.notes}


def _tokens(found: Verification) -> Iterator[str]:
    """Yield how many tokens are as the engine sampled them: of the records of steps, and of all others."""
    others = attrs.evolve(found.untrained, deviation=None)
    if found.fidelity.trained or not others.trained:
        yield fidelity_text(attrs.evolve(found.fidelity, deviation=None))
    if others.trained:
        yield fidelity_text(others, kind="untrained")


def _lines(found: Verification) -> Iterator[str]:
    for name, fidelity in found.deviations.items():
        yield f"record {name}: {fidelity_text(fidelity)}"
    for finding in found.findings:
        yield printable(
            f"{finding.change.upper():<10} {finding.what}" + (f": {finding.detail}" if finding.detail else "")
        )
    for note in found.notes:
        yield f"note: {printable(note)}"
    yield f"run {found.run}, {found.num_episodes} records: {'; '.join(_tokens(found))}"
    if found.head:
        verdict = "as sealed" if found.intact else "NOT as sealed"
        calls = f"{found.num_calls} LLM calls"
        if found.num_tool_calls:
            calls += f" and {found.num_tool_calls} tool calls"
        yield f"{verdict}: {found.num_records} records with {calls} are as in {found.num_seals} seals"
        yield f"head {found.head}"
