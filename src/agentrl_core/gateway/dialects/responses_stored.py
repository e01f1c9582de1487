"""Serve a session's earlier responses, their input and items by id, rebuilt from recorded interactions.

This is the Responses API's server-side state: `GET /v1/responses/…` and `item_reference`s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import ChatRequest, Choice, Reply
from agentrl_core.gateway.dialects.client_tools import forms_of
from agentrl_core.gateway.dialects.responses_fields import parse_include, tools_of
from agentrl_core.gateway.dialects.responses_input import reply_of
from agentrl_core.gateway.dialects.responses_output import ID_PREFIX, call_item, echo_of, is_custom, output_items
from agentrl_core.gateway.history.ledger import INSTRUCTIONS
from agentrl_core.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agentrl_core.chat.facade import Chat
    from agentrl_core.gateway.call_types import ToolForm
    from agentrl_core.gateway.history.ledger import CallNode, Ledger
    from agentrl_core.types import Message


def with_referenced_items(body: Any, ledger: Ledger) -> Any:
    """Return the body with each `item_reference` replaced by its item; `RequestError` (400) for an unknown one."""
    items = body.get("input") if isinstance(body, dict) else None
    if not isinstance(items, list) or not any(map(_is_reference, items)):
        return body
    found = [
        _referenced(item.get("id"), ledger, f"input[{index}]") if _is_reference(item) else item
        for index, item in enumerate(items)
    ]
    return {**body, "input": found}


def stored_reply(response_id: str, query: str, ledger: Ledger, chat: Chat) -> Reply:
    """Rebuild the reply of a response, to be sent as the query of its URL says.

    `top_logprobs` and the token counts of upstreams are not stored. `RequestError` (404) if this session has no such
    response, (400) for a query that is wrong.
    """
    stream, logprobs = _parse_query(query)
    node = _stored(response_id, ledger)
    interaction = node.interaction
    thoughts = interaction.output.get("reasoning_content")
    instructions = next((item["content"] for item in _messages(node) if item.get(INSTRUCTIONS)), None)
    echo = {
        **echo_of(interaction.requested),
        "instructions": instructions,
        "tools": tools_of(interaction.tools, forms_of(interaction)),
    }
    choice = Choice(
        interaction=interaction,
        prompt_tokens=len(node.full_ids()) - len(interaction.output_ids),
        finish_reason="length" if interaction.finish_reason is FinishReason.LENGTH else "stop",
        reasoning_tokens=len(chat.encode(thoughts)) if thoughts else 0,
    )
    request = ChatRequest(
        api="responses",
        model=interaction.model,
        tool_forms=forms_of(interaction),
        echo=echo,
        stream=stream,
        logprobs=logprobs,
    )
    return Reply(request=request, choices=(choice,))


def _parse_query(query: str) -> tuple[bool, bool]:
    """Return whether a query asks for a stream, and for log-probabilities."""
    asked = parse_qs(query)
    stream = asked.get("stream", ["false"])[-1]
    if stream not in ("true", "false"):
        raise RequestError(400, "invalid_value", f"stream must be true or false, not {stream!r:.40}", param="stream")
    # The parts of a stored reply are not those in which it was streamed, so no number of theirs tells a place.
    if "starting_after" in asked:
        raise RequestError(
            400,
            "unsupported_parameter",
            "starting_after is not supported: leave it out, and read the stream from its beginning",
            param="starting_after",
        )
    return stream == "true", parse_include([*asked.get("include", ()), *asked.get("include[]", ())])


def stored_input(response_id: str, ledger: Ledger) -> dict[str, Any]:
    """List the input items of a response, latest first, without the instructions.

    `RequestError` (404) if this session has no such response.
    """
    node = _stored(response_id, ledger)
    items: list[dict[str, Any]] = []
    forms, custom = forms_of(node.interaction), set[str]()
    for message in _messages(node):
        if not message.get(INSTRUCTIONS):
            items += _items(message, f"{response_id.removeprefix(ID_PREFIX)}_in{len(items)}", forms, custom)
            custom |= {call["id"] for call in message.get("tool_calls", ()) if is_custom(call, forms)}
    # OpenAI's API lists input items in descending order by default.
    items.reverse()
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": False}


def _stored(response_id: str, ledger: Ledger) -> CallNode:
    node = ledger.find(response_id)
    if node is None:
        raise RequestError(
            404, "not_found", f"Response with id '{response_id}' not found: this session has no such reply"
        )
    return node


def _messages(node: CallNode) -> list[Message]:
    """Return all messages of the request that a reply answered, those of its lineage included."""
    found: list[Message] = []
    for item in node.lineage():
        found += item.interaction.messages
        if item is not node:
            found.append(item.interaction.output)
    return found


def _is_reference(item: Any) -> bool:
    # OpenAI's own SDK types let the type of a reference be null.
    return isinstance(item, dict) and (
        item.get("type") == "item_reference" or (item.get("type") is None and item.keys() <= {"id", "type"})
    )


def _referenced(identity: Any, ledger: Ledger, where: str) -> dict[str, Any]:
    node = ledger.find(f"{ID_PREFIX}{reply_of(identity)}")
    items = output_items(node.interaction) if node is not None else ()
    for item in items:
        if item["id"] == identity:
            return item
    raise RequestError(
        400,
        "item_not_found",
        f"{where}: item {identity!r} not found: it is in no reply of this session; send the item itself",
        param=where,
    )


def _items(
    message: Message, identity: str, forms: Mapping[str, ToolForm], custom: Collection[str]
) -> list[dict[str, Any]]:
    """Convert a message back to input items; `custom` are the ids of the calls of custom tools so far."""
    role, content = message["role"], message.get("content") or ""
    kind = "output_text" if role == "assistant" else "input_text"
    parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    written = [
        {"type": kind, "text": part["text"]}
        if part["type"] == "text"
        else {"type": "input_image", "detail": "auto", "image_url": part["image_url"]["url"]}
        for part in parts
    ]
    if role == "tool":
        output = content if isinstance(content, str) else written
        call_id = message.get("tool_call_id", "")
        kind = "custom_tool_call_output" if call_id in custom else "function_call_output"
        item = {"id": f"fco_{identity}", "type": kind, "call_id": call_id}
        return [{**item, "output": output, "status": "completed"}]
    items: list[dict[str, Any]] = []
    if content or not message.get("tool_calls"):
        items.append(
            {"id": f"msg_{identity}", "type": "message", "role": role, "status": "completed", "content": written}
        )
    calls = message.get("tool_calls", ())
    return items + [call_item(f"fc_{identity}_{number}", call, forms) for number, call in enumerate(calls)]
