"""Classify failures of a model server: which fail one call, which are retried, and which end the run."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from agentrl_core.errors import EngineError, UnavailableError, UnservableError
from agentrl_core.http.backoff import RETRYABLE_STATUSES, Backoff, retry_after_s

if TYPE_CHECKING:
    from agentrl_core.http.server_client import ExchangeError

log = logging.getLogger(__name__)

RETRIES = 4
"""Most retries of a call to a server that is up. A server that is away is waited for, however many calls that takes."""
BACKOFF = Backoff(longest_s=10.0)

_REST_S = 30.0
"""Time after which a server of a pool that was away gets a call again."""

_UNAUTHORIZED = frozenset({401, 403})
_ABOUT_ONE_CALL = frozenset({400, 413, 422})
"""Statuses with which a server refuses this call only."""
_TOO_MANY = 429
_OVERLOADED = frozenset({503, 529})
_TIMED_OUT = frozenset({408, 504, 522, 524})


class AwayError(EngineError):
    """A server cannot be reached, or says that it is not ready: it is tried again, until it answers."""


def lost(where: str, error: ExchangeError) -> LostReplyError:
    """Return the error for an exchange without a whole reply."""
    silent = error.fault == "silent"
    unreached = error.fault == "connect"
    return LostReplyError(
        f"{where}: {error}",
        status=504 if silent else 502,
        waited=silent,
        unreached=unreached,
        doubtful=unreached or error.fault == "broken",
    )


def refusal(where: str, status: int, text: str, *, headers: Mapping[str, str], api_key_env: str | None) -> EngineError:
    """Return the error for a status other than 200; `text` is the server's message.

    Only a rejected key ends the run. Any other status may come from a router in front of the server, and pass.
    """
    said = f"{where}: status {status}: {text}"
    if status in _UNAUTHORIZED:
        key = f"the key in {api_key_env}" if api_key_env else "no key: set api_key_env"
        return EngineError(f"{said}. The request carried {key}.")
    if status in _ABOUT_ONE_CALL:
        return UnservableError(said)
    wait_s = retry_after_s(headers)
    if status == _TOO_MANY:
        said += " The server is overloaded; lower engine.max_connections."
        return LostReplyError(said, status=_TOO_MANY, retry_after_s=wait_s, answered=True)
    if status in _OVERLOADED:
        return LostReplyError(said, status=503, retry_after_s=wait_s)
    told = 504 if status in _TIMED_OUT else 502
    return LostReplyError(said, status=told) if status in RETRYABLE_STATUSES else UnavailableError(said, status=told)


class LostReplyError(UnavailableError):
    """No reply, or an incomplete one: the call is repeated, and counts as failed only if the repetitions fail too.

    Sampling again is safe, because nobody has seen the tokens of a lost reply.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 502,
        retry_after_s: float | None = None,
        answered: bool = False,
        waited: bool = False,
        unreached: bool = False,
        outdated: bool = False,
        doubtful: bool = False,
    ) -> None:
        super().__init__(message, status=status, retry_after_s=retry_after_s)
        self.unreached = unreached
        """Whether no server was reached; then the failure says nothing about the call."""
        self.answered = answered
        """Whether the model server itself replied; an overloaded server is not away."""
        self.waited = waited
        """Whether so much time has passed that an immediate repetition would not help."""
        self.outdated = outdated
        """Whether the server replied with weights older than those that it had loaded."""
        self.doubtful = doubtful or outdated
        """Whether the server may have been restarted: it gets no calls until it has been asked for its weights."""


class UnprovenError(EngineError):
    """A server has other weights than it should have."""

    is_final: bool = True
    """Whether the engine ends: the server has just loaded weights, and they did not arrive."""


class Absence:
    """Time since which a server has been away: since the first failure after its last sign of life.

    Shared by all calls to a server, without a lock: a disagreement of two threads by moments makes no difference.
    """

    def __init__(self, url: str, *, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._url, self._patience_s, self._clock = url, patience_s, clock
        self._since: float | None = None
        self._last = 0.0

    @property
    def rested(self) -> bool:
        """Whether the server may get new calls although others are up: it is not away, or has not been tried lately."""
        return self._since is None or self._clock() - self._last > _REST_S

    @property
    def since(self) -> float:
        """Clock reading of the first failure; infinity if the server is up."""
        return math.inf if self._since is None else self._since

    def begin(self, why: str, *, others_are_up: bool = False) -> None:
        """Record a failure; `EngineError` once no server is up and this one has been away for over `patience_s`."""
        now = self._last = self._clock()
        if self._since is None:
            self._since = now
            waits = "" if others_are_up else f"; the run ends if no server answers for {self._patience_s:g} s"
            log.warning("a call to a model server failed and is repeated%s: %s", waits, why)
        elif now - self._since > self._patience_s and not others_are_up:
            raise EngineError(
                f"{self._url}: the model server has been away for {now - self._since:.0f} s, longer than "
                f"engine.patience_s = {self._patience_s:g} allows; start it, then resume the run. Last failure: {why}"
            )

    def end(self) -> None:
        """Record that the server answers."""
        if self._since is not None:
            log.info("the model server answers again, after %.0f s", self._clock() - self._since)
            self._since = None
