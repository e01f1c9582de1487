"""Read the JSON of model servers, and check that the tokens in it can be trained on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import orjson

from agentrl_core.api.remote import wrong_reply
from agentrl_core.engines.remote.failures import LostReplyError

if TYPE_CHECKING:
    from agentrl_core.api.remote import ReplyPart, ServerRequest

SHAPE_ERRORS = (KeyError, TypeError, IndexError, ValueError, AttributeError)
"""Exceptions of code that reads a reply of another shape."""

_MOST_SHOWN_CHARS = 300
_NO_LOGPROB = -9999.0
"""vLLM's stand-in for minus infinity, which JSON cannot express."""


def read_json(where: str, data: bytes) -> Any:
    """Decode a reply; `LostReplyError` quotes its beginning if it is not a JSON object."""
    try:
        reply = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise LostReplyError(f"{where}: the reply is not JSON: {shown(data)}") from error
    if not isinstance(reply, dict):
        raise LostReplyError(f"{where}: the reply is not a JSON object: {shown(data)}")
    return reply


def shown(data: bytes) -> str:
    """Return the beginning of a reply, for error messages."""
    text = data[: 4 * _MOST_SHOWN_CHARS].decode(errors="replace")
    return repr(text if len(text) <= _MOST_SHOWN_CHARS else f"{text[:_MOST_SHOWN_CHARS]}…")


def error_text(data: bytes) -> str:
    """Return the error message in a server's reply, in whichever of the usual shapes it comes."""
    try:
        reply = orjson.loads(data)
    except orjson.JSONDecodeError:
        return shown(data)
    found = reply.get("error", reply) if isinstance(reply, dict) else reply
    if isinstance(found, dict):
        found = found.get("message") or found.get("detail") or found
    return found[:_MOST_SHOWN_CHARS] if isinstance(found, str) else shown(data)


def misread(name: str, error: Exception) -> str:
    """Return the words for a reply of another shape than a server of this kind sends."""
    return f"the reply is not what {name} sends: {type(error).__name__}: {error}"[:_MOST_SHOWN_CHARS]


def checked(request: ServerRequest, part: ReplyPart, vocab_size: int) -> ReplyPart:
    """Raise if a token lacks its logprob, or if a value is not a valid id or logprob; else return `part`."""
    num_ids, num_logprobs = len(part.ids), len(part.logprobs)
    if num_ids != num_logprobs:
        raise wrong_reply(request, f"the server sent {num_ids} token ids and {num_logprobs} logprobs")
    if not part.ids:
        return part
    # Checked as a whole first: a loop over the tokens costs more than the rest of a call.
    if not (set(map(type, part.ids)) == {int} and min(part.ids) >= 0 and max(part.ids) < vocab_size):
        wrong = next(token for token in part.ids if type(token) is not int or not 0 <= token < vocab_size)
        raise wrong_reply(
            request, f"the server sent {wrong!r:.60} as a token id; the policy's ids are those below {vocab_size}"
        )
    check_logprobs(request, part.ids, part.logprobs)
    if part.labels and len(part.labels) != num_ids:
        raise wrong_reply(request, f"the server reports no weight version for some of its {num_ids} tokens")
    if request.top_logprobs and len(part.top_logprobs) != num_ids:
        raise wrong_reply(
            request,
            f"the server sent {num_ids} token ids and the likeliest tokens of {len(part.top_logprobs)} positions",
        )
    return part


def check_logprobs(request: ServerRequest, ids: tuple[int, ...], logprobs: tuple[float, ...]) -> None:
    """Raise unless each token has a finite logprob."""
    are_numbers = set(map(type, logprobs)) <= {float, int} and all(map(math.isfinite, logprobs))
    if are_numbers and min(logprobs, default=0.0) > _NO_LOGPROB:
        return
    for token, logprob in zip(ids, logprobs, strict=True):
        if type(logprob) not in {float, int} or not math.isfinite(logprob) or logprob <= _NO_LOGPROB:
            raise wrong_reply(request, f"the server sent {logprob!r} as the logprob of token {token}")
