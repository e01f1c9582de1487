"""Determine an episode's reward: check the value that its workflow returned, or ask the task's scorer.

Every failure of a scorer is *no score*, never a reward of 0. What a scorer says beside its value is made storable:
any objects become JSON of a bounded size, without secrets.
"""

from __future__ import annotations

import contextvars
import json
import math
import numbers
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.extract import FoundAnswer, find_answer, shown
from agentrl_core.api.scoring import Answer, Score, ScoreRequest, training_step
from agentrl_core.errors import EnvironmentLostError, EpisodeError
from agentrl_core.rollout.failures import describe
from agentrl_core.rollout.run_agent import run_agent
from agentrl_core.scorers.call import finite_number

if TYPE_CHECKING:
    from agentrl_core.scorers.call import NormalizedScorer
    from agentrl_core.types import Episode, Interaction, Message, Record, Task

_SHOWN_IDS = 8
"""Known ids that a message lists."""
LARGEST_BYTES = 65_536
"""Largest size of a record's details as JSON. A judge's prompt and replies fit, and ten thousand records stay below
a gigabyte."""

_CUTS = (20_000, 4_000, 500, 60)
"""Characters that are kept of a text; of a list, a tenth of that number of items. The first one with which
everything fits is used."""
_DEEPEST = 8
"""Levels of nesting that are kept; deeper values become text."""


@attrs.frozen(kw_only=True)
class GivenReward:
    """A checked, finite reward."""

    value: float
    """Reward of the whole record; the sum of `by_interaction` if that was given."""
    by_interaction: Mapping[str, float] = attrs.field(factory=dict)
    """Interaction id → reward; empty if one number was given."""


def read_reward(result: Any, interactions: Sequence[Interaction], *, giver: str = "the workflow") -> GivenReward | None:
    """Check the value that `giver` returned: a number, `{interaction id or turn index: number}`, or None for no reward.

    Raises `EpisodeError` with reason `not_finite`, `unknown_interaction` or `reward_type`.
    """
    if result is None:
        return None
    if not isinstance(result, Mapping):
        return GivenReward(value=_number(result, giver))
    if not result:
        raise EpisodeError(
            "reward_type", f"{giver} returned an empty dict; return a number, or None to leave it to the scorer"
        )
    rewards: dict[str, float] = {}
    for key, value in result.items():
        interaction = _find(key, interactions, giver)
        if interaction.id in rewards:
            raise EpisodeError("reward_type", f"{giver} named {interaction.id} twice, by id and by turn index")
        rewards[interaction.id] = _number(value, f"{giver}, for {key!r},")
    return GivenReward(value=math.fsum(rewards.values()), by_interaction=rewards)


def _number(value: Any, giver: str) -> float:
    try:
        return finite_number(value)
    except EpisodeError as error:
        raise EpisodeError(error.reason, f"{giver} gave no usable reward: {error}") from error


def _find(key: Any, interactions: Sequence[Interaction], giver: str) -> Interaction:
    # `numbers.Integral` includes numpy's integers. It includes bool as well, but True is no turn index.
    if isinstance(key, numbers.Integral) and not isinstance(key, bool):
        turn = int(key)
        # Agents count their own calls; they do not know of those that a context policy made.
        turns = [interaction for interaction in interactions if interaction.is_agents]
        if 0 <= turn < len(turns):
            return turns[turn]
    else:
        for interaction in interactions:
            if interaction.id == key:
                return interaction
    known = [interaction.id for interaction in interactions[:_SHOWN_IDS]]
    num_turns = sum(interaction.is_agents for interaction in interactions)
    more = len(interactions) - len(known)
    raise EpisodeError(
        "unknown_interaction",
        f"{giver} gave a reward to {key!r}, which is not an interaction of this record; expected "
        f"{', '.join(known)}{f' and {more} more' if more else ''}, or a turn index from 0 to {num_turns - 1}",
    )


@attrs.frozen(kw_only=True)
class CheckedScore:
    """Checked result of a scorer."""

    reward: GivenReward
    parts: Mapping[str, float] = attrs.field(factory=dict)
    """Named components of the value, finite."""
    details: Mapping[str, Any] = attrs.field(factory=dict)
    """The scored answer (under `judged`), and whatever details the scorer gave, unchanged."""


async def score_episode(
    scorer: NormalizedScorer, task: Task, episode: Episode, *, timeout_s: float, answer: Answer | None = None
) -> CheckedScore:
    """Score `answer`, or the last trainable interaction. Raises `EpisodeError`: `no_score`, or `environment_lost`."""
    request = score_request(task, episode, answer)
    try:
        verdict = await ask_scorer(scorer, request, episode.interactions, timeout_s=timeout_s)
    except EpisodeError as error:
        error.details = _with_answer(request, error.details)
        raise
    return attrs.evolve(verdict, details=_with_answer(request, verdict.details))


