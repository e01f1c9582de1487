"""AReaL's rows, by hand: a tree of two branches, one call that is not trained, and a client that asked twice."""

import pytest

from agentrl_core.gateway.online.trajectories import trajectories
from agentrl_core.types import Episode, Interaction, Record


def call(name, parent, prompt_ids, output_ids, *, text="hi", seq=0, versions=((3, 1),), **fields):
    return Interaction(
        id=name, record_id="r", seq=seq, parent=parent, prompt_ids=prompt_ids, output_ids=output_ids,
        logprobs=tuple(-0.5 * token for token in output_ids), versions=versions,
        messages=({"role": "user", "content": text},), output={"role": "assistant", "content": name}, **fields,
    )  # fmt: skip


CALLS = (
    call("a", None, (1, 2), (3, 4), versions=((3, 1), (4, 1))),
    call("b", "a", (5,), (6,), text="b", seq=1),
    call("c", "a", (7,), (8,), text="c", seq=2),
    call("judge", "a", (9,), (9,), text="j", seq=3, trainable=False),
)


@pytest.fixture
def rows():
    def rows(rewards, calls=CALLS, *, discount=0.5, style="individual", drop_retry_orphans=False):
        episode = Episode(
            record=Record(id="r", run_id="run", task_id="t", group_id="g", sample_index=0), interactions=calls
        )
        return trajectories(episode, rewards, discount=discount, style=style, drop_retry_orphans=drop_retry_orphans)

    return rows


def test_individual_rows_train_their_own_output(rows):
    found = rows({"a": 1.0, "c": 2.0})
    assert {name: row["reward"] for name, row in found.items()} == {"a": 1.0 + 0.5 * 1.0, "b": 1.0, "c": 2.0}
    assert found["b"]["tensor_dict"] == {
        "input_ids": [1, 2, 3, 4, 5, 6],
        "loss_mask": [0, 0, 0, 0, 0, 1],
        "logprobs": [0.0, 0.0, 0.0, 0.0, 0.0, -3.0],
        "versions": [-1, -1, -1, -1, -1, 3],
        "turn_ids": [-1, -1, -1, -1, -1, 0],
        "attention_mask": [1, 1, 1, 1, 1, 1],
        "rewards": [1.0],
        "original_rewards": [0.0],
    }
    assert [message["content"] for message in found["b"]["messages"]] == ["hi", "a", "b", "b"]


def test_concatenated_rows_are_those_of_leaves(rows):
    found = rows({"c": 2.0}, style="concat")
    assert list(found) == ["b", "c"]
    row = found["c"]["tensor_dict"]
    assert row["input_ids"] == [1, 2, 3, 4, 7, 8]
    assert row["loss_mask"] == [0, 0, 1, 1, 0, 1]
    assert row["logprobs"] == [0.0, 0.0, -1.5, -2.0, 0.0, -4.0]
    assert row["versions"] == [-1, -1, 3, 4, -1, 3]
    assert row["turn_ids"] == [-1, -1, 0, 0, -1, 1]


def test_retry_orphans_go_where_another_was_continued_or_came_later(rows):
    calls = (
        call("lost", None, (1,), (2,)),
        call("kept", None, (1,), (3,), seq=1),
        call("first", "kept", (4,), (5,), text="go on", seq=2),
        call("second", "kept", (4,), (6,), text="go on", seq=3),
    )
    assert list(rows({}, calls)) == ["lost", "kept", "first", "second"]
    found = rows({"second": 1.0}, calls, drop_retry_orphans=True)
    assert {name: row["reward"] for name, row in found.items()} == {"kept": 0.5, "second": 1.0}
