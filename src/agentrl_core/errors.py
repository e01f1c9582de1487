"""The errors that agentrl raises on purpose, by who has to act; messages say where, what was expected, what to do.

Three families, for the config's author, the run and one episode:

* `UsageError` (exit code 2): the user's input is wrong. Normally found before anything starts; raised inside an
  episode, it fails that record.
* `RunError` (exit code 1): the run cannot go on.
* `EpisodeError`: one episode cannot be used. It is data, not a crash: it becomes an `Outcome` of its record.

The rest is for one request of an agent (`RequestError`), for an episode whose server is gone (`ServerLostError`), and
for the end that a user asked for (`Interrupted`, `Terminated`). Add an error only when a caller handles it differently
from its base.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run; the message says how much of it is saved."""


class Terminated(SystemExit):
    """SIGTERM, or a closed terminal, ended a run; the message says how much of it is saved."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(exit_code)
        self.message = message


class AgentRLError(Exception):
    """Base of all errors that agentrl raises on purpose; the command line prints them without a traceback."""

    exit_code = 1


class UsageError(AgentRLError):
    """The user's input cannot work."""

    exit_code = 2


class ConfigError(UsageError):
    """A config value is unknown, missing or of the wrong kind; the message starts with file:line where there is one."""


class DataError(UsageError):
    """A task file holds something that is not a task; the message starts with file:line."""


class PluginError(UsageError):
    """A named component cannot be found, is ambiguous, or comes from a package that failed to load."""


class RunError(AgentRLError):
    """The run cannot go on; everything stored so far stays."""


class NothingLearnedError(RunError):
    """No step of a run changed the weights."""

    exit_code = 3


class StoreError(RunError):
    """The store refused or lost a write (full disk, foreign schema, broken file)."""


class UnstorableError(StoreError):
    """One value cannot be stored (not JSON, not UTF-8, too large); the store still accepts others."""


class ClaimLostError(StoreError):
    """The member was declared lost, or the group has another member by now; its work on the group is void."""


class MemberError(StoreError):
    """A process may not take part in the run, such as a second trainer, or one with other packages."""


class LostError(MemberError):
    """The process was declared lost: its heartbeats had stopped for longer than its lease."""


class EngineError(RunError):
    """The engine cannot generate or load weights."""


class WeightsError(EngineError):
    """One published version of the weights is damaged, incomplete or gone; another version may be loaded instead."""


class UnservableError(EngineError):
    """The engine cannot serve one request as it is; it still serves others."""


class UnavailableError(UnservableError):
    """The engine cannot serve one request now, or got no usable reply for it; a later try may succeed.

    `status` is the HTTP status for it (429, 502, 503 or 504), `retry_after_s` the time that a client should wait.
    """

    def __init__(self, message: str, *, status: int = 503, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class TrainingError(RunError):
    """An optimizer step would be wrong (not finite, or engine and learner disagree)."""


class EpisodeError(AgentRLError):
    """One episode cannot be used; `reason` is a short stable word for counting.

    Known reasons: `no_llm_call`, `not_finite`, `unknown_interaction`, `reward_type`, `no_score`, `no_reward`,
    `reward_timeout`, `by_workflow`, `tensor_rows`, `too_long`, `no_session`, `data_type`. A scorer's `details` are
    stored with the record, like those of a `Score`.
    """

    def __init__(self, reason: str, message: str, *, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.details: Mapping[str, Any] = details or {}

    def __reduce__(self) -> tuple[type[EpisodeError], tuple[str, str], dict[str, Any]]:
        """Pickle the constructor's arguments: exceptions with their own arguments otherwise cannot be unpickled."""
        return type(self), (self.reason, str(self)), {"details": self.details}


class EnvironmentLostError(EpisodeError):
    """The tool server or sandbox of an episode is gone or cannot be trusted any more; nobody gets a 0 for it.

    The record ends `rejected` for the reason `environment_lost`, and is no part of its group's baseline. `server` is
    the name of the tool server in the config.
    """

    def __init__(self, message: str, *, server: str = "") -> None:
        super().__init__("environment_lost", message)
        self.server = server

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message and the server."""
        return type(self), (str(self),), {"server": self.server, "details": self.details}


class ToolServerError(RunError):
    """A tool server cannot be used at all: it did not start, or too many of its calls failed; the message names it."""


class ToolNotSentError(AgentRLError):
    """A tool call certainly did not reach its tool; it may be sent again."""


class DeliveryUnknownError(AgentRLError):
    """A tool call was sent, but there is no answer: the tool may have run or not."""


class InvalidResultError(AgentRLError):
    """A tool call was answered, but the answer is no valid result, or too large to be read."""


class ServerLostError(AgentRLError):
    """The serving process of an episode is gone or out of reach; the episode runs again, and its agent is not to blame.

    The record ends `cancelled`, for the reason `server_lost`.
    """

    reason = "server_lost"


class RequestError(AgentRLError):
    """LLM request that the gateway refuses; becomes an HTTP error in the SDK's own shape.

    `status` is the HTTP status, `code` the machine-readable word of the OpenAI error body (`context_length_exceeded`,
    `invalid_api_key`, …), `param` the request field at fault, `retry_after_s` the wait that the client is told before
    it tries again.
    """

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status
        self.code = code
        self.param = param


class ContextLengthError(RequestError):
    """A prompt leaves no room for a reply; each API has its own words for it, which clients look for.

    `at_least`: the prompt was not counted to its end, so it has even more tokens.
    """

    def __init__(self, *, prompt_tokens: int, context_length: int, at_least: bool = False) -> None:
        super().__init__(
            400,
            "context_length_exceeded",
            f"This model's maximum context length is {context_length} tokens. However, your messages "
            f"resulted in {'at least ' if at_least else ''}{prompt_tokens} tokens. "
            "Please reduce the length of the messages.",
            param="messages",
        )
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length
