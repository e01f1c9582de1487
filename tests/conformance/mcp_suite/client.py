"""The client that MCP's conformance suite tests: the tool server `mcp`, which connects and calls every tool.

    python client.py URL

The suite names its scenario in `MCP_CONFORMANCE_SCENARIO`, and tells more in `MCP_CONFORMANCE_CONTEXT`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
import threading
import urllib.request
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentrl_core.api.tools import ToolEpisode, ToolSpec
from agentrl_mcp import oauth
from agentrl_mcp.tools import MCPTools

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: Mapping[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
CALL_S = 20.0


def with_defaults(_: object, __: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a question of the server with the defaults of its form."""
    return {name: form["default"] for name, form in schema["properties"].items() if "default" in form}


def login(url: str, folder: str) -> oauth.OAuth | None:
    """Return the options with which the scenario's authorization server can be used; None without one."""
    if not SCENARIO.startswith("auth/"):
        return None
    if "private_key_pem" in CONTEXT or SCENARIO == "auth/client-credentials-basic":
        os.environ["SECRET"] = CONTEXT.get("client_secret") or CONTEXT["private_key_pem"]
        return oauth.OAuth(
            grant="client_credentials",
            issuer=issuer(url),
            client_id=CONTEXT["client_id"],
            client_secret_env="SECRET" if "client_secret" in CONTEXT else "",
            private_key_env="" if "client_secret" in CONTEXT else "SECRET",
            algorithm=CONTEXT.get("signing_algorithm", "RS256"),
        )
    # The person at the terminal agrees at once, and during the run, too, where a run asks nobody.
    oauth._is_terminal = lambda: True
    oauth.Login.is_starting = property(lambda _: True, lambda *_: None)  # type: ignore[assignment]
    webbrowser.open = browse  # type: ignore[assignment]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ["SECRET"] = CONTEXT.get("client_secret", "")
    return oauth.OAuth(
        client_id=CONTEXT.get("client_id", ""),
        client_secret_env="SECRET" if "client_secret" in CONTEXT else "",
        client_metadata_url="https://conformance-test.local/client-metadata.json",
        callback_port=port,
        token_file=f"{folder}/tokens.json",
    )


def issuer(url: str) -> str:
    """Return the authorization server's address, which a user would know."""
    parts = urlsplit(url)
    address = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{parts.path}"
    with urllib.request.urlopen(address) as reply:
        return str(json.load(reply)["authorization_servers"][0])


def browse(address: str) -> None:
    """Open a page as a browser does: follow its redirects, which end at the client."""
    threading.Thread(target=lambda: urllib.request.urlopen(address, timeout=CALL_S).read(), daemon=True).start()


def arguments_of(spec: ToolSpec) -> dict[str, Any]:
    """Return arguments that fit the tool's schema."""
    examples = {"string": "a", "number": 1, "integer": 1, "boolean": True, "array": [], "object": {}}
    forms = spec.parameters["properties"]
    return {name: examples[forms[name].get("type", "string")] for name in spec.parameters.get("required", ())}


async def main(url: str) -> None:
    """Connect, and call all tools in one episode."""
    with tempfile.TemporaryDirectory() as folder:
        tools = MCPTools(
            url=url,
            isolation="session",
            elicitation="client.py:with_defaults",
            oauth=login(url, folder),
            start_timeout_s=CALL_S,
            config_dir=Path(__file__).parent,
            name="tested",
        )
        try:
            await tools.start()
            session = await tools.open(ToolEpisode(record_id="episode-1", task_id="t", data={}))
            specs = await session.list_tools()
            calls = CONTEXT.get("toolCalls") or [{"name": spec.name, "arguments": arguments_of(spec)} for spec in specs]
            for call in calls:
                if call["name"] == "json_schema_echo":
                    call["arguments"] = {"schema": specs[0].parameters}
            for call in calls:
                result = await session.call(call["name"], call["arguments"], timeout_s=CALL_S)
                sys.stdout.write(f"{call['name']}: {result.text}\n")
            await session.close()
        finally:
            await tools.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
