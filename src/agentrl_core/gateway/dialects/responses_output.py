"""Build the Responses API's response object and its output items (reasoning, message, calls).

Ids of items are derived from the response's id, so a response that is sent again has the same ids.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from agentrl_core.gateway.call_types import custom_input
from agentrl_core.gateway.dialects.client_tools import forms_of
from agentrl_core.gateway.dialects.openai_replies import token_logprob
from agentrl_core.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.gateway.call_types import Decode, Reply, ReplyHead, ToolForm
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
    return {name: _echoed(default, asked.get(name)) for name, default in ECHOED.items()}


def _echoed(default: Any, value: Any) -> Any:
    # An object that the trace shortened is text now.
    if value is None or (isinstance(default, dict) and not isinstance(value, dict)):
        return default
    if not isinstance(default, dict):
        return value
    return {**default, **{name: inner for name, inner in value.items() if inner is not None}}


def item_id(kind: str, response_id: str, number: int = 0) -> str:
    """Return the id of an output item; `kind` is `rs` (reasoning), `msg` (message), `fc` or `ctc` (calls)."""
    stem = f"{kind}_{response_id.removeprefix(ID_PREFIX)}"
    return f"{stem}_{number}" if number or kind in ("fc", "ctc") else stem


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


def is_custom(call: Mapping[str, Any], forms: Mapping[str, ToolForm]) -> bool:
    """Return whether a call is one of a custom tool."""
    form = forms.get(call["function"]["name"])
    return form is not None and form.format is not None


def call_id_kind(call: Mapping[str, Any], forms: Mapping[str, ToolForm]) -> str:
    """Return the kind of a call's item, for `item_id`."""
    return "ctc" if is_custom(call, forms) else "fc"


def call_item(
    identity: str, call: Mapping[str, Any], forms: Mapping[str, ToolForm], *, begun: bool = False
) -> dict[str, Any]:
    """Build the item of a tool call; one that has only `begun` has no arguments yet."""
    function = call["function"]
    form = forms.get(function["name"])
    item = {
        "id": identity,
        "call_id": call["id"],
        "name": function["name"] if form is None else form.name,
        "status": "in_progress" if begun else "completed",
    }
    if form is not None and form.namespace:
        item["namespace"] = form.namespace
    if is_custom(call, forms):
        return {**item, "type": "custom_tool_call", "input": "" if begun else custom_input(call)}
    return {**item, "type": "function_call", "arguments": "" if begun else function["arguments"]}


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
    calls, forms = output.get("tool_calls", ()), forms_of(interaction)
    items += [
        call_item(item_id(call_id_kind(call, forms), response_id, number), call, forms)
        for number, call in enumerate(calls)
    ]
    # A call is only among the items if it was complete, so the cut never falls into one.
    if interaction.finish_reason is FinishReason.LENGTH and not calls:
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
    body = frame(reply.head, request.echo, model=request.model, created_at=int(interaction.started_at))
    body |= {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "completed_at": None if cut else int(interaction.finished_at),
        "output": output_items(interaction, logprobs),
        # The counts of a stored upstream's reply are unknown, and zeros would be wrong.
        "usage": None
        if interaction.upstream and choice.upstream_usage is None
        else {
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


def frame(head: ReplyHead, echo: Mapping[str, Any], *, model: str, created_at: int) -> dict[str, Any]:
    """Build a response before its first token, with no output."""
    return {
        "id": head.id,
        "object": "response",
        "created_at": created_at,
        "status": "in_progress",
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "service_tier": "default",
        "temperature": head.sampling.temperature,
        "top_p": head.sampling.top_p,
        # Penalties are never applied, whatever the request says.
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
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
    # A reply of 2,000 tokens may have 20 likely ones at each, and all clients wait while these are decoded.
    decode = functools.cache(decode)
    content = [
        {**_logprob(token, logprob, decode), "top_logprobs": []} for token, logprob in zip(ids, logprobs, strict=True)
    ]
    for entry, likeliest in zip(content, top_logprobs, strict=False):
        entry["top_logprobs"] = [_logprob(token, logprob, decode) for token, logprob in likeliest]
    return content


def _logprob(token: int, logprob: float, decode: Decode) -> dict[str, Any]:
    built = token_logprob(token, logprob, decode)
    return {**built, "bytes": built["bytes"] or []}
