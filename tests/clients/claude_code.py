"""Claude Code on the command line: `claude -p`, with its tools, against a session of the gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TOOL = ("Bash", {"command": "echo sum=$((1+2))", "description": "Add"})
"""Tool that the policy calls, with its arguments."""
STRUCTURED_TOOL = "StructuredOutput"
"""Tool by which this client asks for structured output."""
_SCHEMA = {"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]}


def command(place: Path, folder: Path, scenario: str, question: str, base_url: str, key: str) -> tuple[list[str], dict]:
    """Return the command line and the environment of a run in `folder`."""
    line = [str(place / "node_modules/.bin/claude"), "-p", question, "--model", "default", "--allowedTools", "Bash"]
    if scenario == "stream":
        line += ["--output-format", "stream-json", "--verbose", "--include-partial-messages"]
    else:
        line += ["--output-format", "json"]
    if scenario == "structured":
        line += ["--json-schema", json.dumps(_SCHEMA)]
    environ = {
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_API_KEY": key,
        "CLAUDE_CONFIG_DIR": str(folder / "config"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "HOME": str(folder),
    }
    return line, environ


def shown(output: str, folder: Path) -> dict[str, Any]:
    """Read what the client shows."""
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    last = events[-1]
    assert last["subtype"] == "success", last
    pieces = [event for event in events if event.get("event", {}).get("type") == "content_block_delta"]
    return {"text": last["result"], "pieces": len(pieces), "object": last.get("structured_output")}
