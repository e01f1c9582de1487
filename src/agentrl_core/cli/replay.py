"""`agentrl trace replay`: runs a stored episode again with its recorded outputs, or with new ones from a call on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from agentrl_core.cli.episode_text import content_text, episode_lines
from agentrl_core.cli.find_run import RunsOption, open_episode
from agentrl_core.cli.output import print_json
from agentrl_core.cli.printing import echo
from agentrl_core.cli.trace_text import parted_lines, plain_decoder
from agentrl_core.config.terminal import printable
from agentrl_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agentrl_core.engines.replay import Divergence
    from agentrl_core.run.replay import ReplayReport
    from agentrl_core.run.resample import Resampled
    from agentrl_core.types import Episode, Record, Task

_SHOWN_END = 24
"""Tokens that are shown of the prompt of a call that the episode does not have."""


def replay(
    record: Annotated[str, typer.Argument(help="Id of the record, or its first characters.")],
    *,
    run: Annotated[str | None, typer.Option(help="Run: its name, folder or database; default: the newest.")] = None,
    runs: RunsOption = Path("runs"),
    turn: Annotated[
        int | None, typer.Option("--from", metavar="TURN", min=0, help="Number of the first call to sample anew.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="With --from: draw other tokens than the episode's seeds.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run an episode's workflow again with its recorded outputs instead of a model, and its recorded tool results.

    The agent and its own tools are real, and so is the scorer; no tool server of the config is started. Prints the
    first prompt or tool call that differs, or that calls, outcome and reward are the same. The exit code is 1 if
    anything differs.

    With --from, only the LLM calls before TURN are repeated. The run's newest checkpoint samples the others; tool
    servers and other models that the agent calls are asked anew. The new episode is printed, and not stored.
    """
    from agentrl_core.run.directory import RunDirectory
    from agentrl_core.run.replay import replay as run_again

    if seed is not None and turn is None:
        raise UsageError("--seed needs --from TURN: a replay of the whole episode samples nothing")

    with open_episode(record, run, runs) as found:
        episode, task, place = found.episode, found.task(), found.place
        groups = asyncio.run(found.store.groups(found.row.id))
        steps = asyncio.run(found.store.steps(found.row.id))
    folder = place.model_directory(found.row)
    if task is None or folder is None:
        lost = f"the row of task '{episode.record.task_id}'" if task is None else "the policy's tokenizer"
        raise UsageError(f"record {episode.record.id} cannot be replayed: {lost} is not there any more")
    directory = RunDirectory.open(place.directory)
    if turn is not None:
        from agentrl_core.run.resample import resample

        sampled = resample(episode, task, directory, folder, turn=turn, seed=seed, groups=groups, steps=steps)
        _print_resampled(sampled, episode, task, folder, as_json=as_json)
        return
    report = run_again(episode, task, directory, folder, groups=groups, steps=steps)
    if as_json:
        print_json(attrs.asdict(report, recurse=False) | {"identical": report.identical})
    else:
        for line in _lines(report, plain_decoder(folder)):
            echo(line)
    if not report.identical:
        raise typer.Exit(1)


def _print_resampled(found: Resampled, before: Episode, task: Task, folder: Path, *, as_json: bool) -> None:
    """Print the new episode; the exit code is 1 if there is none."""
    name = before.record.id
    if as_json:
        print_json(found)
    elif found.episode is not None:
        old, new = (_reward(item.record) for item in (before, found.episode))
        echo(
            f"record {name}: {found.repeated} calls as recorded, sampled from call [{found.turn}] on by version "
            f"{found.version} ({found.weights}); {old} recorded, {new} now; not stored"
        )
        for line in episode_lines(found.episode, task):
            typer.secho(printable(line.text), bold=line.heading)
    elif found.divergence is not None:
        echo(f"record {name}: DIFFERENT at call {found.divergence.call}, before call [{found.turn}]")
        for text in _divergence(found.divergence, plain_decoder(folder)):
            echo(text)
    if found.episode is None:
        raise typer.Exit(1)


def _reward(record: Record) -> str:
    return "no reward" if record.reward is None else f"reward {record.reward:g}"


def _lines(report: ReplayReport, decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    calls = f"{report.calls} call{'' if report.calls == 1 else 's'}"
    if report.tool_calls:
        calls += f", {report.tool_calls} tool call{'' if report.tool_calls == 1 else 's'}"
    if report.identical:
        outcome = f"{report.record.outcome.value}, {_reward(report.record)}"
        yield f"record {report.record.id}: identical: {calls}, {outcome} as recorded"
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
