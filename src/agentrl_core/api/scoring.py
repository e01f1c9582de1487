"""What a user implements to judge an answer: the scorer protocol and its values. No torch, no SDK."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import attrs

if TYPE_CHECKING:
    from agentrl_core.types import Message, Record, Task


AnswerFrom: TypeAlias = Literal["schema", "reply", "nowhere", "workflow"]
"""Values of `ScoreRequest.answer_from`."""


@attrs.frozen(kw_only=True)
class ScoreRequest:
    """One finished episode, as a scorer sees it."""

    answer: str
    """The text between the last `<answer>` tags of the last reply, or all of it where it has none; thoughts are left
    out. Where the task names an `answer_schema`, only what that finds: empty where it finds nothing. Of an `Answer`
    that the workflow returned, all of it where nothing matched."""
    reference: str | None
    """The task's `answer`."""
    task: Task
    messages: Sequence[Message]
    """The last interaction's conversation, its reply included."""
    record: Record
    answer_from: AnswerFrom = "schema"
    """Origin of the answer: between tags or in a box (`schema`), the whole `reply`, `nowhere`, as the reply lacks
    the schema that the task names, or the `workflow`, which returned it."""
    step: int | None = None
    """Optimizer steps done when the record's group was submitted, the same for its whole group; None in evaluations,
    where what follows the steps stands at its end, so that one measure holds for all of them."""


training_step: ContextVar[int | None] = ContextVar("training_step", default=None)
"""`ScoreRequest.step` of what the current task runs; set by the scheduler."""


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
    exception is no score either. What a scorer may declare, as attributes of the function, class or object:

    `needs_reference = True`: a task without an answer is refused before anything starts.
    `check_task(task)`: called before anything starts with every task that names the scorer; raises ValueError where
    it cannot score it.
    `cpu_bound = True`: a sync scorer runs in a process of its own, which is killed after `timeout_s` seconds
    (default 30): for what would hold up the agents, or may hang. It is importable by name, not a lambda.

    A scorer may have `async def check(self, *, gateway_url=None)`, which a run awaits before it starts: it raises
    `ConfigError` where the scorer could not score, and returns a line for each thing that may become a problem.
    `gateway_url` is where agents will reach the policy, if that is known by then.
    """

    def __call__(self, request: ScoreRequest, /) -> Verdict | Awaitable[Verdict]:
        """Judge one finished episode."""
        ...
