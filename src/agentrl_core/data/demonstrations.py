"""Reader of demonstrations for supervised training from JSONL files: chats, or token ids of sampled episodes.

A line is an object of one of these forms:

* `{"messages": […], "tools": […]}` in OpenAI's format; an assistant message may have its own `weight`;
* `{"ids": […], "spans": [[start, end], …], "tokenizer": …}`, with or without `messages`, as `agentrl trace export`
  writes it; the ids of each span are trained, and a third number is the span's weight;
* `{"prompt": …, "completion": …}`, texts or lists of messages; the completion is trained;
* `{"conversations": [{"from": "human", "value": …}, …], "system": …}`, ShareGPT's format.

A `weight` of the whole line multiplies the weights inside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from agentrl_core.data.lines import BadLineError, kind, read_objects
from agentrl_core.data.messages import read_messages, read_weight

if TYPE_CHECKING:
    from agentrl_core.types import Message

Span: TypeAlias = tuple[int, int, float]
"""Index of the first token id, index after the last, weight of each token."""

_SHAPES = ("messages", "ids", "prompt", "conversations")
_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_call": "assistant",
}


@attrs.frozen(kw_only=True)
class TokenRow:
    """Token ids of a demonstration exactly as they were sampled."""

    ids: Sequence[int]
    spans: Sequence[Span]
    """Trained parts of `ids`, in rising order, without overlaps."""
    tokenizer: str = ""
    """Digest of the tokenizer that the ids belong to; empty if it is not known."""


@attrs.frozen(kw_only=True)
class Demonstration:
    """One chat to learn from, as messages or token ids."""

    where: str
    """`file:line`, for error messages."""
    messages: Sequence[Message] = ()
    weights: Sequence[float] = ()
    """Weight of each message; 0 for every message that is not an assistant's."""
    tools: Sequence[Mapping[str, Any]] | None = None
    tokens: TokenRow | None = None
    """Token ids, which are trained instead of the messages if the row has them."""

    @property
    def chat(self) -> dict[str, Any]:
        """Messages and tools in the form that chat templates take."""
        return {"messages": list(self.messages), **({"tools": list(self.tools)} if self.tools else {})}


def load_demonstrations(path: str | Path) -> list[Demonstration]:
    """Read a JSONL file; raise DataError with one line per problem."""
    path = Path(path)
    return read_objects(path, lambda row, line: demonstration(row, f"{path}:{line}"), what="demonstration")


def demonstration(row: Mapping[str, Any], where: str) -> Demonstration:
    """Make a demonstration of an object of any of the forms; raise `BadLineError` if it has none of them."""
    fields = {name: value for name, value in row.items() if value is not None}
    shapes = [name for name in _SHAPES if name in fields]
    if not shapes:
        raise BadLineError(
            "expected `messages` (a list), `ids` and `spans`, `prompt` and `completion`, or `conversations`; found "
            + (", ".join(f"`{name}`" for name in row) or "an empty object")
        )
    scale = read_weight(fields.get("weight", 1.0), "weight")
    # The first of `_SHAPES` that is present decides: an exported row may have both `messages` and `ids`.
    messages, weights = _chat(fields, shapes[0])
    tokens = _tokens(fields, scale) if "ids" in fields else None
    if tokens is None and not any(weights):
        replies = any(message["role"] == "assistant" for message in messages)
        found = "no assistant message with a weight above 0" if replies else "no assistant message"
        raise BadLineError(f"{found}, so there is nothing to learn from it")
    if tokens is None and scale == 0:
        raise BadLineError("weight: 0, so there is nothing to learn from it; remove the line")
    return Demonstration(
        where=where,
        messages=messages,
        weights=[scale * weight for weight in weights],
        tools=_tools(fields.get("tools")),
        tokens=tokens,
    )


