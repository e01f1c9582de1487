"""The clients of `nox -s clients`: their packages, the APIs that each speaks, and what it plays over each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs

SCENARIOS: Mapping[str, str] = {
    "text": "text",
    "stream": "streamed",
    "tools": "tool round trip",
    "structured": "structured output",
    "group": "tool in a namespace",
}
"""What can be played, with the heading of its column in the table of the documentation."""
_ALL = ("text", "stream", "tools", "structured")


@attrs.frozen(kw_only=True)
class Client:
    """One client, with everything pinned that its environment is made of."""

    name: str
    title: str
    packages: tuple[str, ...]
    """Requirements of npm or pip; the first is the client itself."""
    language: Literal["node", "python"] = "node"
    program: str
    """Program in `programs/`, or module of this folder that starts a command-line agent."""
    plays: Mapping[str, tuple[str, ...]]
    """Scenarios by API."""

    @property
    def versions(self) -> str:
        """Packages with their versions, as the documentation shows them."""
        return ", ".join(f"`{package.replace('==', '@')}`" for package in self.packages)


def _ai_sdk(major: int, *packages: str) -> Client:
    return Client(
        name=f"ai-sdk-{major}",
        title=f"Vercel AI SDK {major}",
        packages=packages,
        program="ai_sdk.mjs",
        plays=dict.fromkeys(("chat", "responses", "messages", "compatible"), _ALL),
    )


CLIENTS = (
    Client(
        name="claude-code",
        title="Claude Code",
        packages=("@anthropic-ai/claude-code@2.1.330",),
        program="claude_code",
        plays={"messages": ("text", "stream", "tools", "structured")},
    ),
    Client(
        name="codex",
        title="Codex CLI",
        packages=("@openai/codex@0.169.0",),
        program="codex",
        plays={"responses": ("text", "tools", "structured", "group")},
    ),
    _ai_sdk(
        5,
        "ai@5.0.277",
        "@ai-sdk/openai@2.0.131",
        "@ai-sdk/anthropic@2.0.112",
        "@ai-sdk/openai-compatible@1.0.61",
        "zod@3.25.76",
    ),
    _ai_sdk(
        6,
        "ai@6.0.325",
        "@ai-sdk/openai@3.0.141",
        "@ai-sdk/anthropic@3.0.140",
        "@ai-sdk/openai-compatible@2.0.92",
        "zod@4.6.7",
    ),
    _ai_sdk(
        7,
        "ai@7.0.173",
        "@ai-sdk/openai@4.0.118",
        "@ai-sdk/anthropic@4.0.105",
        "@ai-sdk/openai-compatible@3.0.92",
        "zod@4.6.7",
    ),
    Client(
        name="langchain-js",
        title="LangChain JS",
        packages=("@langchain/core@1.4.0", "@langchain/openai@1.6.0", "@langchain/anthropic@1.5.11", "zod@4.6.7"),
        program="langchain.mjs",
        plays=dict.fromkeys(("chat", "responses", "messages"), _ALL),
    ),
    Client(
        name="litellm",
        title="LiteLLM",
        packages=("litellm==1.106.2", "mcp==2.3.0"),
        language="python",
        program="litellm_client.py",
        plays=dict.fromkeys(("chat", "messages", "hosted_vllm"), _ALL),
    ),
    Client(
        name="instructor",
        title="instructor",
        packages=("instructor==1.17.0", "anthropic==2.12.0"),
        language="python",
        program="instructor_client.py",
        plays={
            "chat": ("structured", "stream"),
            "chat_schema": ("structured",),
            "responses": ("structured",),
            "messages": ("structured",),
        },
    ),
)


def table() -> str:
    """Return the table of the documentation."""
    head = ["client", "packages", *SCENARIOS.values()]
    rows = [head, ["---"] * len(head)]
    for client in CLIENTS:
        cells = [", ".join(api for api, played in client.plays.items() if scenario in played) for scenario in SCENARIOS]
        rows.append([client.title, client.versions, *cells])
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)
