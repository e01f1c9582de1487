"""Codex on the command line: `codex exec` with its defaults against a session of the gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TOOL = ("exec_command", {"cmd": "echo sum=$((1+2))"})
"""Tool that the policy calls, with its arguments."""
GROUPED = ("multi_agent_v1__close_agent", {"target": "nobody"})
"""Tool in a namespace, as the policy sees it."""
STRUCTURED_TOOL = None
"""Structured output is the text of a reply, whatever tools there are."""
_SCHEMA = {
    "type": "object",
    "properties": {"value": {"type": "integer"}},
    "required": ["value"],
    "additionalProperties": False,
}


def command(place: Path, folder: Path, scenario: str, question: str, base_url: str, key: str) -> tuple[list[str], dict]:
    """Return the command line and the environment of a run in `folder`."""
    settings = [
        'model_provider="rl"',
        'model_providers.rl.name="rl"',
        f'model_providers.rl.base_url="{base_url}/v1"',
        'model_providers.rl.env_key="RL_KEY"',
        'model_providers.rl.wire_api="responses"',
    ]
    line = [str(place / "node_modules/.bin/codex"), "exec", "--skip-git-repo-check", "-m", "default"]
    line += ["--sandbox", "danger-full-access", "-o", str(folder / "last.txt")]
    line += [part for setting in settings for part in ("-c", setting)]
    if scenario == "structured":
        (folder / "schema.json").write_text(json.dumps(_SCHEMA), encoding="utf-8")
        line += ["--output-schema", str(folder / "schema.json")]
    (folder / "config").mkdir()
    return [*line, question], {"CODEX_HOME": str(folder / "config"), "RL_KEY": key, "HOME": str(folder)}


def shown(output: str, folder: Path) -> dict[str, Any]:
    """Read what the client shows."""
    text = (folder / "last.txt").read_text(encoding="utf-8")
    return {"text": text, "object": json.loads(text) if text.startswith("{") else None}
