"""`agentrl trace replay`: runs a stored episode again with its recorded outputs, and prints the first difference."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from agentrl_core.cli.episode_text import content_text, printable
from agentrl_core.cli.find_run import RunsOption, open_episode
from agentrl_core.cli.output import print_json
from agentrl_core.cli.trace_text import parted_lines, plain_decoder
from agentrl_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agentrl_core.engines.replay import Divergence
    from agentrl_core.run.replay import ReplayReport

_SHOWN_END = 24
"""Tokens that are shown of the prompt of a call that the episode does not have."""


def replay(
    record: Annotated[str, typer.Argument(help="Id of the record, or its first characters.")],
    *,
    run: Annotated[str | None, typer.Option(help="Run: its name, folder or database; default: the newest.")] = None,
    runs: RunsOption = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run an episode's workflow again with the recorded outputs instead of a model; tools and scorer are real.

    Prints the first prompt that differs, or that calls, outcome and reward are the same. The exit code is 1 if anything
    differs.
    """
    from agentrl_core.run.directory import RunDirectory
    from agentrl_core.run.replay import replay as run_again

    with open_episode(record, run, runs) as found:
        episode, task, place = found.episode, found.task(), found.place
        groups = {item.group_id for item in asyncio.run(found.store.records(found.row.id))}
        steps = asyncio.run(found.store.steps(found.row.id))
    folder = place.model_directory(found.row)
    if task is None or folder is None:
        lost = f"the row of task '{episode.record.task_id}'" if task is None else "the policy's tokenizer"
        raise UsageError(f"record {episode.record.id} cannot be replayed: {lost} is not there any more")
    directory = RunDirectory.open(place.directory)
    report = run_again(episode, task, directory, folder, num_groups=len(groups), steps=steps)
    if as_json:
        print_json(attrs.asdict(report, recurse=False) | {"identical": report.identical})
    else:
        for line in _lines(report, plain_decoder(folder)):
            typer.echo(line)
    if not report.identical:
        raise typer.Exit(1)


def _lines(report: ReplayReport, decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    calls = f"{report.calls} call{'' if report.calls == 1 else 's'}"
    if report.identical:
        reward = "no reward" if report.record.reward is None else f"reward {report.record.reward:g}"
        yield f"record {report.record.id}: identical: {calls}, {report.record.outcome.value}, {reward} as recorded"
    elif report.divergence is not None:
        yield f"record {report.record.id}: DIFFERENT at call {report.divergence.call}"
        yield from _divergence(report.divergence, decode)
    else:
        yield f"record {report.record.id}: DIFFERENT, after {calls} as recorded"
    for line in report.differences:
        yield f"  {printable(line)}"
    for line in report.notes:
        yield f"  note: {printable(line)}"


def _divergence(found: Divergence, decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    if found.expected is None:
        yield f"  every recorded call was repeated already; this one has a prompt of {len(found.actual_ids)} tokens"
        yield f"  now       {printable(decode(found.actual_ids[-_SHOWN_END:]))}"
        return
    yield (
        f"  the prompt differs from call [{found.expected.seq}] {found.expected.id} from token {found.token} on "
        f"({len(found.expected_ids)} tokens recorded, {len(found.actual_ids)} now)"
    )
    yield from parted_lines(("recorded", found.expected_ids), ("now", found.actual_ids), decode)
    yield "  the recorded call's new messages:"
    for message in found.expected.messages:
        yield f"    {message.get('role')}: {printable(content_text(message.get('content')))}"
