"""`agentrl trace diff`: compares two stored episodes, of one run or of two, and prints where they part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from agentrl_core.cli.episode_text import content_text
from agentrl_core.cli.find_run import RunsOption, open_episode
from agentrl_core.cli.output import print_json
from agentrl_core.cli.printing import echo
from agentrl_core.cli.trace_text import parted_lines, plain_decoder
from agentrl_core.config.terminal import printable
from agentrl_core.data.comparison import shared_tokens, without_call_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agentrl_core.types import Episode, Interaction, ToolCall

_SHOWN = 80
"""Characters that are shown of arguments and contents of tool calls."""


@attrs.frozen(kw_only=True)
class Parting:
    """The first call in which two episodes differ."""

    call: int
    """1-based number of the call, in the order in which the calls began."""
    one: str
    """Interaction of the first episode; empty if it has fewer calls."""
    other: str
    part: str
    """`prompt`, `output`, `message` (of another party's model, which has no token ids) or `missing`."""
    token: int
    """Position of the first token that differs, in prompt and output together."""
    one_ids: Sequence[int] = ()
    """Prompt and output. [T]."""
    other_ids: Sequence[int] = ()


@attrs.frozen(kw_only=True)
class Comparison:
    """Differences of two episodes; those of the parting call come first."""

    parting: Parting | None
    differences: Sequence[str]
    """One line for each other difference: settings of calls, tool calls, then results of the records."""


def diff(
    one: Annotated[str, typer.Argument(metavar="A", help="Id of a record, or its first characters.")],
    other: Annotated[str, typer.Argument(metavar="B", help="Id of the other record.")],
    *,
    run: Annotated[str | None, typer.Option(help="Run of A: its name, folder or database.")] = None,
    other_run: Annotated[str | None, typer.Option(help="Run of B; default: that of A if --run is given.")] = None,
    runs: RunsOption = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two episodes: the first call and token in which they differ, sampling, tool calls, outcome and rewards.

    Calls are paired in the order in which they began. Of each pair, prompt and output are compared token by token, or
    the messages of a call to another party's model, then sampling, tools, model, API, finish reason and policy
    versions; of tool calls, up to the first one that is another call, server, outcome and contents; of the records,
    task, outcome, reward, score and its parts, marks, and rewards by call. The exit code is 1 if any of these differs;
    ids and seeds do not count.
    """
    first, folder = _episode(one, run, runs)
    second, _ = _episode(other, other_run or run, runs)
    found = compare(first, second)
    same = found.parting is None and not found.differences
    if as_json:
        head = {"a": first.record.id, "b": second.record.id, "identical": same}
        print_json(head | attrs.asdict(found, recurse=False))
    else:
        for line in _lines(first, second, found, plain_decoder(folder)):
            echo(line)
    if not same:
        raise typer.Exit(1)


def _episode(record: str, run: str | None, runs: Path) -> tuple[Episode, Path | None]:
    """Return an episode, and the folder of its policy's tokenizer."""
    with open_episode(record, run, runs) as found:
        return found.episode, found.place.model_directory(found.row)


def compare(one: Episode, other: Episode) -> Comparison:
    """Compare two episodes call by call, then their results."""
    calls, others = _in_order(one), _in_order(other)
    pairs = list(zip(calls, others, strict=False))
    partings = (_parting(number, a, b, one, other) for number, (a, b) in enumerate(pairs, start=1))
    parting = next((item for item in partings if item is not None), None)
    if parting is None and len(calls) != len(others):
        names = [items[len(pairs)].id if len(items) > len(pairs) else "" for items in (calls, others)]
        parting = Parting(call=len(pairs) + 1, one=names[0], other=names[1], part="missing", token=0)
    # After the parting call the calls of a pair may be different turns, so their settings say nothing.
    alike = pairs if parting is None else pairs[: parting.call]
    settings = [line for number, pair in enumerate(alike, start=1) for line in _settings(number, *pair)]
    differences = [*settings, *_tool_calls(one.tool_calls, other.tool_calls), *_results(one, other)]
    return Comparison(parting=parting, differences=differences)


def _in_order(episode: Episode) -> list[Interaction]:
    return sorted(episode.interactions, key=lambda item: (item.started_at, item.seq))


def _parting(number: int, a: Interaction, b: Interaction, one: Episode, other: Episode) -> Parting | None:
    """Return how two calls differ; None if their prompts and outputs are equal."""
    if a.upstream or b.upstream:
        same = a.upstream == b.upstream and _messages(a) == _messages(b)
        return None if same else Parting(call=number, one=a.id, other=b.id, part="message", token=0)
    ids, others = one.full_ids(a), other.full_ids(b)
    prompts = len(ids) - len(a.output_ids), len(others) - len(b.output_ids)
    if (ids, prompts[0]) == (others, prompts[1]):
        return None
    token = shared_tokens(ids, others)
    part = "output" if prompts[0] == prompts[1] <= token else "prompt"
    return Parting(call=number, one=a.id, other=b.id, part=part, token=token, one_ids=ids, other_ids=others)


def _messages(item: Interaction) -> list[dict[str, Any]]:
    return [without_call_ids(message) for message in (*item.messages, item.output)]


def _settings(number: int, a: Interaction, b: Interaction) -> Iterator[str]:
    """Yield the differences in sampling, tools, model and policy versions of two calls; seeds differ by design."""
    before, after = (attrs.asdict(item.sampling, recurse=False) for item in (a, b))
    for key in before:
        if key != "seed" and before[key] != after[key]:
            yield f"call {number}: {key}: {before[key]} -> {after[key]}"
    for key in ("model", "api", "tools", "finish_reason", "versions"):
        if getattr(a, key) != getattr(b, key):
            yield f"call {number}: {key}: {_value(getattr(a, key))} -> {_value(getattr(b, key))}"


def _tool_calls(ones: Sequence[ToolCall], others: Sequence[ToolCall]) -> Iterator[str]:
    """Yield the differences of tool calls, paired in the order of their start, up to one that is another call."""
    for number, (a, b) in enumerate(zip(ones, others, strict=False), start=1):
        if (a.name, a.arguments) != (b.name, b.arguments):
            yield f"tool call {number}: {_asked(a)} -> {_asked(b)}"
            return
        for key in ("server", "tool", "sent", "isolation", "outcome", "error", "middleware"):
            if getattr(a, key) != getattr(b, key):
                yield f"tool call {number} ({a.name}): {key}: {_value(getattr(a, key))} -> {_value(getattr(b, key))}"
        for key in ("shown", "raw"):
            texts = content_text(list(getattr(a, key) or ())), content_text(list(getattr(b, key) or ()))
            if texts[0] != texts[1]:
                yield f"tool call {number} ({a.name}): {key}: {_parted(*texts)} -> {_parted(*reversed(texts))}"
    if len(ones) != len(others):
        first = (ones if len(ones) > len(others) else others)[min(len(ones), len(others))]
        yield f"tool calls: {len(ones)} -> {len(others)}, the first that one lacks is {_asked(first)}"


def _asked(call: ToolCall) -> str:
    text = call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments), ensure_ascii=False)
    return f"{call.name}({text if len(text) <= _SHOWN else text[:_SHOWN] + '…'})"


