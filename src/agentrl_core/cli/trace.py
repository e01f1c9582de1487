"""`agentrl trace`: lists the episodes of a run, and shows one with all of its turns."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from agentrl_core.api.stores import RecordUsage
from agentrl_core.cli.diff import diff
from agentrl_core.cli.episode_text import content_text, episode_lines
from agentrl_core.cli.export import export
from agentrl_core.cli.find_run import RunsOption, find_run, open_episode, open_run
from agentrl_core.cli.lineage import lineage
from agentrl_core.cli.output import print_json, print_table
from agentrl_core.cli.printing import echo
from agentrl_core.cli.replay import replay
from agentrl_core.cli.verify import verify
from agentrl_core.config.terminal import printable
from agentrl_core.types import Outcome  # noqa: TC001  # typer reads the annotations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.stores import RunReader
    from agentrl_core.chat.facade import Chat
    from agentrl_core.types import Message, Record

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_HEADER = (
    "RECORD", "STEP", "SET", "TASK", "SAMPLE", "OUTCOME", "REWARD", "CALLS", "PROMPT", "SAMPLED", "SECONDS", "REPLY"
)  # fmt: skip
_REPLY_CHARACTERS = 40
"""Longest beginning of the last reply in the list, in characters."""


class Order(StrEnum):
    """Sort key of the list: ascending, or descending with a minus."""

    REWARD = "reward"
    MOST_REWARD = "-reward"
    TOKENS = "tokens"
    MOST_TOKENS = "-tokens"
    TIME = "time"
    MOST_TIME = "-time"


_RUN_HELP = "Run: its name, folder or database; default: the newest."


@app.callback()
def trace() -> None:
    """Look into the episodes of a run."""


app.command()(export)
app.command()(lineage)
app.command()(diff)
app.command()(replay)
app.command()(verify)


@app.command("list")
def list_(
    run: Annotated[str | None, typer.Argument(help=_RUN_HELP)] = None,
    *,
    runs: RunsOption = Path("runs"),
    task: Annotated[str | None, typer.Option(help="Only episodes of this task.")] = None,
    step: Annotated[int | None, typer.Option(help="Only episodes of this step, or evaluated after it.")] = None,
    outcome: Annotated[Outcome | None, typer.Option(help="Only episodes with this outcome.")] = None,
    mark: Annotated[str | None, typer.Option(metavar="WORD", help="Only episodes with this mark.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="Only episodes with at least this reward.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="Only episodes with at most this reward.")] = None,
    sort: Annotated[Order | None, typer.Option(help="Sort key, ascending; with a minus, descending.")] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Number of episodes: the newest, or the first of the sorted list; 0 for all.")
    ] = 50,
    as_json: _Json = False,
) -> None:
    """List episodes, the newest last or sorted by --sort, with the beginning of their last reply.

    `--sort reward` begins with the worst episodes, `--sort=-tokens` with the longest. STEP is the step that took the
    episode's group, or after which it was evaluated. PROMPT counts prompt tokens once, where they are new.
    """
    with open_run(find_run(run, runs)) as (store, row):
        records = asyncio.run(store.records(row.id, task_id=task))
        usage = asyncio.run(store.usage(row.id))
        replies = {} if as_json else asyncio.run(store.last_outputs(row.id))
        steps = _steps(store, row.id)
    records = [record for record in records if outcome in (None, record.outcome)]
    records = [record for record in records if step is None or steps.get(record.group_id) == step]
    records = [record for record in records if mark is None or mark in record.marks]
    records = [record for record in records if _within(record.reward, min_reward, max_reward)]
    none = RecordUsage(calls=0, prompt_tokens=0, output_tokens=0)
    if sort is None:
        shown = records[-limit:]  # with limit 0 this is the whole list
    else:
        records = _sorted(records, sort, {record.id: usage.get(record.id, none).output_tokens for record in records})
        shown = records[: limit or None]
    if as_json:
        print_json(
            [
                attrs.asdict(record) | attrs.asdict(usage.get(record.id, none)) | {"step": steps.get(record.group_id)}
                for record in shown
            ]
        )
        return
    if not shown:
        echo(f"run {row.id} has no episodes that match")
        return
    header = (
        "RECORD",
        "STEP",
        "SET",
        "TASK",
        "SAMPLE",
        "OUTCOME",
        "REWARD",
        "CALLS",
        "PROMPT",
        "SAMPLED",
        "SECONDS",
        "REPLY",
    )
    rows = [
        (*_row(record, steps, usage.get(record.id, none)), _beginning(replies.get(record.id, {}))) for record in shown
    ]
    print_table(header, rows)
    if len(shown) < len(records):
        others = "earlier ones" if sort is None else "others"
        echo(f"{len(records) - len(shown)} {others} are not shown; --limit 0 shows all")


@app.command()
def show(
    record: Annotated[str, typer.Argument(help="Id of the record, or its first characters.")],
    *,
    run: Annotated[str | None, typer.Option(help=_RUN_HELP)] = None,
    runs: RunsOption = Path("runs"),
    full: Annotated[bool, typer.Option("--full", help="Do not shorten arguments and results of tool calls.")] = False,
    as_json: _Json = False,
) -> None:
    """Show one episode with all turns: messages, tool calls, rewards, tokens, policy versions.

    Also shows where a prompt differs from what the chat template would render (drift).
    """
    with open_episode(record, run, runs) as found:
        episode, task = found.episode, found.task()
        folder = found.place.model_directory(found.row)
    if as_json:
        calls = {"interactions": episode.interactions, "tool_calls": episode.tool_calls}
        print_json({"record": episode.record, "task": task, **calls})
        return
    for line in episode_lines(episode, task, _chat(folder), full=full):
        typer.secho(printable(line.text), bold=line.heading)


def _chat(directory: Path | None) -> Chat | None:
    """Return the policy's tokenizer and chat template; None if its model directory does not exist any more."""
    from agentrl_core.chat import Chat
    from agentrl_core.chat.parsers.hermes import HermesParser

    # Any parser: replies were read when they were sampled.
    return None if directory is None else Chat.from_directory(directory, parser=HermesParser())


