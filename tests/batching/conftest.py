"""Builders of episodes for batching tests: `interaction(…)`, `episode([…], reward=1.0)` and `group([…])`."""

import itertools

import attrs
import pytest

from agentrl_core.types import Episode, FinishReason, Group, Interaction, Record, run_lengths


@pytest.fixture
def interaction():
    """Make an interaction; its logprobs are distinct numbers, its versions as given or all 0."""
    counter = itertools.count()

    def make(name, *, parent=None, prompt=(1, 2), output=(3, 4), versions=None, seq=0, **fields):
        fields.setdefault("finish_reason", FinishReason.STOP)
        return Interaction(
            id=name,
            record_id="record",
            seq=seq,
            parent=parent,
            prompt_ids=tuple(prompt),
            output_ids=tuple(output),
            logprobs=tuple(-0.001 * next(counter) for _ in output),
            versions=run_lengths(versions or [0] * len(output)),
            messages=(),
            output={"role": "assistant", "content": ""},
            **fields,
        )

    return make


@pytest.fixture
def episode(interaction):
    """Make an episode from `{name: parent}` in order of completion, or from interactions."""

    def make(items, *, reward=1.0, rewards=None, name="record"):
        if isinstance(items, dict):
            items = [interaction(child, parent=parent) for child, parent in items.items()]
        items = [attrs.evolve(item, seq=seq, record_id=name) for seq, item in enumerate(items)]
        record = Record(
            id=name,
            run_id="run",
            task_id="task",
            group_id="group",
            sample_index=0,
            reward=reward,
            rewards=rewards or {},
        )
        return Episode(record=record, interactions=tuple(items))

    return make


@pytest.fixture
def group():
    """Make a group of episodes."""

    def make(episodes, name="group"):
        return Group(id=name, run_id="run", task_id="task", index=0, episodes=tuple(episodes))

    return make