def _parted(text: str, other: str) -> str:
    """Return a part of a text, from a little before the first character that differs from another text."""
    start = max(0, shared_tokens(text, other) - _SHOWN // 4)
    part = text[start : start + _SHOWN]
    return repr("…" * (start > 0) + part + "…" * (start + _SHOWN < len(text)))


def _results(one: Episode, other: Episode) -> Iterator[str]:
    a, b = one.record, other.record
    for key in ("task_id", "task_set", "outcome", "reason", "reward", "score", "score_parts", "marks"):
        if getattr(a, key) != getattr(b, key):
            yield f"{key}: {_value(getattr(a, key))} -> {_value(getattr(b, key))}"
    rewards = [
        {
            place: item.record.rewards[call.id]
            for place, call in enumerate(_in_order(item), start=1)
            if call.id in item.record.rewards
        }
        for item in (one, other)
    ]
    if rewards[0] != rewards[1]:
        yield f"rewards by call: {rewards[0]} -> {rewards[1]}"
    if len(one.interactions) != len(other.interactions):
        yield f"calls: {len(one.interactions)} -> {len(other.interactions)}"


def _value(value: Any) -> str:
    return "none" if value is None or value == "" else str(value)


def _lines(one: Episode, other: Episode, found: Comparison, decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    names = f"A {one.record.id} (run {one.record.run_id}) and B {other.record.id} (run {other.record.run_id})"
    if found.parting is None:
        same = "the same calls, token by token" if one.interactions else "no calls"
        yield f"{names}: {same}"
    else:
        yield f"{names}: {_place(found.parting)}"
        if found.parting.part in {"prompt", "output"}:
            yield from parted_lines(("A", found.parting.one_ids), ("B", found.parting.other_ids), decode)
    for line in found.differences:
        yield f"  {printable(line)}"


def _place(parting: Parting) -> str:
    if parting.part == "missing":
        return f"the same up to call {parting.call}, which only {'A' if parting.one else 'B'} has"
    if parting.part == "message":
        return f"different at call {parting.call}, to another party's model"
    return f"different at call {parting.call}, in its {parting.part}, from token {parting.token} on"
