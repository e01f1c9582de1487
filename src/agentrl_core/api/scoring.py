"""`Scorer`: the protocol of scorers, with its request, its results, and how a scorer asks other scorers."""

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
    """One finished episode, as a scorer receives it."""

    answer: str
    """Text between the last `<answer>` tags of the last reply, or the whole reply if it has none; thoughts are left
    out. If the task names an `answer_schema`, only what that schema finds: empty if it finds nothing. Of an
    `Answer` that the workflow returned, the whole text if nothing matched."""
    reference: str | None
    """The task's `answer`."""
    task: Task
    messages: Sequence[Message]
    """Conversation of the last interaction, including its reply."""
    record: Record
    answer_from: AnswerFrom = "schema"
    """Origin of the answer: `schema`, between tags or in a box; `reply`, the whole reply; `nowhere`, because the
    reply lacks the schema that the task names; `workflow`, which returned it."""
    step: int | None = None
    """Optimizer steps done when the record's group was submitted, the same for the whole group. None in evaluations:
    scorers that change with the step then use their final form, so that all evaluations are measured alike."""


training_step: ContextVar[int | None] = ContextVar("training_step", default=None)
"""`ScoreRequest.step` for code of the current context; set by the scheduler."""


@attrs.frozen
class Answer:
    """The agent's answer, which a workflow returns in place of a reward for the task's scorer to score.

    For agents that answer otherwise than by the text of their last reply, for example by a tool call.
    """

    text: str


@attrs.frozen
class Score:
    """A scorer's value with its components and details."""

    value: float
    """Finite, in any range; booleans and numpy scalars count as numbers."""
    parts: Mapping[str, float] = attrs.field(factory=dict)
    """Named components of the value, for the trace."""
    details: Mapping[str, Any] = attrs.field(factory=dict)
    """JSON data for the trace."""


ScorerResult: TypeAlias = "float | Score | Mapping[str, float] | None"
"""Return type of a scorer: a number, a `Score`, `{interaction id: number}`, or None for no score."""


class Scorer(Protocol):
    """A callable of a `ScoreRequest`, sync or async: a function, an object, or a class that is built once per run.

    A class gets the config's options, and `config_dir`, the config's folder, if its constructor takes it. If it takes
    `scorer_of`, it gets a function that builds the scorers that it asks itself: `scorer_of(part, option)`, of a part as
    the config has it (a name, or `{use: NAME, …options}`) and its option for messages (`parts.0`). What
    it returns is called as `await part(request)`, and gives a `Score`, `{interaction id: number}`, or None. Calls run
    concurrently: a sync scorer on a new thread each, an async one on the agents' event loop, which it must not block;
    `rollout.timeout_s` bounds each call. A function with two positional parameters without a default, of any names,
    gets the answer and the reference as texts.

    Returns a number, a `Score`, `{interaction id: number}`, or None: *no score*, which is never 0. An exception is no
    score either; raise `EpisodeError("no_score", why)` for what you foresee, and `EnvironmentLostError` if the
    environment of the episode is gone. A scorer may declare these attributes on the function, class or object:

    `needs_reference = True`: a task without an answer is refused before the run starts. `check_task(task)`: called
    before the run starts with every task that names the scorer; raises ValueError if it cannot score the task.
    `cpu_bound = True`: a sync scorer runs in one of a pool of worker processes, which is killed after `timeout_s`
    seconds (another attribute, default 30); scorer and request are pickled for every call, so what it caches is lost.
    Set it if the scorer would block the agents or may hang. Such a scorer must be importable by name, so it cannot be a
    lambda.

    A scorer may have `async def check(self, *, gateway_url=None)`, which a run awaits before it starts, on an event
    loop of its own: clients that are opened there cannot be used later. There is no `close`. It raises `ConfigError` if
    the scorer could not score, and returns one line for each thing that may become a problem. `gateway_url` is the
    address at which agents will reach the policy, if it is known by then.
    """

    def __call__(self, request: ScoreRequest, /) -> ScorerResult | Awaitable[ScorerResult]:
        """Score one finished episode."""
        ...
