"""The one error tree: every failure that a user may meet names where, what was expected and what to do.

Three families, told apart by who has to act:

* `UsageError` (exit code 2): what the user wrote is wrong. Found before anything starts.
* `RunError` (exit code 1): the run cannot go on.
* `EpisodeError`: one episode cannot be used. Data, not a crash: it becomes an `Outcome` of its record.

Add an error only when a caller handles it differently from its base.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run; the message says what of it is saved."""


class Terminated(SystemExit):
    """SIGTERM, or a terminal that was closed, ended a run; the message says what of it is saved."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(exit_code)
        self.message = message


class AgentRLError(Exception):
    """Base of all errors that agentrl raises on purpose; printed without a traceback by the command line."""

    exit_code = 1


class UsageError(AgentRLError):
    """What the user wrote cannot work."""

    exit_code = 2


class ConfigError(UsageError):
    """A config value is unknown, missing or of the wrong kind; the message starts with file:line where there is one."""


class DataError(UsageError):
    """A task file holds something that is not a task; the message starts with file:line."""


class PluginError(UsageError):
    """A named component cannot be found, is ambiguous, or comes from a package that failed to load."""


class RunError(AgentRLError):
    """The run cannot go on; everything stored so far stays."""


class StoreError(RunError):
    """The store refused or lost a write (full disk, foreign schema, broken file)."""


class UnstorableError(StoreError):
    """One value has no form in the store (not JSON, not UTF-8, too large); the store goes on with others."""


class EngineError(RunError):
    """The engine cannot generate or load weights."""


class UnservableError(EngineError):
    """The engine cannot run one request as it was put; it goes on with others."""


class UnavailableError(UnservableError):
    """The engine cannot run one request now, or got nothing of use for it; the same may work later.

    `status` is what HTTP says of it (429, 502, 503 or 504), `retry_after_s` how long a client should wait.
    """

    def __init__(self, message: str, *, status: int = 503, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class TrainingError(RunError):
    """An optimizer step would be wrong (not finite, engine and learner disagree)."""


class EpisodeError(AgentRLError):
    """One episode cannot be used; `reason` is a short stable word for counting.

    Known reasons: `no_llm_call`, `not_finite`, `unknown_interaction`, `reward_type`, `no_score`, `reward_timeout`,
    `by_workflow`, `tensor_rows`, `too_long`. A scorer's `details` are stored with the record, as those of a `Score`
    are.
    """

    def __init__(self, reason: str, message: str, *, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.details: Mapping[str, Any] = details or {}

    def __reduce__(self) -> tuple[type[EpisodeError], tuple[str, str], dict[str, Any]]:
        """Let it come back from another process as it was."""
        return type(self), (self.reason, str(self)), {"details": self.details}


class RequestError(AgentRLError):
    """An LLM request that the gateway refuses; becomes an HTTP error in the SDK's own shape.

    `status` is the HTTP status, `code` the machine-readable word of the OpenAI error body
    (`context_length_exceeded`, `invalid_api_key`, …), `param` the request field at fault, `retry_after_s` what the
    client is told to wait before it tries again.
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
    """A prompt that leaves no room for a reply; each API has its own words for it, which clients look for.

    `at_least`: it has even more tokens, which nobody counted.
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