def _chat(fields: Mapping[str, Any], shape: str) -> tuple[list[Message], list[float]]:
    """Return the messages of an object and their weights."""
    if shape == "prompt":
        # A prompt in messages may contain assistant messages; they are not trained.
        prompt = _part(fields, "prompt", "user")
        given = [*prompt, *_part(fields, "completion", "assistant")]
        messages, weights = read_messages(given, "messages")
        return messages, [0.0] * len(prompt) + weights[len(prompt) :]
    if shape == "conversations":
        return read_messages(_sharegpt(fields), "conversations")
    return read_messages(fields["messages"], "messages", sampled="ids" in fields) if "messages" in fields else ([], [])


def _part(fields: Mapping[str, Any], name: str, role: str) -> list[Any]:
    """Return a prompt or completion as messages."""
    value = fields.get(name)
    if isinstance(value, str) and value:
        return [{"role": role, "content": value}]
    if not isinstance(value, list) or not value:
        raise BadLineError(f"{name}: expected a text or a list of messages, found {kind(value)}")
    return value


def _sharegpt(fields: Mapping[str, Any]) -> list[Message]:
    turns = fields["conversations"]
    if not isinstance(turns, list):
        raise BadLineError(f"conversations: expected a list, found {kind(turns)}")
    messages: list[Message] = []
    if system := fields.get("system"):
        messages.append({"role": "system", "content": system})
    for index, turn in enumerate(turns):
        where = f"conversations.{index}"
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            raise BadLineError(f'{where}: expected {{"from": …, "value": a text}}, found {kind(turn)}')
        if turn.get("from") not in _SHAREGPT_ROLES:
            raise BadLineError(f"{where}.from: expected one of {', '.join(_SHAREGPT_ROLES)}, found {turn.get('from')}")
        said: Message = {"role": _SHAREGPT_ROLES[turn["from"]], "content": turn["value"]}
        # In ShareGPT the text of such a turn is the JSON of the tool call.
        if turn["from"] == "function_call":
            said |= {"content": "", "tool_calls": [{"type": "function", "function": _json(turn["value"], where)}]}
        messages.append(said | ({"weight": turn["weight"]} if "weight" in turn else {}))
    return messages


def _tools(value: Any) -> list[Mapping[str, Any]] | None:
    """Return the tools as a list of objects; some data sets have them as JSON text."""
    if isinstance(value, str):
        value = _json(value, "tools") if value.strip() else None
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise BadLineError(f"tools: expected a list of objects, found {kind(value)}")
    return value


def _tokens(fields: Mapping[str, Any], scale: float) -> TokenRow:
    ids, spans, tokenizer = fields["ids"], fields.get("spans"), fields.get("tokenizer", "")
    if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
        raise BadLineError("ids: expected a list of token ids, whole numbers of at least 0")
    if not isinstance(tokenizer, str):
        raise BadLineError(f"tokenizer: expected a text, found {kind(tokenizer)}")
    if not isinstance(spans, list) or not spans:
        raise BadLineError(f"spans: expected a list of [start, end], found {kind(spans)}")
    found: list[Span] = []
    # The first token has no prediction before it that could be trained.
    end = 1
    for index, span in enumerate(spans):
        if not (isinstance(span, list) and len(span) in (2, 3) and all(type(place) is int for place in span[:2])):
            raise BadLineError(f"spans.{index}: expected [start, end] or [start, end, weight], found {span}")
        if not end <= span[0] < span[1] <= len(ids):
            raise BadLineError(
                f"spans.{index}: expected {end} <= start < end <= {len(ids)} (spans rise, do not overlap, and have a "
                f"prompt before them), found {span}"
            )
        end = span[1]
        found.append((span[0], end, scale * read_weight(span[2] if len(span) > 2 else 1.0, f"spans.{index}.2")))  # noqa: PLR2004  # an optional third
    if not any(weight for _, _, weight in found):
        raise BadLineError("spans: none has a weight above 0, so there is nothing to learn from it")
    return TokenRow(ids=ids, spans=found, tokenizer=tokenizer)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadLineError(f"{where}: expected JSON, found {text[:40]!r}") from error
