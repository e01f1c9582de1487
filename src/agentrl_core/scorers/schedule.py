"""The scorer `scheduled`: selects one of several scorers by a field of the task or by the training step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from agentrl_core.scorers.compose import ScorerOf, combined, require, score_of

if TYPE_CHECKING:
    from agentrl_core.api.scoring import Score, ScoreRequest
    from agentrl_core.scorers.call import NormalizedScorer
    from agentrl_core.types import Task


class Scheduled:
    """Scorer that calls one of several scorers, selected `by: field` of the task or `by: step` of the training.

        by_level: {use: scheduled, by: field, field: level, cases: {easy: exact_match, hard: f1}, otherwise: f1}

    The field's value, as text, selects the case. `otherwise` is for all other values and for tasks without the field.
    Without `otherwise` a run with such a task does not start.

        curriculum:
          use: scheduled
          by: step
          stages: [{from: 0, use: format}, {from: 50, use: exact_match}]
          blend: linear

    A stage `{from: STEP, use: NAME, …options}` holds from that step on; the first begins at 0. With `blend: linear`
    the weight moves linearly from each stage to the next between their steps. All records of a group have the step at
    which the group was submitted. Evaluations use the last stage.
    """

    def __init__(
        self,
        *,
        by: Literal["field", "step"],
        field: str = "",
        cases: Mapping[str, Any] | None = None,
        otherwise: Any = None,
        stages: Sequence[Any] = (),
        blend: Literal["none", "linear"] = "none",
        scorer_of: ScorerOf,
    ) -> None:
        foreign = {"stages": stages, "blend": blend != "none"}
        needed: dict[str, Any] = {"field": field, "cases": cases}
        if by == "step":
            foreign, needed = {"field": field, "cases": cases, "otherwise": otherwise is not None}, {"stages": stages}
        for option, given in (*foreign.items(), *needed.items()):
            if bool(given) is not (option in needed):
                raise ValueError(f"'{option}': {'missing' if option in needed else 'not allowed'} with by: {by}")
        self._field = field
        self._cases = {name: scorer_of(part, f"cases.{name}") for name, part in (cases or {}).items()}
        self._otherwise = None if otherwise is None else scorer_of(otherwise, "otherwise")
        self._linear = blend == "linear"
        starts = [_start(stage) for stage in stages]
        if starts and (starts[0] != 0 or any(one >= two for one, two in itertools.pairwise(starts))):
            raise ValueError(f"'stages': expected steps that rise from 0, found {starts}")
        self._stages = [
            (start, scorer_of({key: item for key, item in stage.items() if key != "from"}, f"stages.{index}"))
            for index, (start, stage) in enumerate(zip(starts, stages, strict=True))
        ]

    def check_task(self, task: Task) -> None:
        """Raise ValueError if no scorer is selected for the task, or if one that may be selected cannot score it."""
        # The step of an episode is not known before the run, so a task must suit the scorers of all stages.
        if self._stages:
            for _, scorer in self._stages:
                require(scorer, task)
        else:
            require(self._case(task), task)

    async def __call__(self, request: ScoreRequest) -> Score | None:
        """Call the selected scorer, or the two that are blended."""
        if not self._stages:
            scorer = self._case(request.task)
            return await self._only(scorer, request)
        weights = self.weights(request.step)
        if len(weights) == 1:
            return await self._only(weights[0][0], request)
        found, value = {}, 0.0
        for index, (scorer, weight) in enumerate(weights):
            score = await score_of(scorer, request)
            if score is None:
                return None
            # Two stages may use one scorer with different options.
            label = scorer.name if scorer.name not in found else f"{scorer.name}-{index}"
            found[label] = score
            value += weight * score.value
        return combined(value, found)

    def weights(self, step: int | None) -> list[tuple[NormalizedScorer, float]]:
        """Return the scorers of a step with their weights; None means the last stage, as in evaluations."""
        current = len(self._stages) - 1
        if step is not None:
            current = max(index for index, (start, _) in enumerate(self._stages) if start <= max(step, 0))
        begin, scorer = self._stages[current]
        if step is None or not self._linear or current == len(self._stages) - 1 or step <= begin:
            return [(scorer, 1.0)]
        end, following = self._stages[current + 1]
        share = (step - begin) / (end - begin)
        return [(scorer, 1.0 - share), (following, share)]

    async def _only(self, scorer: NormalizedScorer, request: ScoreRequest) -> Score | None:
        score = await score_of(scorer, request)
        return score and combined(score.value, {scorer.name: score})

    def _case(self, task: Task) -> NormalizedScorer:
        value = task.data.get(self._field)
        # A boolean is written as in YAML and JSON: `true`.
        text = str(value).lower() if isinstance(value, bool) else str(value)
        scorer = self._otherwise if value is None else self._cases.get(text, self._otherwise)
        if scorer is None:
            raise ValueError(
                f"{self._field}: expected one of {', '.join(self._cases)} (the cases of its scorer, which has no "
                f"`otherwise`), found {'nothing' if value is None else repr(value)}"
            )
        return scorer


def _start(stage: Any) -> int:
    start = stage.get("from") if isinstance(stage, Mapping) else None
    if isinstance(start, bool) or not isinstance(start, int):
        raise ValueError(  # noqa: TRY004 (what `construct` reports as a fault of the config)
            f"'stages': expected {{from: STEP, use: NAME}} with a whole number, found {stage!r:.60}"
        )
    return start
