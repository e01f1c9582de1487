"""Encode interactions and token-level requests as JSON between a serving and a sampling member, without loss.

Token ids and logprobs are packed as in `array`: JSON numbers would take twice the bytes and the time, and JSON has no
infinity.
"""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.kept_tokens import compress, decompress
from agentrl_core.gateway.call_types import ChatRequest
from agentrl_core.gateway.dialects.fields import missing, wrong_type
from agentrl_core.gateway.dialects.shape import MOST_INTEGER, accepted, anything, flag, integer, listed, number, text
from agentrl_core.types import FinishReason, Grammar, Interaction, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentrl_core.gateway.dialects.fields import Fields

_INT, _DOUBLE = "i", "d"

GENERATE_REQUEST = accepted(
    {"prompt_ids": text("Token ids of the prompt: 4 bytes each, little endian, in base64.", minLength=1)},
    temperature=number("Temperature; `gateway.temperature` decides about trained calls.", minimum=0, maximum=1e6),
    top_p=number("Nucleus sampling; ignored in calls that are trained.", exclusiveMinimum=0, maximum=1),
    top_k=integer("Number of tokens to sample from; ignored in calls that are trained."),
    max_tokens=integer("Most tokens of the reply.", minimum=1),
    min_tokens=integer("Least number of tokens of the reply."),
    stop=listed(text(minLength=1), "Texts that end the reply."),
    stop_token_ids=listed(integer(), "Further ids that end the reply."),
    ignore_eos=flag("Whether the model's own end tokens do not end the reply."),
    trainable=flag("Whether the reply may be trained.", default=True),
    ignored=anything("Options without effect, for the trace."),
)
"""Declares the body of a token-level call."""
_PLAIN = ("temperature", "top_p", "top_k", "max_tokens", "min_tokens", "ignore_eos", "trainable")
"""Fields of a token-level call that are the same in JSON and in `ChatRequest`."""


def pack(kind: str, values: Sequence[float]) -> str:
    """Return numbers in base64, little endian; `kind` is their type as in the module `struct`."""
    return base64.b64encode(struct.pack(f"<{len(values)}{kind}", *values)).decode()


def unpack(kind: str, packed: str) -> tuple[Any, ...]:
    """Return the numbers that `pack` encoded; ValueError if it encoded nothing of this kind."""
    data = base64.b64decode(packed, validate=True)
    try:
        return struct.unpack(f"<{len(data) // struct.calcsize(f'<{kind}')}{kind}", data)
    except struct.error as error:
        raise ValueError(str(error)) from error


def interaction_to(interaction: Interaction) -> dict[str, Any]:
    """Return an interaction as JSON; `interaction_from` restores an equal one."""
    kept = {field.name: getattr(interaction, field.name) for field in attrs.fields(Interaction)}
    sampling = attrs.asdict(interaction.sampling)
    return kept | {
        "prompt_ids": pack(_INT, interaction.prompt_ids),
        "output_ids": pack(_INT, interaction.output_ids),
        "logprobs": pack(_DOUBLE, interaction.logprobs),
        "kept": base64.b64encode(compress(interaction.kept)).decode(),
        "requested": dict(interaction.requested),
        "tools": [dict(tool) for tool in interaction.tools],
        "finish_reason": interaction.finish_reason.value,
        "sampling": sampling,
    }


def interaction_from(kept: dict[str, Any]) -> Interaction:
    """Return the interaction that `interaction_to` encoded; `TypeError`, `KeyError` or ValueError if it is none."""
    sampling: dict[str, Any] = {
        name: tuple(item) if isinstance(item, list) else item for name, item in kept["sampling"].items()
    }
    if sampling["grammar"] is not None:
        sampling["grammar"] = Grammar(**sampling["grammar"])
    restored = {
        "prompt_ids": unpack(_INT, kept["prompt_ids"]),
        "output_ids": unpack(_INT, kept["output_ids"]),
        "logprobs": unpack(_DOUBLE, kept["logprobs"]),
        "kept": decompress(base64.b64decode(kept["kept"], validate=True)),
        "versions": tuple((version, count) for version, count in kept["versions"]),
        "messages": tuple(kept["messages"]),
        "tools": tuple(kept["tools"]),
        "sampling": Sampling(**sampling),
        "finish_reason": FinishReason(kept["finish_reason"]),
    }
    return Interaction(**{**kept, **restored})


def token_call_to(request: ChatRequest) -> dict[str, Any]:
    """Return a call on the token ids of one prompt as JSON."""
    (ids,) = request.prompts
    return {
        "prompt_ids": pack(_INT, [int(token) for token in ids]),
        **{name: getattr(request, name) for name in _PLAIN},
        "stop": list(request.stop),
        "stop_token_ids": list(request.stop_token_ids),
        "ignored": dict(request.ignored),
    }


def token_call_from(fields: Fields) -> ChatRequest:
    """Read a call on token ids; `RequestError` (400) names the field at fault."""
    packed = fields.text("prompt_ids")
    if not packed:
        raise missing("prompt_ids")
    try:
        ids = unpack(_INT, packed)
    except ValueError as error:
        raise wrong_type("prompt_ids", "must be 4 bytes for each token id, in base64") from error
    if min(ids) < 0:
        raise wrong_type("prompt_ids", "must not have negative token ids")
    ignored = fields.take("ignored")
    if not isinstance(ignored, dict | None):
        raise wrong_type("ignored", "must be an object")
    return ChatRequest(
        api="completions",
        prompts=(ids,),
        temperature=fields.number("temperature"),
        top_p=fields.number("top_p"),
        top_k=fields.integer("top_k"),
        max_tokens=fields.integer("max_tokens"),
        min_tokens=fields.integer("min_tokens"),
        stop=tuple(_items(fields, "stop", lambda item: isinstance(item, str) and item != "", "texts, none empty")),
        stop_token_ids=tuple(_items(fields, "stop_token_ids", _is_token, "token ids")),
        ignore_eos=fields.flag("ignore_eos"),
        trainable=fields.flag("trainable"),
        ignored=ignored or {},
    )


def _items(fields: Fields, name: str, is_good: Callable[[Any], bool], expected: str) -> list[Any]:
    """Return the items of a list field; none where it is missing."""
    items = fields.take(name) or []
    if not isinstance(items, list) or not all(map(is_good, items)):
        raise wrong_type(name, f"must be a list of {expected}")
    return items


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_INTEGER
