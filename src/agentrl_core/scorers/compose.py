"""Scorers that combine other scorers: `weighted` adds their scores up, `gated` lets one decide about another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from agentrl_core.api.scoring import Score
from agentrl_core.errors import EpisodeError

if TYPE_CHECKING:
    from agentrl_core.api.scoring import ScoreRequest
    from agentrl_core.scorers.call import NormalizedScorer
    from agentrl_core.types import Task

ScorerOf: TypeAlias = "Callable[[Any, str], NormalizedScorer]"
"""Function `(part as in the config, key of the part) -> scorer`."""


class Weighted:
    """Sum of the scores of `parts`, each times its weight; `Score.parts` holds the score of each part.

        quality: {use: weighted, parts: {exact_match: 0.8, format: 0.2}}

    A part is `NAME: WEIGHT`, or `LABEL: {use: NAME, weight: WEIGHT, …options}`. If one part has no score, the sum has
    none. With `missing: skip` the sum of the other parts is scaled up to the weight of all parts, and there is no
    score only if all parts are missing.
    """

    def __init__(
        self, *, parts: Mapping[str, Any], missing: Literal["no_score", "skip"] = "no_score", scorer_of: ScorerOf
    ) -> None:
        if not parts:
            raise ValueError("'parts': expected at least one scorer with its weight, found none")
        self._missing = missing
        self._parts: dict[str, tuple[NormalizedScorer, float]] = {}
        for label, given in parts.items():
            use, weight = _weighed(label, given)
            self._parts[label] = scorer_of(use, f"parts.{label}"), weight
        if not any(weight for _, weight in self._parts.values()):
            raise ValueError("'parts': expected a weight other than 0, found none")

    def check_task(self, task: Task) -> None:
        """Raise ValueError if a part cannot score the task."""
        for scorer, _ in self._parts.values():
            require(scorer, task)

    async def __call__(self, request: ScoreRequest) -> Score | None:
        """Call all parts concurrently and add their scores up."""
        # With `return_exceptions` all parts end before an exception is raised, so none is left running.
        results = await asyncio.gather(
            *(score_of(scorer, request) for scorer, _ in self._parts.values()), return_exceptions=True
        )
        found: dict[str, Score] = {}
        skipped: dict[str, str] = {}
        for label, result in zip(self._parts, results, strict=True):
            if isinstance(result, Score):
                found[label] = result
            elif isinstance(result, BaseException):
                # A cancellation is no missing score, whatever `missing` says.
                if self._missing == "no_score" or not isinstance(result, Exception):
                    raise result
                skipped[label] = f"{type(result).__name__}: {result}"
            else:
                skipped[label] = "no score"
        if not found or (skipped and self._missing == "no_score"):
            return None
        # Absolute values, because weights may be negative and could cancel out.
        total = sum(abs(weight) for _, weight in self._parts.values())
        present = sum(abs(self._parts[label][1]) for label in found)
        if not present:
            return None
        value = sum(self._parts[label][1] * score.value for label, score in found.items()) * (total / present)
        return combined(value, found, {"skipped": skipped} if skipped else {})


class Gated:
    """Score of `then` if the score of `gate` is at least `threshold`, else `otherwise`.

        gate: {use: gated, gate: format, then: exact_match, otherwise: 0}

    If the gate is closed, `then` is not called. With `soft` the score is gate * then + (1 - gate) * otherwise, with
    the gate's score clipped to [0, 1]. `otherwise` is a number, a scorer, or null for no score. If the gate has no
    score, there is none.
    """

    def __init__(
        self,
        *,
        gate: Any,
        then: Any,
        otherwise: Any = 0.0,
        threshold: float = 0.5,
        soft: bool = False,
        scorer_of: ScorerOf,
    ) -> None:
        self._gate, self._then = scorer_of(gate, "gate"), scorer_of(then, "then")
        self._threshold, self._soft = threshold, soft
        self._otherwise: NormalizedScorer | float | None
        if otherwise is None or (isinstance(otherwise, int | float) and not isinstance(otherwise, bool)):
            self._otherwise = otherwise
        else:
            self._otherwise = scorer_of(otherwise, "otherwise")
        if soft and otherwise is None:
            raise ValueError("'otherwise': expected a number or a scorer for a soft gate, found nothing")

    def check_task(self, task: Task) -> None:
        """Raise ValueError if a part cannot score the task."""
        for scorer in (self._gate, self._then, self._otherwise):
            if scorer is not None and not isinstance(scorer, int | float):
                require(scorer, task)

    async def __call__(self, request: ScoreRequest) -> Score | None:
        """Call the gate, then the sides that have a weight above 0."""
        gate = await score_of(self._gate, request)
        if gate is None:
            return None
        share = min(max(gate.value, 0.0), 1.0) if self._soft else float(gate.value >= self._threshold)
        found, value = {"gate": gate}, 0.0
        for label, side, weight in (("then", self._then, share), ("otherwise", self._otherwise, 1.0 - share)):
            if not weight:
                continue
            if side is None:
                return None
            score = Score(float(side)) if isinstance(side, int | float) else await score_of(side, request)
            if score is None:
                return None
            if not isinstance(side, int | float):
                found[label] = score
            value += weight * score.value
        return combined(value, found)


async def score_of(scorer: NormalizedScorer, request: ScoreRequest) -> Score | None:
    """Call a part; raise EpisodeError for rewards per interaction, which cannot be part of a sum."""
    result = await scorer(request)
    if isinstance(result, dict):
        raise EpisodeError(
            "reward_type",
            f"scorer '{scorer.name}' returned a reward per interaction, which cannot be combined with other scores",
        )
    return result


def combined(value: float, found: Mapping[str, Score], details: Mapping[str, Any] | None = None) -> Score:
    """Return a score that keeps the scores of its parts, those of nested parts as `part/inner`, and their details."""
    parts, told = {}, dict(details or {})
    for label, score in found.items():
        parts[label] = score.value
        parts |= {f"{label}/{inner}": number for inner, number in score.parts.items()}
        if score.details:
            told[label] = dict(score.details)
    return Score(value, parts, told)


def require(scorer: NormalizedScorer, task: Task) -> None:
    """Raise ValueError if a part cannot score a task."""
    if problem := scorer.refuses(task):
        raise ValueError(problem)


def _weighed(label: str, given: Any) -> tuple[Any, float]:
    """Split the config of a part into the scorer and its weight."""
    use: Any = label
    weight = given
    if isinstance(given, Mapping):
        weight = given.get("weight")
        use = {"use": label, **{option: item for option, item in given.items() if option != "weight"}}
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ValueError(  # noqa: TRY004 (what `construct` reports as a fault of the config)
            f"'parts': {label}: expected a weight, a number, found {weight!r:.60}"
        )
    return use, float(weight)
