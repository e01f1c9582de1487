"""Tool servers, middleware and the tools of an episode: the protocols that packages implement and agents use.

A tool server is any source of tools: an MCP server, the tools of an environment, plain Python functions. The config
lists servers and middleware in its section `tools`. Core checks arguments against the tools' schemas, applies
middleware, deadlines, budgets and retries, and records every call; a server only lists tools and calls them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import attrs

if TYPE_CHECKING:
    from agentrl_core.types import Message, ToolOutcome

Isolation: TypeAlias = Literal["shared", "session", "process"]
"""Extent of what one episode's calls can change on a server: `shared`, everything that the server keeps is seen by all
episodes; `session`, the server keeps the state of episodes apart itself, by the id that each call carries; `process`,
each episode has a server process or container of its own."""


SERVER_OUTPUT = "agentrl_core.tools.server_output"
"""Logger of what the processes of servers print, at level DEBUG; `agentrl tools call` shows it if a call fails."""


@attrs.frozen(kw_only=True)
class ToolSpec:
    """A tool as a server describes it."""

    name: str
    """Name on its server; the model sees it with the server's `prefix` before it."""
    description: str = ""
    parameters: Mapping[str, Any] = attrs.field(factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments, an object."""
    read_only: bool = False
    """Calls change nothing (MCP's `readOnlyHint`), so a call may be repeated."""
    idempotent: bool = False
    """Repeating a call has no further effect (MCP's `idempotentHint`)."""

    @property
    def repeatable(self) -> bool:
        """Whether a call whose delivery is unknown may be sent again."""
        return self.read_only or self.idempotent


@attrs.frozen(kw_only=True)
class ToolResult:
    """Result of a tool call."""

    content: tuple[Mapping[str, Any], ...]
    """Content parts in OpenAI's shape: `{"type": "text", "text": …}`, `{"type": "image_url", "image_url": {"url": …}}`.
    An embedded resource is text, or an image, with its URI in the key `uri`."""
    is_error: bool = False
    """The tool itself reports a failure; the model is shown the content, and may try otherwise."""
    structured: Any = None
    """JSON value of a tool with an output schema; None without."""

    @property
    def text(self) -> str:
        """The text parts, joined by newlines."""
        return "\n".join(part["text"] for part in self.content if part.get("type") == "text")

    @classmethod
    def of_text(cls, text: str, *, is_error: bool = False) -> ToolResult:
        """Return a result with a single text."""
        return cls(content=({"type": "text", "text": text},), is_error=is_error)


@attrs.frozen(kw_only=True)
class ToolEpisode:
    """An episode as tool servers know it."""

    record_id: str
    """Unique id; what a server keeps per episode is kept under it."""
    task_id: str
    data: Mapping[str, Any]
    """The task's row, as the agent gets it."""
    is_eval: bool = False


class ToolSession(Protocol):
    """Tools of one server during one episode; its methods run on the agents' event loop, several calls at once.

    A session whose list of tools may change has `changes`, the number of changes so far (MCP's `list_changed`): when it
    has grown, the list is read again, and the record is marked `tools_changed`.
    """

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the server's tools, in the server's order; called once per episode, unless `changes` grows."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Call a tool with arguments that fit its schema.

        `timeout_s` is the time that is left; after it the call is cancelled. Raises `ToolNotSentError` if the call
        certainly did not reach the tool, so that it may be sent again; `DeliveryUnknownError` if it may or may not have
        run (no answer in time, a connection lost after sending); `InvalidResultError` if the answer is no valid result;
        `EnvironmentLostError` if the episode's state on the server is gone, so that no later call can be trusted.
        """
        ...

    async def close(self) -> None:
        """Release what the episode had on the server; called once, also after a failed or cancelled episode."""
        ...


class ToolServer(Protocol):
    """Source of tools for all episodes of a process; built from the options of an entry of `tools.servers`.

    The constructor only keeps its options. One object serves all episodes of a process, concurrently. An attribute
    `isolation` says which `Isolation` its sessions have. It may also have `list_tools()`, awaited after `start`: the
    tools that every episode has are then checked before the first episode. It may have `check_start(connect=…)`, called
    before anything is loaded for a run: it raises `ConfigError`, with option and remedy, for what will keep it from
    starting on this machine, and with `connect` also if it cannot be reached. And it may have
    `async def examine(self, tasks)`: `agentrl doctor` awaits it after `start` with the run's tasks, and shows each text
    that it returns as something wrong, such as a task that nobody can solve.

    If options name environment variables with secrets, a static method `secret_variables` of the class returns the
    variables' names for a mapping of options. Processes for agents, scorers and rewards do not get those variables.
    """

    isolation: Isolation

    async def start(self) -> None:
        """Connect, or start processes, before the first episode; raise `ToolServerError` if there is no server."""
        ...

    async def open(self, episode: ToolEpisode) -> ToolSession:
        """Open the tools of an episode.

        Raises `ToolNotSentError` if a later try may succeed, else as `ToolSession.call` does.
        """
        ...

    async def close(self) -> None:
        """End everything that `start` and `open` began, also what crashes of episodes have left."""
        ...


@attrs.frozen(kw_only=True)
class ToolRequest:
    """A tool call on its way through the middleware."""

    episode: ToolEpisode
    server: str
    """Name of the server in the config."""
    tool: ToolSpec | None
    """The tool that `name` means, None as long as it names none; middleware may still rename the call."""
    name: str
    """Name as the model wrote it, or as middleware has changed it."""
    arguments: Mapping[str, Any]
    state: dict[str, Any]
    """Values that middleware keeps for the whole episode, under its own name."""
    messages: Sequence[Message] = ()
    """Conversation before the call, where the workflow gives it: a summary may need the question."""


CallNext: TypeAlias = Callable[[ToolRequest], Awaitable[ToolResult]]
"""The next middleware, or the tool itself."""


class ToolMiddleware(Protocol):
    """Wrapper of every tool call, listed in `tools.middleware`: the first of the list is the outermost.

    It may change the request, answer instead of the tool, or change the result. The record keeps the request as the
    model wrote it, the raw result of the tool, and the result that the model was shown.

        class Shorten:
            def __init__(self, *, max_chars: int = 2000):
                self.max_chars = max_chars

            async def call(self, request, call_next):
                result = await call_next(request)
                return ToolResult.of_text(result.text[: self.max_chars], is_error=result.is_error)

    It may also have `tools(specs)`, which returns the tools that the model is offered, given those of the servers
    (or of the middleware inside of it), for example without a blocked one.
    """

    async def call(self, request: ToolRequest, call_next: CallNext) -> ToolResult:
        """Return the result of a call, usually that of `call_next(request)`."""
        ...


@attrs.frozen(kw_only=True)
class ShownCall:
    """A tool call that has ended, as the agent gets it."""

    id: str
    """The model's id of the call (`tool_call_id`); made up where it has none."""
    name: str
    result: ToolResult
    outcome: ToolOutcome

    @property
    def message(self) -> Message:
        """The tool message in OpenAI's shape; its content is text if there is no image."""
        parts = self.result.content
        plain = all(part.get("type") == "text" for part in parts)
        return {
            "role": "tool",
            "tool_call_id": self.id,
            "content": self.result.text if plain else [dict(part) for part in parts],
        }


class EpisodeTools(Protocol):
    """All tools of the current episode, `workflow_context.get().tools`.

    Servers are opened when they are first needed. Every call is checked, limited and recorded. What the model can react
    to comes back as a result with `is_error`; a lost environment raises `EnvironmentLostError`, which rejects the
    record if it leaves `run`, and even if the agent's framework swallows it.
    """

    async def specs(self) -> Sequence[ToolSpec]:
        """Return the tools that the model may use, under the names that it uses."""
        ...

    async def as_openai(self) -> list[dict[str, Any]]:
        """Return the tools for `chat.completions.create(tools=…)`."""
        ...

    async def as_openai_responses(self) -> list[dict[str, Any]]:
        """Return the tools for `responses.create(tools=…)`."""
        ...

    async def as_anthropic(self) -> list[dict[str, Any]]:
        """Return the tools for `messages.create(tools=…)`."""
        ...

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str,
        *,
        id: str = "",  # noqa: A002 - the word of the LLM APIs
        messages: Sequence[Message] = (),
    ) -> ShownCall:
        """Call a tool; `arguments` may be the JSON text that the model wrote."""
        ...

    async def call_all(self, message: Any, *, messages: Sequence[Message] = ()) -> list[Message]:
        """Run all tool calls of an assistant message at the same time, and return the tool messages in its order.

        `message` is that of the OpenAI SDK, or a dict of this shape.
        """
        ...
