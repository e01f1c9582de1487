"""Adapter `claude-agent`: runs an agent of the Claude Agent SDK as a workflow.

For every query the SDK starts its command-line program, which makes the LLM calls. The program takes the address and
the key of its model from environment variables. So each episode starts its own program with the address and key of
its session. The environment of the run itself does not change.
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
"""Variables that keep the program from repeating calls and from sending data to third parties."""

ENDINGS = ("error_max_turns", "error_max_budget_usd", "error_max_structured_output_retries")
"""Subtypes of results by which the program ends a run because of the policy's output: scored as they stand."""

_STOPPING_S = 2.0
"""Time limit for telling the program to stop."""


class ClaudeAgentWorkflow:
    """Runs a Claude agent for each record; all its LLM calls answer with the policy, in the session of the record.

    The prompt is the row's `query`, or the user's text in its `messages`. The task's scorer gives the reward; it scores
    the structured output if there is one, else the last reply. Each episode has its own folder for the program's files.
    It is also the working directory if the options set none, and is deleted at the end.

    `options`: fields of `ClaudeAgentOptions`, if the config does not name an agent.
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
            raise ConfigError(
                "workflow.options: `workflow` already names an object with the agent's options; fix: set only one of "
                "them"
            )
        self._agent = _options(options or {}) if agent is None else agent
        self._input_key = input_key

    async def run(self, data: dict[str, Any]) -> Answer | None:
        """Run the agent on one task; return its structured output, or None for the text of its last reply."""
        from claude_agent_sdk import ClaudeSDKClient

        prompt = as_text(agent_input(data, input_key=self._input_key), task_id=data.get("id"))
        with tempfile.TemporaryDirectory(prefix="agentrl-claude-", ignore_cleanup_errors=True) as folder:
            async with ClaudeSDKClient(self._for_episode(folder)) as client:
                result = await _last_message(client, prompt)
        return _answer(result)

    def _for_episode(self, folder: str) -> ClaudeAgentOptions:
        here = workflow_context.get()
        # Later entries take precedence: the agent's own `env` over the defaults, the session over the agent's `env`.
        env = {
            "CLAUDE_CONFIG_DIR": folder,
            **QUIET,
            **self._agent.env,
            "ANTHROPIC_BASE_URL": here.base_url,
            "ANTHROPIC_AUTH_TOKEN": here.api_key,
            "ANTHROPIC_API_KEY": "",  # an inherited key would take precedence over ANTHROPIC_AUTH_TOKEN
        }
        return dataclasses.replace(self._agent, env=env, cwd=self._agent.cwd or folder)


async def _last_message(client: ClaudeSDKClient, prompt: str) -> ResultMessage:
    """Return the program's result message. If cancelled, first tell the program to stop its call."""
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
        raise PluginError(
            f"the Claude Agent SDK is not installed ({error}); fix: pip install claude-agent-sdk"
        ) from error
    known = {field.name for field in dataclasses.fields(ClaudeAgentOptions)}
    if unknown := sorted(fields.keys() - known):
        raise ConfigError(f"workflow.options.{unknown[0]}: unknown field of ClaudeAgentOptions")
    return ClaudeAgentOptions(**fields)
