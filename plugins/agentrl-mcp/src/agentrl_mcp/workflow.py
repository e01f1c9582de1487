"""The workflow `mcp`: an agent that answers a question with the run's tools, as AgentCPM's predefined sampler does.

It works with every tool server of the config, not only those that speak MCP. The options that AgentCPM's AgentRL
(another project) has, too, have its names. It marks records by AgentRL's words for statuses and final answers.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
from attrs import field, validators

from agentrl_core import Answer, workflow_context
from agentrl_core.api.completions import ask
from agentrl_core.api.extract import find_answer, shown
from agentrl_core.api.inputs import agent_input, as_messages
from agentrl_core.errors import ConfigError, EpisodeError, RequestError
from agentrl_core.types import ToolOutcome

if TYPE_CHECKING:
    from agentrl_core.api.tools import EpisodeTools, ShownCall
    from agentrl_core.types import Message

SYSTEM_PROMPT = "Answer the question of the user. Call the tools as often as you need them, then give the final answer."
CUT_OFF = "Your reply was cut off because it was too long. Reply again, and shorter."
_AT_LEAST_1 = validators.ge(1)

_FORMAT_ERROR = "formaterror"
_STATUSES: Mapping[ToolOutcome, str] = {
    ToolOutcome.UNKNOWN_TOOL: _FORMAT_ERROR,
    ToolOutcome.INVALID_ARGUMENTS: _FORMAT_ERROR,
    ToolOutcome.TOOL_ERROR: "toolfailed",
    ToolOutcome.INVALID_RESULT: "toolfailed",
    ToolOutcome.NOT_SENT: "toolfailed",
    ToolOutcome.DELIVERY_UNKNOWN: "toolfailed",
}
"""AgentRL's status of an LLM call, by the outcome of a tool call that it asked for."""


@attrs.frozen(kw_only=True)
class McpAgent:
    """Asks the policy, runs the tool calls of its reply, and goes on until the reply has an answer or a limit is met.

    The task's scorer gives the reward; an episode without an answer is scored with an empty one.
    """

    leaves_scoring: ClassVar[bool] = True
    """True: the reward comes from the task's scorer, so a run checks before it starts that there is one."""
    system_prompt: str | None = None
    """System message of tasks that have no `system_prompt` of their own; an empty text for none. None: a short one that
    says how to answer."""
    query_prompt: str | None = None
    """User message of tasks that have no `query_prompt` of their own; `{query}` in it is the task's query."""
    answer_schema: str = "answer"
    """Form of the answer for tasks that have no `answer_schema`: a tag, or `boxed`. With an empty text, a reply without
    tool calls is the answer."""
    max_turns: int = field(default=25, validator=_AT_LEAST_1)
    """Largest number of LLM calls of an episode."""
    max_prompt_tokens: int | None = field(default=None, validator=validators.optional(_AT_LEAST_1))
    """Size of prompt and reply together after which no further call is made. The model's context is a limit anyway."""
    max_format_errors: int | None = field(default=None, validator=validators.optional(_AT_LEAST_1))
    """Number of replies with malformed tool calls at which the episode ends. None: no limit but `max_turns`."""
    repetition_early_stop_times: int = -1
    """Number of equal replies at which the episode ends; -1 and 0: never."""
    parallel: bool = True
    """Runs the tool calls of one reply at the same time; else one after the other."""
    without_answer: Literal["score", "reject"] = "score"
    """Treatment of an episode that ends without an answer: the scorer scores an empty answer, or the record is rejected
    for the limit as its reason, so that nothing is trained on it."""

    async def run(self, data: dict[str, Any], *, base_url: str, api_key: str, http_client: Any) -> Answer | None:
        """Run one episode, and leave the reward to the scorer.

        Raises `ConfigError` if the config lists no tools, `EnvironmentLostError` if the tools are lost.
        """
        tools = workflow_context.get().tools
        if tools is None:
            raise ConfigError("workflow mcp: the config lists no tool servers; fix: tools: {servers: [{use: mcp, …}]}")
        schema = data.get("answer_schema") or self.answer_schema
        episode = _Episode(
            agent=self,
            tools=tools,
            schema=schema,
            messages=self._opening(data, schema),
            ask=functools.partial(ask, http_client, base_url, api_key),
        )
        try:
            await episode.play()
        except _LimitError as limit:
            workflow_context.mark(limit.label)
            if self.without_answer == "reject":
                raise EpisodeError(limit.label, f"{limit}, and workflow.without_answer is reject") from None
            return Answer("")
        workflow_context.mark("completed")
        return Answer(_answer(episode.messages[-1], schema)) if schema else None

    def _opening(self, data: Mapping[str, Any], schema: str) -> list[Message]:
        """Return the messages that the episode begins with; texts of the task take precedence over the options."""
        query = data.get("query_prompt")
        if query is None and self.query_prompt is not None and isinstance(data.get("query"), str):
            query = self.query_prompt.replace("{query}", data["query"])
        messages = as_messages(agent_input(data)) if query is None else [{"role": "user", "content": query}]
        system = data.get("system_prompt")
        if system is None and messages[0].get("role") != "system":
            system = self.system_prompt
            if system is None:
                form = f" Write the final answer as {shown(schema)}." if schema else ""
                system = SYSTEM_PROMPT + form
        return [{"role": "system", "content": system}, *messages] if system else [*messages]


