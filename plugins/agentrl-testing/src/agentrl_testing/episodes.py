"""Synthetic episodes and groups for the suites of credits, filters and shapings: chains, forks, several contexts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrl_core.types import Episode, FinishReason, Group, Interaction, Outcome, Record

SHAPES: Mapping[str, Sequence[int | None]] = {
    "one call": (None,),
    "a chain": (None, 0, 1),
    "a fork": (None, 0, 0, 1),
    "two contexts": (None, 0, None, 2),
}
"""Name of a conversation tree -> position of each interaction's parent."""


def made_up_episode(
    parents: Sequence[int | None], *, reward: float = 1.0, rewards: Mapping[int, float] | None = None, index: int = 0
) -> Episode:
    """Make a scored episode whose conversation tree is given by `parents`.

    `rewards` are the rewards of single interactions by position; `index` is the record's sample index in its group.
    """
    record_id = f"record-{index}"
    names = [f"{record_id}-call-{position}" for position in range(len(parents))]
    interactions = tuple(
        Interaction(
            id=names[position],
            record_id=record_id,
            seq=position,
            parent=None if parent is None else names[parent],
            prompt_ids=(1, 2, 3 + position),
            output_ids=(10 + position, 0),
            logprobs=(-0.5, -0.25),
            versions=((0, 2),),
            messages=({"role": "user", "content": f"question {position}"},),
            output={"role": "assistant", "content": f"answer {position}"},
            finish_reason=FinishReason.STOP,
        )
        for position, parent in enumerate(parents)
    )
    by_id = {names[position]: value for position, value in (rewards or {}).items()}
    record = Record(
        id=record_id,
        run_id="run",
        task_id="task",
        group_id="group",
        sample_index=index,
        outcome=Outcome.SCORED,
        reward=sum(by_id.values()) if by_id else reward,
        rewards=by_id,
    )
    return Episode(record=record, interactions=interactions)


def made_up_group(rewards: Sequence[float]) -> Group:
    """Make a group with one record per reward."""
    episodes = tuple(
        made_up_episode(SHAPES["a chain"], reward=reward, index=index) for index, reward in enumerate(rewards)
    )
    return Group(id="group", run_id="run", task_id="task", index=0, episodes=episodes)
