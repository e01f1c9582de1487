"""An agent of the Claude Agent SDK as an agentrl workflow: the SDK's command-line program, on the policy.

The SDK starts a program of its own for every query, and that takes address and key from its environment. So each
episode's program is given the episode's, and nothing in our own environment changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrl_core import Answer, workflow_context
from agentrl_core.api.inputs import agent_input, as_text
from agentrl_core.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage

QUIET: Mapping[str, str] = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
    "CLAUDE_CODE_DISABLE_REFUSAL_RETRY": "1",
    "CLAUDE_CODE_ENABLE_TELEMETRY": "0",
    "CLAUDE_CODE_MAX_RETRIES": "0",
    "CLAUDE_CODE_NO_MODEL_FALLBACK": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}
"""What keeps the program from trying a call twice and from telling third parties of it."""

ENDINGS = ("error_max_turns", "error_max_budget_usd", "error_max_structured_output_retries")
"""Results of runs that the program ended because of what the policy said: scored as they stand."""

_STOPPING_S = 2.0
"""Time that the program has to hear that it should stop."""


class ClaudeAgentWorkflow:
    """Asks a Claude agent each task's question; all its LLM calls answer with the record's own policy session.

    The prompt is the row's `query`, or what the user says in its `messages`. The reward comes from the task's
    scorer, which judges the structured output where there is one, else the last reply. Each episode has a folder of
    its own for the program's files, and as its working directory where the options name none; it is deleted after.

    `options`: fields of `ClaudeAgentOptions`, where no agent was named.
    `input_key`: the key of the row that is the prompt.
    """

    def __init__(
        self,
        agent: ClaudeAgentOptions | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        input_key: str | None = None,
    ) -> None:
        if agent is not None and options is not None:
            raise ConfigError("workflow.options: the named object is the agent's options; name one or the other")
        self._agent = _options(options or {}) if agent is None else agent
        self._input_key = input_key

    async def run(self, data: dict[str, Any]) -> Answer | None:
        """Let the agent answer one task."""
        from claude_agent_sdk import ClaudeSDKClient

        prompt = as_text(agent_input(data, input_key=self._input_key), task_id=data.get("id"))
        with tempfile.TemporaryDirectory(prefix="agentrl-claude-", ignore_cleanup_errors=True) as folder:
            async with ClaudeSDKClient(self._for_episode(folder)) as client:
                result = await _last_message(client, prompt)
        return _answer(result)

    def _for_episode(self, folder: str) -> ClaudeAgentOptions:
        here = workflow_context.get()
        env = {
            "CLAUDE_CONFIG_DIR": folder,
            **QUIET,
            **self._agent.env,
            "ANTHROPIC_BASE_URL": here.base_url,
            "ANTHROPIC_AUTH_TOKEN": here.api_key,
            "ANTHROPIC_API_KEY": "",  # an inherited one would come first
        }
        return dataclasses.replace(self._agent, env=env, cwd=self._agent.cwd or folder)


async def _last_message(client: ClaudeSDKClient, prompt: str) -> ResultMessage:
    """Return what the program says at the end; being cancelled, tell it to stop waiting for the policy."""
    from claude_agent_sdk import ClaudeSDKError, ResultMessage

    try:
        await client.query(prompt)
        async for message in client.receive_response():
            if isinstance(message, ResultMessage):
                return message
    except asyncio.CancelledError:
        with contextlib.suppress(ClaudeSDKError, TimeoutError):
            async with asyncio.timeout(_STOPPING_S):
                await client.interrupt()
        raise
    raise ClaudeSDKError("the program ended without a result")


def _answer(result: ResultMessage) -> Answer | None:
    from claude_agent_sdk import ClaudeSDKError

    if result.is_error and result.subtype not in ENDINGS:
        raise ClaudeSDKError(f"{result.subtype}: {result.result or ', '.join(result.errors or [])}")
    return None if result.structured_output is None else Answer(json.dumps(result.structured_output))


def _options(fields: Mapping[str, Any]) -> ClaudeAgentOptions:
    try:
        from claude_agent_sdk import ClaudeAgentOptions
    except ImportError as error:
        raise PluginError(f"the Claude Agent SDK is missing: pip install claude-agent-sdk ({error})") from error
    known = {field.name for field in dataclasses.fields(ClaudeAgentOptions)}
    if unknown := sorted(fields.keys() - known):
        raise ConfigError(f"workflow.options.{unknown[0]}: unknown field of ClaudeAgentOptions")
    return ClaudeAgentOptions(**fields)