class _LimitError(Exception):
    """An episode ends without an answer; `label` is AgentRL's final answer for it."""

    def __init__(self, label: str, message: str) -> None:
        super().__init__(message)
        self.label = label


@attrs.define(kw_only=True, eq=False)
class _Episode:
    """State of one episode."""

    agent: McpAgent
    tools: EpisodeTools
    schema: str
    messages: list[Message]
    ask: Callable[[Sequence[Message], Mapping[str, Any]], Awaitable[dict[str, Any]]]
    replies: Counter[str] = field(factory=Counter)
    """Number of times that each reply was given."""
    offered: list[dict[str, Any]] | None = None
    num_format_errors: int = 0

    async def play(self) -> None:
        """Go on until the last message has the answer; raise `_LimitError` if a limit is met first."""
        for _ in range(self.agent.max_turns):
            if await self.turn():
                return
        raise _LimitError("turns_limit_error", f"no answer in {self.agent.max_turns} turns")

    async def turn(self) -> bool:
        """Make one LLM call and run its tool calls; return whether the reply has the answer.

        Raises `_LimitError` if a limit is met.
        """
        # Once per episode: other tools in the prompt would begin the context anew.
        if self.offered is None:
            self.offered = await self.tools.as_openai()
        try:
            body = await self.ask(self.messages, {"tools": self.offered or None})
        except RequestError as error:
            if error.code != "context_length_exceeded":
                raise
            raise _LimitError("length_limit_error", str(error)) from error
        choice = body["choices"][0]
        message = choice["message"]
        self.messages.append(message)
        problems = _problems(choice)
        if _is_final(message, self.schema, problems):
            return True
        self._count(message)
        calls = await self._call_all(message)
        self.messages += [call.message for call in calls]
        self._mark(problems, calls)
        limit = self.agent.max_prompt_tokens
        if limit is not None and body["usage"]["total_tokens"] >= limit:
            raise _LimitError("length_limit_error", f"prompt and reply have {limit} tokens or more")
        if problems or not calls:
            self.messages.append({"role": "user", "content": _reminder(problems, self.schema)})
        return False

    def _count(self, message: Message) -> None:
        """Count a reply, and mark a repetition; raise `_LimitError` for one too many."""
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        said = _text(message).strip(), message.get("reasoning_content") or "", functions
        if not any(said):
            return
        key = json.dumps(said)
        self.replies[key] += 1
        if self.replies[key] > 1:
            workflow_context.mark("repeaterror")
        if 0 < self.agent.repetition_early_stop_times <= self.replies[key]:
            raise _LimitError("repetition_error", f"{self.replies[key]} equal replies")

    async def _call_all(self, message: Message) -> list[ShownCall]:
        """Run the tool calls of a reply; the results have the order of the calls."""
        before = tuple(self.messages)

        async def run(call: Mapping[str, Any]) -> ShownCall:
            function = call["function"]
            return await self.tools.call(function["name"], function["arguments"], id=call["id"], messages=before)

        calls = message.get("tool_calls") or ()
        if not self.agent.parallel:
            return [await run(call) for call in calls]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(run(call)) for call in calls]
        except ExceptionGroup as errors:
            # A lost environment ends the episode; inside of a group nobody would recognize it.
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    def _mark(self, problems: Sequence[str], calls: Sequence[ShownCall]) -> None:
        """Mark the record for what went wrong in a turn, and count a format error."""
        statuses = {_STATUSES[call.outcome] for call in calls if call.outcome in _STATUSES}
        if problems:
            statuses.add(_FORMAT_ERROR)
        for status in sorted(statuses):
            workflow_context.mark(status)
        self.num_format_errors += _FORMAT_ERROR in statuses
        if _FORMAT_ERROR in statuses and self.num_format_errors == self.agent.max_format_errors:
            raise _LimitError("format_limit_error", f"{self.num_format_errors} replies had malformed tool calls")


def _problems(choice: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the form of a reply, one line each."""
    problems = list(choice["message"].get("tool_call_errors") or ())
    if choice.get("finish_reason") == "length" and not choice["message"].get("tool_calls"):
        problems.append(CUT_OFF)
    return problems


def _is_final(message: Message, schema: str, problems: Sequence[str]) -> bool:
    """Return whether a reply has the answer, which counts even beside tool calls."""
    if schema:
        return bool(_answer(message, schema))
    return not message.get("tool_calls") and not problems


def _answer(message: Message, schema: str) -> str:
    return find_answer(_text(message), schema).text.strip()


def _text(message: Message) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _reminder(problems: Sequence[str], schema: str) -> str:
    """Return the user message after a reply with malformed calls, or with neither a call nor an answer."""
    if not problems:
        form = f" as {shown(schema)}" if schema else ""
        return f"Your reply has neither a tool call nor an answer. Call a tool, or write the final answer{form}."
    malformed = [line for line in problems if line != CUT_OFF]
    told = [f"A tool call in your reply could not be read: {line}" for line in malformed]
    return "\n".join([*told, *([CUT_OFF] if CUT_OFF in problems else [])])
