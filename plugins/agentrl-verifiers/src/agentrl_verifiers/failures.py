"""Errors of environments, as errors that a run knows; a failed environment is never a reward of 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifiers.v1 import Episode

try:
    from agentrl_core.errors import EpisodeError
except ImportError:  # the interpreter of verifiers has no agentrl: a worker knows the class by its name

    class EpisodeError(Exception):  # type: ignore[no-redef]
        """Says that an episode cannot be used, for a reason that is counted."""

        def __init__(self, reason: str, message: str) -> None:
            super().__init__(message)
            self.reason = reason

    EpisodeError.__module__ = "agentrl_core.errors"

LOST = "environment_lost"
"""Reason of records whose environment failed; they are no part of their group's baseline."""
_LONGEST = 400


def raise_failure(episode: Episode) -> None:
    """Raise an error if an episode is not ok: `EpisodeError` for the environment's, `RuntimeError` for an LLM call's.

    verifiers records the boundary that failed: provider, harness, toolset, sandbox, task, environment, interception.
    All but the first belong to the environment.
    """
    if episode.ok:
        return
    kind, message = next(_errors(episode), ("RolloutError", "the episode is not ok, but has no error"))
    line = " ".join(message.split())[:_LONGEST]
    text = f"verifiers environment '{episode.env.id}', task {episode.task.data.idx}: {kind}: {line}"
    if kind == "ProviderError":
        raise RuntimeError(text)
    raise EpisodeError(LOST, text)


def _errors(episode: Episode) -> Iterator[tuple[str, str]]:
    found: list[Any] = [*reversed(episode.errors)]
    for trace in episode.traces:
        found += [] if trace.ok else reversed(trace.errors)
    yield from ((error.type, error.message) for error in found)
