"""Text of one episode for `agentrl trace show`: a head with reward and scoring, then its calls as a tree."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.compaction import COMPACTION, compaction_of
from agentrl_core.chat.drift import drift_of
from agentrl_core.config.terminal import printable
from agentrl_core.data.tool_calls import by_asking_call
from agentrl_core.types import ToolOutcome
from agentrl_core.weights.witness import verify

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentrl_core.api.compaction import CompactionNote
    from agentrl_core.chat.facade import Chat
    from agentrl_core.types import Episode, Interaction, Message, Record, Task, ToolCall
    from agentrl_core.weights.witness import Fidelity

_LABEL = 10  # width of the longest role, `assistant`, plus a space
_SHOWN_ANSWER = 400
"""Longest scored answer in the head, in characters; the whole reply is shown below it."""
_SHOWN_RESULT = 600
"""Longest arguments, and longest content, of a tool call, in characters."""


@attrs.frozen
class Line:
    """One line of output."""

    text: str
    heading: bool = False


def episode_lines(
    episode: Episode, task: Task | None, chat: Chat | None = None, *, full: bool = False
) -> Iterator[Line]:
    """Yield the lines of an episode: a head, then each LLM call after the call that it continues, with its tool calls.

    Given the policy's `chat`, each LLM call also shows where its prompt differs from what the template would render.
    Long contents of tool calls are shortened unless `full`.
    """
    yield from _head(episode, task)
    tool_calls = by_asking_call(episode)
    for call in tool_calls.get(None, ()):
        yield from _tool_call(call, "", full=full)
    children: dict[str | None, list[Interaction]] = {}
    for item in episode.interactions:
        children.setdefault(item.parent, []).append(item)
    by_id = {item.id: item for item in episode.interactions}
    # Depth first, so that the calls of a branch stay together. Only calls with several continuations indent, so that
    # a hundred turns in a row stay at the margin.
    pending = [(item, 0) for item in reversed(children.get(None, []))]
    while pending:
        item, depth = pending.pop()
        yield Line("")
        yield from _call(item, episode, by_id, "    " * depth)
        if chat is not None and item.prompt_ids and (drift := drift_of(chat, episode, item)):
            yield from _labelled("drift", str(drift), "    " * (depth + 1))
        for call in tool_calls.get(item.id, ()):
            yield from _tool_call(call, "    " * (depth + 1), full=full)
        following = children.get(item.id, [])
        pending += [(child, depth + (len(following) > 1)) for child in reversed(following)]


def _head(episode: Episode, task: Task | None) -> Iterator[Line]:
    record = episode.record
    reward = "no reward" if record.reward is None else f"reward {record.reward:g}"
    reason = f" ({record.reason})" if record.reason else ""
    yield Line(f"record {record.id}: {record.outcome.value}{reason}, {reward}", heading=True)
    if record.detail:
        yield from _labelled("why", record.detail, "  ")
    if record.marks:
        yield from _labelled("marks", ", ".join(record.marks), "  ")
    place = f"{record.run_id}, task {record.task_id}, group {record.group_id}, sample {record.sample_index}"
    place += f", try {record.attempt + 1}" * bool(record.attempt) + ", evaluation" * record.is_eval
    yield from _labelled("run", place, "  ")
    if task is not None and task.answer is not None:
        yield from _labelled("reference", task.answer, "  ")
    yield from _judged(record)
    if record.score is not None:
        parts = ", ".join(f"{name} {value:g}" for name, value in record.score_parts.items())
        yield from _labelled("scorer", f"{record.score:g}" + (f" ({parts})" if parts else ""), "  ")
    yield from _details({name: item for name, item in record.score_details.items() if name != "judged"})
    prompt = sum(len(item.prompt_ids) for item in episode.interactions)
    output = sum(len(item.output_ids) for item in episode.interactions)
    seconds = f", {record.finished_at - record.started_at:.2f} s" if record.finished_at else ""
    calls = f"{len(episode.interactions)} calls"
    if episode.tool_calls:
        calls += f", {len(episode.tool_calls)} tool calls"
    yield from _labelled("tokens", f"{calls}, {prompt} new prompt tokens, {output} sampled{seconds}", "  ")
    fidelity = verify(episode)
    if fidelity.trained:
        yield from _labelled("fidelity", fidelity_text(fidelity), "  ")


def _judged(record: Record) -> Iterator[Line]:
    """Yield the answer that the scorer received, and the place in the reply that it was taken from."""
    judged = record.score_details.get("judged")
    if not isinstance(judged, dict):
        return
    answer, schema = str(judged.get("answer", "")), judged.get("looked_for")
    source = {
        "schema": f"(inside {schema})",
        "reply": f"(the whole reply, because it has no {schema})",
        "nowhere": f"(empty: the reply has no {schema}, which the task's answer_schema asks for)",
        "workflow": "(returned by the workflow)",
    }.get(str(judged.get("from")), "")
    if judged.get("from") == "reply" and not answer:
        source = "(empty: the last reply has no text besides thoughts and tool calls)"
    text = answer if len(answer) <= _SHOWN_ANSWER else f"{answer[:_SHOWN_ANSWER]}…"
    yield from _labelled("answer", "\n".join(filter(None, (text, source))), "  ")


def _details(details: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the scorer's details as an indented tree; text values are not quoted."""
    label = "scoring"
    pending: list[tuple[str, Any, str]] = [(str(key), details[key], "") for key in reversed(list(details))]
    while pending:
        key, value, indent = pending.pop()
        inside: Mapping[Any, Any] = value if isinstance(value, dict) else {}
        if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
            inside = dict(enumerate(value, start=1))
        told = "" if inside else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield from _labelled(label, f"{indent}{key}: {told}".replace("\n", f"\n{indent}    "), "  ")
        label = ""
        pending += [(str(name), inside[name], indent + "  ") for name in reversed(list(inside))]


