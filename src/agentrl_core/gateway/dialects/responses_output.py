"""Build the Responses API's response object and its output items (reasoning, message, calls).

Ids of items are derived from the response's id, so a response that is sent again has the same ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_core.gateway.dialects.openai_replies import token_logprob
from agentrl_core.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.gateway.call_types import Decode, Reply
    from agentrl_core.types import Interaction

ID_PREFIX = "resp_"

ECHOED: Mapping[str, Any] = {
    "background": False,
    "conversation": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "store": True,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "top_logprobs": 0,
    "truncation": "disabled",
    "user": None,
}
"""Request fields that a response repeats, with the values for a request without them."""


def echo_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request fields that a response repeats, with defaults for those that the trace shortened."""
    return {
        name: asked[name] if name in asked and isinstance(asked[name], _kind_of(name)) else default
        for name, default in ECHOED.items()
    }


def _kind_of(name: str) -> type | tuple[type, ...]:
    return (str, dict) if name == "tool_choice" else dict if isinstance(ECHOED[name], dict) else object


def item_id(kind: str, response_id: str, number: int = 0) -> str:
    """Return the id of an output item; `kind` is `rs` (reasoning), `msg` (message) or `fc` (call)."""
    stem = f"{kind}_{response_id.removeprefix(ID_PREFIX)}"
    return f"{stem}_{number}" if number or kind == "fc" else stem


def reasoning_item(identity: str, text: str, status: str) -> dict[str, Any]:
    """Build the item of a reply's reasoning."""
    content = [reasoning_part(text)] if text else []
    return {"id": identity, "type": "reasoning", "summary": [], "content": content, "status": status}


def reasoning_part(text: str) -> dict[str, Any]:
    """Build the content part of a reasoning item."""
    return {"type": "reasoning_text", "text": text}


def message_item(identity: str, parts: Sequence[Mapping[str, Any]], status: str) -> dict[str, Any]:
    """Build the item of a reply's message."""
    return {"id": identity, "type": "message", "role": "assistant", "status": status, "content": parts}


def text_part(text: str, logprobs: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Build the content part of a message item."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def call_item(
    identity: str, call: Mapping[str, Any], status: str = "completed", arguments: str | None = None
) -> dict[str, Any]:
    """Build the item of a tool call, with `arguments` in place of the call's own if given."""
    function = call["function"]
    return {
        "id": identity,
        "type": "function_call",
        "call_id": call["id"],
        "name": function["name"],
        "arguments": function["arguments"] if arguments is None else arguments,
        "status": status,
    }


def has_message(interaction: Interaction) -> bool:
    """Return whether a reply has a message item.

    A reply without text has an empty one if it ended normally and makes no calls, so that agents find a message.
    """
    output = interaction.output
    if output.get("content"):
        return True
    # A reply cut in its reasoning never came to a message; its reasoning item is the incomplete one.
    cut_in_thought = interaction.finish_reason is FinishReason.LENGTH and output.get("reasoning_content")
    return not output.get("tool_calls") and not cut_in_thought


def output_items(interaction: Interaction, logprobs: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Build all output items of a reply."""
    output, response_id = interaction.output, interaction.id
    items = []
    if reasoning := output.get("reasoning_content"):
        items.append(reasoning_item(item_id("rs", response_id), reasoning, "completed"))
    if has_message(interaction):
        part = text_part(output.get("content") or "", logprobs)
        items.append(message_item(item_id("msg", response_id), [part], "completed"))
    items += [
        call_item(item_id("fc", response_id, number), call) for number, call in enumerate(output.get("tool_calls", ()))
    ]
    # A call is only among the items if it was complete, so the cut never falls into one.
    if interaction.finish_reason is FinishReason.LENGTH and items[-1]["type"] != "function_call":
        items[-1]["status"] = "incomplete"
    return items


def response_of(reply: Reply, decode: Decode) -> dict[str, Any]:
    """Build the body of a finished response."""
    choice, request, usage = reply.first, reply.request, reply.usage
    interaction = choice.interaction
    cut = choice.finish_reason == "length"
    logprobs: Sequence[Mapping[str, Any]] = ()
    if request.logprobs:
        logprobs = choice.upstream_logprobs or logprobs_of(
            interaction.output_ids, interaction.logprobs, choice.top_logprobs, decode
        )
    body = frame(reply.id, request.echo, model=request.model, created_at=int(interaction.started_at))
    body |= {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "completed_at": None if cut else int(interaction.finished_at),
        "output": output_items(interaction, logprobs),
        "temperature": interaction.sampling.temperature,
        "top_p": interaction.sampling.top_p,
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.output_tokens,
        },
    }
    if errors := interaction.output.get("tool_call_errors"):
        body["tool_call_errors"] = errors
    if request.return_token_ids:
        body |= {"prompt_token_ids": choice.prompt_ids, "token_ids": interaction.output_ids}
    return body


def frame(response_id: str, echo: Mapping[str, Any], *, model: str, created_at: int) -> dict[str, Any]:
    """Build a response before its first token, with no output; sampling parameters are filled in at its end."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": "in_progress",
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "service_tier": "default",
        "temperature": None,
        "top_p": None,
        "usage": None,
        **echo,
    }


def logprobs_of(
    ids: Sequence[int],
    logprobs: Sequence[float],
    top_logprobs: Sequence[Sequence[tuple[int, float]]],
    decode: Decode,
) -> list[dict[str, Any]]:
    """Build the log-probabilities of sampled tokens; a token that is only part of a character has no `bytes`."""
    content = [
        {**_logprob(token, logprob, decode), "top_logprobs": []} for token, logprob in zip(ids, logprobs, strict=True)
    ]
    for entry, likeliest in zip(content, top_logprobs, strict=False):
        entry["top_logprobs"] = [_logprob(token, logprob, decode) for token, logprob in likeliest]
    return content


def _logprob(token: int, logprob: float, decode: Decode) -> dict[str, Any]:
    built = token_logprob(token, logprob, decode)
    return {**built, "bytes": built["bytes"] or []}
