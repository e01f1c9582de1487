"""Parse and check the messages of an agent worker and its guard.

The agent's own code can forge those of the worker, as it shares the socket.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agentrl_core.api.scoring import Answer
from agentrl_core.errors import AgentRLError, ConfigError, DataError, EpisodeError, PluginError, RunError
from agentrl_core.rollout.failures import RemoteFailure
from agentrl_core.rollout.subproc.inside.frames import MAX_ANSWER_BYTES
from agentrl_core.rollout.subproc.inside.telling import tell
from agentrl_core.rollout.subproc.inside.values import DEEPEST_VALUE

READ_BYTES = 2**16
"""Bytes read from a worker's socket at a time."""

_PREFIX_BYTES = 8
"""Bytes before a message: the lengths of its header and of its body, 4 bytes each."""
_SHOWN = 100
"""Characters of an unexpected message that an error quotes."""
_NOT_FINITE = ("nan", "inf", "-inf")
"""Numbers that JSON lacks, as the worker spells them."""
_READY: Mapping[str, type] = {"name": str, "is_async": bool}
_REFUSED: Mapping[str, type] = {"kind": str, "message": str, "place": str, "trace": str}
_KINDS: Mapping[str, type[AgentRLError]] = {
    item.__name__: item for item in (ConfigError, DataError, PluginError, RunError)
}
"""Errors that a worker may ask the run to raise."""
_RAISED: Mapping[str, type] = {"type": str, "message": str, "place": str, "trace": str}


class ProtocolError(Exception):
    """The process sent a message that no worker sends; the text continues the words `the agent's process`."""


class Frames:
    """Splits the bytes of a connection into messages; holds at most one message, and the piece read with its end."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def add(self, piece: bytes) -> None:
        """Append up to `READ_BYTES`; only after `next` has returned None."""
        self._buffer += piece

    def next(self) -> dict[str, Any] | None:
        """Return the next message, or None while it is incomplete. Raises `ProtocolError` if it is malformed."""
        if len(self._buffer) < _PREFIX_BYTES:
            return None
        size, body = (int.from_bytes(self._buffer[start : start + 4], "big") for start in (0, 4))
        end = _PREFIX_BYTES + size
        # Checked before the message is complete: what the agent writes could claim any length and fill the run's
        # memory.
        if body or end > MAX_ANSWER_BYTES:
            found = tell(repr(bytes(self._buffer[:_SHOWN])), _SHOWN)
            raise ProtocolError(
                f"wrote {found} to the run's connection; expected a message of at most {MAX_ANSWER_BYTES} bytes"
            )
        if len(self._buffer) < end:
            return None
        text = bytes(self._buffer[_PREFIX_BYTES:end])
        del self._buffer[:end]
        try:
            message = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ProtocolError(f"sent a message to the run that is not JSON: {tell(str(error), _SHOWN)}") from None
        if not isinstance(message, dict):
            raise _unexpected("an object", message)
        return message


def check(message: Mapping[str, Any], ops: Sequence[str], number: str | None) -> None:
    """Raise `ProtocolError` unless a message is one of `ops` and answers the request `number`."""
    if message.get("op") not in ops or message.get("id") != number:
        found = {key: message[key] for key in ("op", "id") if key in message}
        raise _unexpected(f"{' or '.join(ops)}{f' with the id {number}' if number else ''}", found)


def read_start(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first message of a worker: `ready` or `refused`."""
    check(message, ("ready", "refused"), None)
    return _with_fields(message, _READY if message["op"] == "ready" else _REFUSED)


def read_refusal(answer: Mapping[str, Any], where: str) -> AgentRLError:
    """Return the error for a message `refused`; `where` begins a message that has no place in the config."""
    if answer["kind"] in _KINDS:
        return _KINDS[answer["kind"]](answer["message"])
    at = f" (at {answer['place']})" if answer["place"] else ""
    text = tell(answer["message"])
    return PluginError(f"{where}: building the workflow in a worker process failed: {answer['kind']}: {text}{at}")


def how_it_ended(report: bytes, status: int | None, *, memory_mb: int | None) -> str:
    """Return how a worker ended, as a verb phrase.

    `report` is its guard's, `status` the exit code of the guard, which counts if the guard was killed as well.
    """
    try:
        told = orjson.loads(report)
    except orjson.JSONDecodeError:
        told = {"status": status, "used_bytes": None}
    if told["used_bytes"] is not None:
        used = told["used_bytes"] // 2**20
        return f"was killed: it used {used} MB, and rollout.agent.subproc_max_memory_mb is {memory_mb}"
    status = told["status"]
    if status is None:
        return "was killed"
    if status >= 0:
        return f"ended with exit code {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    why = " (the system does that when memory runs out)" if -status == signal.SIGKILL else ""
    return f"was ended by {name}{why}"


def read_answer(message: Mapping[str, Any]) -> Any:
    """Return the workflow's return value from a message `done` or `raised`.

    Raises `RemoteFailure` or `EpisodeError` for what the workflow raised, `EpisodeError` for a value that is no reward,
    and `ProtocolError` for a malformed message.
    """
    if message["op"] == "done":
        return _value(message.get("value"))
    reason = message.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise _unexpected("a text as the reason", reason)
    told = _with_fields(message, _RAISED)
    name, text, place = tell(told["type"]), tell(told["message"]), tell(told["place"])
    if reason is not None:
        raise EpisodeError(tell(reason), text)
    whole = f"{name}{f': {text}' if text else ''}{f' ({place})' if place else ''}"
    raise RemoteFailure(name, whole, told["trace"])


def _with_fields(message: Mapping[str, Any], fields: Mapping[str, type]) -> Mapping[str, Any]:
    for name, kind in fields.items():
        if not isinstance(message.get(name), kind):
            raise _unexpected(f"'{message['op']}' with a field {name} of type {kind.__name__}", message.get(name))
    return message


def _value(told: Any, depth: int = 0) -> Any:
    match told:
        case {"number": None | bool() | int() | float() as number}:
            return number
        case {"number": str() as number} if number in _NOT_FINITE:
            return float(number)
        case {"pairs": list() as pairs} if depth < DEEPEST_VALUE:
            return dict(_pair(pair, depth + 1) for pair in pairs)
        case {"answer": str() as text}:
            return Answer(text)
        case {"odd": [str() as kind, str() as looks]}:
            problem = f"expected a number, found {tell(kind)} {tell(looks)}"
            raise EpisodeError("reward_type", f"the workflow gave no usable reward: {problem}")
        case {"large": int() as size}:
            problem = f"the workflow returned {size} bytes; expected at most {MAX_ANSWER_BYTES}"
            raise EpisodeError("reward_type", problem)
    raise _unexpected("a value", told)


def _pair(told: Any, depth: int) -> tuple[str | int, Any]:
    match told:
        case [str() | int() as key, value]:
            return key, _value(value, depth)
    raise _unexpected("a key and a value", told)


def _unexpected(expected: str, found: object) -> ProtocolError:
    looks = tell(repr(found), _SHOWN)
    return ProtocolError(f"sent an unexpected message to the run: expected {expected}, found {looks}")