def fidelity_text(fidelity: Fidelity, *, kind: str = "trained") -> str:
    """Say how many of the trained tokens, or of tokens of another kind, are exactly those that the engine sampled."""
    if fidelity.unwitnessed == fidelity.trained:
        return f"unknown: no digests were stored for the {fidelity.trained} {kind} tokens"
    text = f"{fidelity.exact} of {fidelity.trained} {kind} tokens are exactly what the engine sampled"
    if fidelity.unwitnessed:
        text += f", {fidelity.unwitnessed} have no stored digest"
    return text + (f"; first deviation at {fidelity.deviation}" if fidelity.deviation else "")


def _call(item: Interaction, episode: Episode, by_id: Mapping[str, Interaction], indent: str) -> Iterator[Line]:
    """Yield one LLM call: a heading with its numbers, then the new messages of its request, then the reply."""
    parent = by_id.get(item.parent) if item.parent else None
    versions = sorted({version for version, _ in item.versions})
    whole = len(episode.full_ids(item)) - len(item.output_ids)
    facts = [
        f"after [{parent.seq}]" if parent else "start",
        item.finish_reason.value,
        "version " + "-".join(str(version) for version in dict.fromkeys((versions[0], versions[-1])))
        if versions
        else "no version",
        f"prompt {whole} ({len(item.prompt_ids)} new, {item.cached_tokens} cached)",
        f"sampled {len(item.output_ids)}",
    ]
    if item.id in episode.record.rewards:
        facts.append(f"reward {episode.record.rewards[item.id]:g}")
    if item.tool_errors:
        facts.append(f"malformed tool calls {item.tool_errors}")
    if item.upstream:
        facts.append(f"answered by {item.upstream}")
    if not item.trainable:
        facts.append("not trained")
    yield Line(f"{indent}[{item.seq}] {item.id}  {', '.join(facts)}", heading=True)
    indent += "    "
    asked = dict(item.requested)
    if (compaction := compaction_of(item)) is not None:
        del asked[COMPACTION]
        yield from _labelled("compacted", _compaction_text(compaction), indent)
    elif not item.is_agents and isinstance(note := asked.pop(COMPACTION, None), dict):
        yield from _labelled("asked by", f"the context policy {note.get('name')}", indent)
    if asked:
        yield from _labelled("asked for", json.dumps(asked, ensure_ascii=False), indent)
    if item.tools and (parent is None or parent.tools != item.tools):
        yield from _labelled("tools", ", ".join(_tool_name(tool) for tool in item.tools), indent)
    for message in (*item.messages, item.output):
        yield from _message(message, indent)


