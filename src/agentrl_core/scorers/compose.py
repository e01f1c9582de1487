"""Scorers made of other scorers: weighted sums and gates."""

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
"""From a part as the config has it, and its key there, to the scorer."""


class Weighted:
    """The sum of `parts`, each times its weight; what each part gave is in `Score.parts`.

        quality: {use: weighted, parts: {exact_match: 0.8, format: 0.2}}

    A part is `NAME: WEIGHT`, or `LABEL: {use: NAME, weight: WEIGHT, …options}`. Where a part gives no score, there is
    none; with `missing: skip` the others' sum is scaled up to the weight of all, and there is none if all are missing.
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
        """Raise ValueError where a part cannot score the task."""
        for scorer, _ in self._parts.values():
            require(scorer, task)

    async def __call__(self, request: ScoreRequest) -> Score | None:
        """Ask all parts at the same time."""
        results = await asyncio.gather(
            *(score_of(scorer, request) for scorer, _ in self._parts.values()), return_exceptions=True
        )
        found: dict[str, Score] = {}
        skipped: dict[str, str] = {}
        for label, result in zip(self._parts, results, strict=True):
            if isinstance(result, Score):
                found[label] = result
            elif isinstance(result, BaseException):
                if self._missing == "no_score" or not isinstance(result, Exception):
                    raise result
                skipped[label] = f"{type(result).__name__}: {result}"
            else:
                skipped[label] = "no score"
        if not found or (skipped and self._missing == "no_score"):
            return None
        total = sum(abs(weight) for _, weight in self._parts.values())
        present = sum(abs(self._parts[label][1]) for label in found)
        if not present:
            return None
        value = sum(self._parts[label][1] * score.value for label, score in found.items()) * (total / present)
        return combined(value, found, {"skipped": skipped} if skipped else {})


class Gated:
    """The value of `then` where `gate` lets it, else `otherwise`.

        gate: {use: gated, gate: format, then: exact_match, otherwise: 0}

    The gate is open from `threshold` on; while it is closed, `then` is not asked. With `soft` it is open as far as
    its value from 0 to 1 says: gate * then + (1 - gate) * otherwise. `otherwise` is a number, a scorer, or null for
    no score. A gate without a score gives none.
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
            raise ValueError("'otherwise': a soft gate needs a number or a scorer, found nothing")

    def check_task(self, task: Task) -> None:
        """Raise ValueError where a part cannot score the task."""
        for scorer in (self._gate, self._then, self._otherwise):
            if scorer is not None and not isinstance(scorer, int | float):
                require(scorer, task)

    async def __call__(self, request: ScoreRequest) -> Score | None:
        """Ask the gate, then what it leads to."""
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
    """Ask a part; rewards by interaction cannot be part of a sum."""
    result = await scorer(request)
    if isinstance(result, dict):
        raise EpisodeError(
            "reward_type", f"scorer '{scorer.name}' gave a reward per interaction, which cannot be combined with others"
        )
    return result


def combined(value: float, found: Mapping[str, Score], details: Mapping[str, Any] | None = None) -> Score:
    """Return one score that keeps what its parts gave, the parts of a part as `part/inner`."""
    parts, told = {}, dict(details or {})
    for label, score in found.items():
        parts[label] = score.value
        parts |= {f"{label}/{inner}": number for inner, number in score.parts.items()}
        if score.details:
            told[label] = dict(score.details)
    return Score(value, parts, told)


def require(scorer: NormalizedScorer, task: Task) -> None:
    """Raise ValueError where a part cannot score a task."""
    if problem := scorer.refuses(task):
        raise ValueError(problem)


def _weighed(label: str, given: Any) -> tuple[Any, float]:
    """Return a part and its weight."""
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
