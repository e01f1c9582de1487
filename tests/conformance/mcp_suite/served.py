"""The tools that MCP's conformance suite calls; `agentrl tools serve` serves them."""

from __future__ import annotations

import base64
from typing import Any

from mcp.server import Server
from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ListToolsResult,
    TextContent,
    TextResourceContents,
    Tool,
)

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="  # one red pixel
)
WAV = base64.b64encode(b"RIFF\x24\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00@\x1f\x00\x00data\x00\x00\x00\x00")
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def resource(uri: str, mime: str, text: str) -> EmbeddedResource:
    """Return an embedded resource."""
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=mime, text=text))


TEXT = TextContent(type="text", text="This is a simple text response for testing.")
IMAGE = ImageContent(type="image", data=PNG, mime_type="image/png")
CONTENT: dict[str, list[Any]] = {
    "test_simple_text": [TEXT],
    "test_image_content": [IMAGE],
    "test_audio_content": [AudioContent(type="audio", data=WAV.decode(), mime_type="audio/wav")],
    "test_embedded_resource": [resource("test://embedded-resource", "text/plain", "An embedded resource.")],
    "test_multiple_content_types": [TEXT, IMAGE, resource("test://mixed", "application/json", '{"test": "data"}')],
    "test_error_handling": [TextContent(type="text", text="This tool intentionally returns an error for testing")],
    "json_schema_2020_12_tool": [TEXT],
    "test_headers": [TEXT],
}
SCHEMAS = {
    "json_schema_2020_12_tool": SCHEMA,
    # Clients since 2026-07-28 repeat this argument in a header.
    "test_headers": {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        "required": ["region"],
    },
}


async def _list(_: Any, __: Any) -> ListToolsResult:
    return ListToolsResult(
        tools=[
            Tool(name=name, description=name, input_schema=SCHEMAS.get(name, {"type": "object"})) for name in CONTENT
        ]
    )


async def _call(_: Any, params: Any) -> CallToolResult:
    return CallToolResult(content=CONTENT[params.name], is_error=params.name == "test_error_handling")


server = Server("conformance", on_list_tools=_list, on_call_tool=_call)