def _kind(record: Record) -> str:
    """Return the name of an evaluation episode's task set.

    Stores of earlier versions do not name the set; the result is then `eval`.
    """
    return "eval" if record.task_set == "train" else record.task_set


def _within(reward: float | None, least: float | None, most: float | None) -> bool:
    """True if a reward lies in the range; no reward matches only if there are no limits."""
    if reward is None:
        return least is None and most is None
    return (least is None or reward >= least) and (most is None or reward <= most)


def _sorted(records: Sequence[Record], order: Order, tokens: Mapping[str, int]) -> list[Record]:
    """Sort by reward, sampled tokens or seconds; records without that number come last in both directions."""
    key = order.removeprefix("-")

    def number(record: Record) -> float | None:
        if key == "reward":
            return record.reward
        if key == "tokens":
            return tokens[record.id]
        return record.finished_at - record.started_at if record.finished_at else None

    known = [record for record in records if number(record) is not None]
    known.sort(key=lambda record: number(record) or 0.0, reverse=order.startswith("-"))
    return known + [record for record in records if number(record) is None]


def _beginning(output: Message) -> str:
    """Return the beginning of a reply on one line, or the names of its tool calls if it has no text."""
    text = content_text(output.get("content"))
    if not text.strip():
        text = ", ".join(f"calls {call.get('function', {}).get('name')}" for call in output.get("tool_calls") or ())
    line = printable(" ".join(text[: 4 * _REPLY_CHARACTERS].split()))
    return line if len(line) <= _REPLY_CHARACTERS else f"{line[: _REPLY_CHARACTERS - 1]}…"


def _steps(store: RunReader, run_id: str) -> dict[str, int]:
    """Return group id -> step that took it, or number of steps before the evaluation that it belongs to."""
    behind = {row.version: row.step for row in asyncio.run(store.versions(run_id))}
    groups = asyncio.run(store.groups(run_id))
    found = {group.id: behind[group.version] for group in groups if group.is_eval and group.version in behind}
    taken = (step for step in asyncio.run(store.steps(run_id)) if not step.voided)
    return found | {group: step.step for step in taken for group in step.groups}


def _row(record: Record, steps: Mapping[str, int], usage: RecordUsage) -> tuple[str, ...]:
    sample = f"{record.sample_index}" + (f" (try {record.attempt + 1})" if record.attempt else "")
    return (
        record.id,
        str(steps.get(record.group_id, "-")),
        _kind(record) if record.is_eval else "train",
        record.task_id,
        sample,
        record.outcome.value
        + (f" ({record.reason})" if record.reason else "")
        + (f" [{', '.join(record.marks)}]" if record.marks else ""),
        "-" if record.reward is None else f"{record.reward:.3f}",
        str(usage.calls),
        str(usage.prompt_tokens),
        str(usage.output_tokens),
        f"{record.finished_at - record.started_at:.2f}" if record.finished_at else "-",
    )
