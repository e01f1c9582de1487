"""From MCP's wire format to the values of core: tools to `ToolSpec`, results of calls to `ToolResult`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl_core.api.tools import ToolResult, ToolSpec
from agentrl_core.errors import InvalidResultError, ToolServerError

BLOCK = "mcp"
"""Key of the block as the server sent it, in a part whose text only tells of it."""
_MOST_KEPT_CHARS = 1 << 18
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


def spec_of(tool: object, *, server: str) -> ToolSpec:
    """Return the tool that an item of `tools/list` describes; `ToolServerError` if it is none."""
    if not isinstance(tool, Mapping) or not isinstance(name := tool.get("name"), str) or not name:
        raise ToolServerError(f"{server}: tools/list has an item without a name: {_shown(tool)}")
    schema = tool.get("inputSchema", _NO_ARGUMENTS)
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise ToolServerError(
            f"{server}: tool '{name}': expected an inputSchema of type object, found {_shown(schema)}"
        )
    hints = tool.get("annotations")
    hints = hints if isinstance(hints, Mapping) else {}
    return ToolSpec(
        name=name,
        description=_text(tool.get("description")) or _text(tool.get("title")) or _text(hints.get("title")),
        parameters={"type": "object", "properties": {}, **schema},
        read_only=hints.get("readOnlyHint") is True,
        idempotent=hints.get("idempotentHint") is True,
    )


def needs_task(tool: Mapping[str, Any]) -> bool:
    """Return whether a tool can only be called as a task, which agentrl does not do: it waits for results."""
    execution = tool.get("execution")
    return isinstance(execution, Mapping) and execution.get("taskSupport") == "required"


def result_of(answer: Mapping[str, Any], *, tool: str) -> ToolResult:
    """Return the result that an answer to `tools/call` holds; `InvalidResultError` if it is none.

    A result that only has `structuredContent` gets its JSON as text, so that the model sees it.
    """
    content = answer.get("content")
    structured = answer.get("structuredContent")
    if content is None and "structuredContent" in answer:
        content = []
    if not isinstance(content, list):
        raise InvalidResultError(f"{tool}: expected a result with a list `content`, found {_shown(content)}")
    parts = tuple(_part(block, tool) for block in content)
    if not parts and structured is not None:
        parts = ({"type": "text", "text": _json(structured)},)
    return ToolResult(content=parts, is_error=answer.get("isError") is True, structured=structured)


def _part(block: object, tool: str) -> Mapping[str, Any]:  # noqa: PLR0911 - one per kind of block
    """Return a content block as a content part of OpenAI's shape."""
    match block:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image", "data": str(data), "mimeType": str(mime)}:
            return _image(data, mime, tool)
        case {"type": "audio", "data": str(data), "mimeType": str(mime)}:
            _size(data, tool)
            return {"type": "text", "text": f"[audio of type {mime}, which cannot be shown]", **_kept(block, data)}
        case {"type": "resource", "resource": {"uri": str(uri), "text": str(text), **rest}}:
            mime = _text(rest.get("mimeType"))
            return {"type": "text", "text": text, "uri": uri} | ({"mimeType": mime} if mime else {})
        case {"type": "resource", "resource": {"uri": str(uri), "blob": str(data), **rest}}:
            mime = _text(rest.get("mimeType")) or "application/octet-stream"
            if mime.startswith("image/"):
                return {**_image(data, mime, tool), "uri": uri}
            text = f"[{mime}, {_size(data, tool)} bytes: {uri}]"
            return {"type": "text", "text": text, "uri": uri, **_kept(block, data)}
        case {"type": "resource_link", "uri": str(uri), **rest}:
            about = " ".join(filter(None, (_text(rest.get("name")), _text(rest.get("description")))))
            return {"type": "text", "text": f"[{about}]({uri})" if about else uri, "uri": uri, **_kept(block)}
    raise InvalidResultError(f"{tool}: its result has a content block of an unknown form: {_shown(block)}")


def _image(data: str, mime: str, tool: str) -> dict[str, Any]:
    _size(data, tool)
    return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}}


def _kept(block: object, data: str = "") -> dict[str, Any]:
    """Return the block itself, for those who serve it on; not if it is so large that results would be refused."""
    return {BLOCK: block} if len(data) <= _MOST_KEPT_CHARS else {}


def _size(data: str, tool: str) -> int:
    try:
        return len(base64.b64decode(data, validate=True))
    except binascii.Error:
        raise InvalidResultError(f"{tool}: its result has data that is no base64") from None


def text_of_error(message: str, data: object = None) -> Iterator[str]:
    """Yield the lines of a JSON-RPC error that are of use to a model."""
    yield message or "the server reported an error without a message"
    if isinstance(data, str) and data and data != message:
        yield data


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _json(value: object) -> str:
    import orjson

    return orjson.dumps(value).decode()


def _shown(value: object, most: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= most else text[:most] + "…"
