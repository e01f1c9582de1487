"""What a user implements to judge an answer: the scorer protocol and its values. No torch, no SDK."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import attrs

if TYPE_CHECKING:
    from agentrl_core.types import Message, Record, Task


@attrs.frozen(kw_only=True)
class ScoreRequest:
    """One finished episode, as a scorer sees it."""

    answer: str
    """Extracted from the last reply by the task's `answer_schema`; empty where nothing matched. Of an `Answer` that
    the workflow returned, all of it where nothing matched."""
    reference: str | None
    """The task's `answer`."""
    task: Task
    messages: Sequence[Message]
    """The last interaction's conversation, its reply included."""
    record: Record


@attrs.frozen
class Answer:
    """What a workflow returns in place of a reward: the agent's answer, for the task's scorer to judge.

    For agents that answer otherwise than with the text of their last reply, by a tool call for one.
    """

    text: str


@attrs.frozen
class Score:
    """A scorer's verdict."""

    value: float
    parts: Mapping[str, float] = attrs.field(factory=dict)
    """Named components, for the trace."""
    details: Mapping[str, Any] = attrs.field(factory=dict)


Verdict: TypeAlias = "float | Score | Mapping[str, float] | None"
"""What a scorer may return: a number, a `Score`, `{interaction id: number}`, or None for no score."""


class Scorer(Protocol):
    """`score(request)`, sync or async. `(model_answer, ground_truth)` functions are accepted too.

    Returns a number, a `Score`, `{interaction id: number}`, or None: *no score*, which is never 0. An
    exception is no score either. A scorer that needs the reference reads `request.reference` and may declare
    `needs_reference = True`, so that a task without an answer is refused before anything starts.

    A scorer may have `async def check(self, *, gateway_url=None)`, which a run awaits before it starts: it raises
    `ConfigError` where the scorer could not score, and returns a line for each thing that may become a problem.
    `gateway_url` is where agents will reach the policy, if that is known by then.
    """

    def __call__(self, request: ScoreRequest, /) -> Verdict | Awaitable[Verdict]:
        """Judge one finished episode."""
        ...