async def ask_scorer(
    scorer: NormalizedScorer, request: ScoreRequest, interactions: Sequence[Interaction] = (), *, timeout_s: float
) -> CheckedScore:
    """Call a scorer; `interactions` are those that it may reward by id."""
    name = f"scorer '{scorer.name}'"
    context = contextvars.copy_context()
    # Under the same rules as an agent: neither a hang nor `sys.exit` in a scorer may stop the run.
    judged = await run_agent(lambda: scorer(request), context, timeout_s=timeout_s, who=name)
    if judged.timed_out:
        raise EpisodeError("no_score", f"{name} gave no score within rollout.timeout_s = {timeout_s:g} s")
    if isinstance(judged.error, EnvironmentLostError):
        raise judged.error
    if isinstance(judged.error, EpisodeError):
        raise EpisodeError("no_score", str(judged.error), details=judged.error.details) from judged.error
    if judged.error is not None:
        raise EpisodeError("no_score", f"{name} raised {describe(judged.error)}") from judged.error
    result = judged.value
    score = result if isinstance(result, Score) else None
    try:
        reward = read_reward(score.value if score else result, interactions, giver=name)
    except EpisodeError as error:
        raise EpisodeError("no_score", str(error)) from error
    if reward is None:
        raise EpisodeError("no_score", f"{name} gave no score for the answer {reprlib.repr(request.answer)}")
    return (
        CheckedScore(reward=reward, parts=score.parts, details=score.details) if score else CheckedScore(reward=reward)
    )


def score_request(task: Task, episode: Episode, answer: Answer | None = None) -> ScoreRequest:
    """Return the request to a scorer for an episode: its last trainable interaction, with the answer extracted."""
    # Only an evaluation may be without: its calls were answered by an upstream model.
    calls = [item for item in episode.interactions if item.trainable] or episode.interactions
    # A summary that the context policy had written is no answer, even if the agent's call after it failed.
    last = next((item for item in reversed(calls) if item.is_agents), calls[-1])
    found = find_answer(text_of(last.output) if answer is None else answer.text, task.answer_schema)
    if answer is not None and found.source != "schema":
        found = FoundAnswer(text=answer.text, source="workflow")
    return _request(task, episode.record, found, _conversation(episode, last))


def early_request(task: Task, record: Record, reply: str, messages: Sequence[Message]) -> ScoreRequest:
    """Return the request to a scorer for a reply during an episode, as if that reply were the last one."""
    return _request(task, record, find_answer(reply, task.answer_schema), tuple(messages))


def _request(task: Task, record: Record, found: FoundAnswer, messages: Sequence[Message]) -> ScoreRequest:
    return ScoreRequest(
        answer=found.text,
        answer_from=found.source,
        reference=task.answer,
        task=task,
        messages=messages,
        record=record,
        step=training_step.get(),
    )


def _with_answer(request: ScoreRequest, details: Any) -> dict[str, Any]:
    """Return a scorer's details, preceded by the answer that it scored, for the trace."""
    looked_for = shown(request.task.answer_schema)
    judged = {"answer": request.answer, "from": request.answer_from, "looked_for": looked_for}
    return {"judged": judged, **(details if isinstance(details, Mapping) else {"details": details})}


def _conversation(episode: Episode, interaction: Interaction) -> tuple[Message, ...]:
    """Return every message of a lineage, from the first prompt to the interaction's own reply."""
    return tuple(message for item in episode.lineage(interaction) for message in (*item.messages, item.output))


def text_of(message: Message) -> str:
    """Return a message's text; parts that are not text are left out."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or () if part.get("type") == "text")


def storable(details: Any, clean: Callable[[str], str] = str) -> dict[str, Any]:
    """Return `details` as JSON values of at most `LARGEST_BYTES`.

    Values that JSON lacks become text, every text passes through `clean`, and texts and lists are cut until all fits.
    """
    if not isinstance(details, Mapping):
        details = {"details": details}
    for most in _CUTS:
        kept = _kept(details, most, _DEEPEST, clean)
        if isinstance(kept, dict) and len(json.dumps(kept)) <= LARGEST_BYTES:
            return kept
    return {"left_out": f"details of more than {LARGEST_BYTES} bytes"}


def _kept(value: Any, most: int, depth: int, clean: Callable[[str], str]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Real):
        return _json_number(value)
    if isinstance(value, Mapping | list | tuple) and depth:
        items = max(1, most // 10)
        if isinstance(value, Mapping):
            pairs = list(value.items())[:items]
            return {_short_text(key, most, clean): _kept(item, most, depth - 1, clean) for key, item in pairs}
        return [_kept(item, most, depth - 1, clean) for item in value[:items]]
    return _short_text(value, most, clean)


def _json_number(value: numbers.Real) -> int | float | str:
    # numpy's numbers are `numbers.Real` too, but `json` accepts Python's own only.
    number = int(value) if isinstance(value, numbers.Integral) else float(value)
    return number if math.isfinite(number) else str(number)


def _short_text(value: Any, most: int, clean: Callable[[str], str]) -> str:
    """Return a text of about `most` characters at most; a scorer's `__str__` may raise."""
    try:
        text = clean(str(value))
    except Exception as error:  # noqa: BLE001 - user code may raise anything
        return f"({type(value).__name__}, whose text cannot be shown: {type(error).__name__})"
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} […{len(text) - 2 * half} characters…] {text[-half:]}"
