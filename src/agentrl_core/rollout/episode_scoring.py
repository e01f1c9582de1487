"""Ask a task's scorer for the reward of an episode; every failure there is *no score*, never a reward of 0."""

from __future__ import annotations

import contextvars
import reprlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.extract import FoundAnswer, find_answer, shown
from agentrl_core.api.scoring import Answer, Score, ScoreRequest, training_step
from agentrl_core.errors import EpisodeError
from agentrl_core.rollout.failures import describe
from agentrl_core.rollout.rewards import GivenReward, read_reward
from agentrl_core.rollout.run_agent import run_agent

if TYPE_CHECKING:
    from agentrl_core.scorers.call import NormalizedScorer
    from agentrl_core.types import Episode, Interaction, Message, Record, Task


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
    """Score `answer`, or the last trainable interaction. Raises `EpisodeError` with reason `no_score`."""
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
    if isinstance(judged.error, EpisodeError):
        raise EpisodeError("no_score", str(judged.error), details=judged.error.details) from judged.error
    if judged.error is not None:
        raise EpisodeError("no_score", f"{name} raised {describe(judged.error)}") from judged.error
    given = judged.value
    score = given if isinstance(given, Score) else None
    try:
        reward = read_reward(score.value if score else given, interactions, giver=name)
    except EpisodeError as error:
        raise EpisodeError("no_score", str(error)) from error
    if reward is None:
        raise EpisodeError("no_score", f"{name} gave no score for the answer {reprlib.repr(request.answer)}")
    return (
        CheckedScore(reward=reward, parts=score.parts, details=score.details) if score else CheckedScore(reward=reward)
    )


def score_request(task: Task, episode: Episode, answer: Answer | None = None) -> ScoreRequest:
    """Return the request to a scorer for an episode: its last trainable interaction, with the answer extracted."""
    last = next(item for item in reversed(episode.interactions) if item.trainable)
    found = find_answer(text_of(last.output) if answer is None else answer.text, task.answer_schema)
    if answer is not None and found.source != "schema":
        found = FoundAnswer(text=answer.text, source="workflow")
    return _request(task, episode.record, found, conversation(episode, last))


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


def conversation(episode: Episode, interaction: Interaction) -> tuple[Message, ...]:
    """Return every message of a lineage, from the first prompt to the interaction's own reply."""
    return tuple(message for item in episode.lineage(interaction) for message in (*item.messages, item.output))


def text_of(message: Message) -> str:
    """Return a message's text; parts that are not text are left out."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or () if part.get("type") == "text")