def _tool_call(call: ToolCall, indent: str, *, full: bool) -> Iterator[Line]:
    """Yield one tool call: a heading with its outcome, then what was sent, the error, and the contents."""

    def cut(text: str) -> str:
        left = len(text) - _SHOWN_RESULT
        return text if full or left <= 0 else f"{text[:_SHOWN_RESULT]}… ({left} more characters, see --full)"

    facts = [
        call.outcome.value,
        f"{call.finished_at - call.started_at:.2f} s",
        *([f"server {call.server}"] if call.server else []),
        *([call.isolation] if call.isolation else []),
        *([f"{call.attempts} attempts"] if call.attempts > 1 else []),
        *([f"changed by {', '.join(call.middleware)}"] if call.middleware else []),
    ]
    yield Line(printable(f"{indent}tool [{call.seq}] {call.name}  {', '.join(facts)}"), heading=True)
    indent += "    "
    yield from _labelled("arguments", cut(_json_text(call.arguments)), indent)
    was_sent = call.attempts > 0 and call.outcome is not ToolOutcome.NOT_SENT
    if was_sent and (call.sent is not None or call.tool not in ("", call.name)):
        sent = call.arguments if call.sent is None else call.sent
        yield from _labelled("sent", cut(f"{call.tool}({_json_text(sent)})"), indent)
    if call.error:
        yield from _labelled("error", call.error, indent)
    yield from _labelled("shown", cut(content_text(list(call.shown))), indent)
    if call.raw is not None:
        yield from _labelled("raw", cut(content_text(list(call.raw))), indent)


def _json_text(arguments: Mapping[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)


def _compaction_text(note: CompactionNote) -> str:
    """Say what the context policy made of the history before this call."""
    (messages, left), (tokens, kept) = note.messages, note.tokens
    return (
        f"by the context policy {note.name}, number {note.number}: {messages} messages of {tokens} tokens became "
        f"{left} of {kept}"
    )


def _message(message: Message, indent: str) -> Iterator[Line]:
    label = str(message.get("role", "?"))
    text = content_text(message.get("content"))
    calls: Sequence[Any] = message.get("tool_calls") or ()
    if thoughts := message.get("reasoning_content"):
        yield from _labelled(label, f"(thinks) {thoughts}", indent)
        label = ""
    if text or not (calls or thoughts):
        yield from _labelled(label, text, indent)
        label = ""
    for call in calls:
        function = call.get("function", {})
        yield from _labelled(label, f"calls {function.get('name')}({function.get('arguments', '')})", indent)
        label = ""


def content_text(content: Any) -> str:
    """Return a message's content as text; parts that are not text as JSON."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return "\n".join(
        part["text"] if isinstance(part, dict) and "text" in part else json.dumps(part, ensure_ascii=False)
        for part in content
    )


def _tool_name(tool: Mapping[str, Any]) -> str:
    return str(tool.get("function", tool).get("name", "?"))


def _labelled(label: str, text: str, indent: str) -> Iterator[Line]:
    """Yield `text` behind its label; its further lines are aligned below the first."""
    for line in text.split("\n"):
        yield Line(f"{indent}{label:<{_LABEL}}{printable(line)}".rstrip())
        label = ""
