"""The scorer `reasoning_gym`: the score that a task's own data set gives an answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
from attrs import field, validators

from agentrl_core import Score
from agentrl_core.api.processes import CallTimeoutError, run_in_process
from agentrl_core.errors import EpisodeError
from agentrl_reasoning_gym.source import KEY, Origin, digest, installed

if TYPE_CHECKING:
    from agentrl_core import ScoreRequest, Task


@attrs.frozen(kw_only=True)
class ReasoningGymScorer:
    """Score an answer by `score_answer` of the data set that the task comes from, in [0, 1].

    An answer that makes `score_answer` raise is wrong, unless the data set cannot score its own reference answer
    either. It runs in a process of its own, which is killed at a limit; the episode then has no score.
    """

    timeout_s: float = field(default=30.0, validator=validators.gt(0))
    """Time limit of one score, in seconds. Some data sets search or simplify."""
    memory_mb: int = field(default=2048, validator=validators.gt(0))
    """Memory limit of one score."""

    def check_task(self, task: Task) -> None:
        """Raise `ValueError` if the task does not come from the data set `reasoning_gym`."""
        if not isinstance(task.data.get(KEY), dict):
            raise ValueError(f"{KEY}: missing; this scorer is for tasks of the data set `reasoning_gym`")  # noqa: TRY004

    async def __call__(self, request: ScoreRequest) -> Score:
        """Return the score. Raises `EpisodeError` for no score."""
        row = request.task.data.get(KEY)
        if not isinstance(row, dict):
            raise EpisodeError("no_score", f"task '{request.task.id}' has no '{KEY}': it is not of this data set")
        limits: dict[str, Any] = {"timeout_s": self.timeout_s, "memory_mb": self.memory_mb}
        try:
            value, problem = await run_in_process(score, row, request.answer, **limits)
        except (CallTimeoutError, MemoryError, LookupError, ValueError) as error:
            text = f"scorer 'reasoning_gym': task '{request.task.id}': {error or 'no memory'}"
            raise EpisodeError("no_score", text) from error
        return Score(value, details={"unreadable": problem} if problem else {})


def score(row: dict[str, Any], answer: str) -> tuple[float, str]:
    """Return the score of an answer to the task with this `Origin`, and why it could not be read, if so.

    Raises `ValueError` if the task cannot be generated again, or if its data set cannot score it.
    """
    known = {attribute.name for attribute in attrs.fields(Origin)}
    origin = Origin(**{name: value for name, value in row.items() if name in known})
    generator, entry = origin.generator(), origin.entry()
    if digest(entry["question"]) != row.get("question"):
        raise ValueError(
            f"reasoning-gym {installed()} generates another question than {row.get('version')} did; install that one"
        )
    try:
        return _finite(generator.score_answer(answer, entry)), ""
    except Exception as error:  # noqa: BLE001  (whatever it raises, about a text that a policy wrote)
        try:
            _finite(generator.score_answer(entry["answer"], entry))
        except Exception:  # noqa: BLE001
            raise ValueError(
                f"the data set '{origin.dataset}' cannot score its own answer: {type(error).__name__}: {error}"
            ) from error
        return 0.0, type(error).__name__


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError(f"expected a finite score, found {value}")
    return float(value)
