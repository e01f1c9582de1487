"""Which records are taken, and the rows that are made of an episode's tree."""

import attrs
import pytest

from agentrl_core.data.demonstrations import demonstration
from agentrl_core.data.export import Selection, export_rows
from agentrl_core.types import Episode, Interaction, Outcome, Record


def record(number, *, group="g0", reward=1.0, **fields):
    return Record(
        id=f"r{number}",
        run_id="run",
        task_id="t",
        group_id=group,
        sample_index=number,
        outcome=Outcome.SCORED,
        reward=reward,
        **fields,
    )


RECORDS = [
    record(0, reward=0.5),
    record(1, reward=1.0),
    record(2, reward=1.0),
    record(3, group="g1", reward=0.4),
    record(4, group="g1", reward=0.6),
    record(5, group="g2", reward=1.0, is_eval=True),
    attrs.evolve(record(6, group="g1"), outcome=Outcome.FAILED),
    attrs.evolve(record(7, group="g1"), reward=None),
]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"min_reward": 0.5}, [0, 1, 2, 4]),
        ({"best_of_group": 1}, [1, 4]),
        ({"best_of_group": 2, "min_reward": 0.5}, [1, 2, 4]),
        ({"min_reward": 1.0, "evaluations": True}, [1, 2, 5]),
        ({"min_reward": 2.0}, []),
    ],
)
def test_records_are_chosen_by_reward_and_group(options, found):
    assert [item.id for item in Selection(**options).choose(RECORDS)] == [f"r{number}" for number in found]


def call(name, parent, prompt, output, **fields):
    return Interaction(
        id=name,
        record_id="r0",
        seq=int(name),
        parent=parent,
        prompt_ids=prompt,
        output_ids=output,
        logprobs=(-0.5,) * len(output),
        versions=((0, len(output)),),
        messages=({"role": "user", "content": f"u{name}"},),
        output={"role": "assistant", "content": f"a{name}"},
        **fields,
    )


TREE = (
    call("0", None, (1, 2), (3, 4)),
    call("1", "0", (5,), (6,)),
    call("2", "0", (7, 8), (9,), tools=({"function": {"name": "add"}},)),
    call("3", "2", (10,), (11, 12), trainable=False),
)


def user(name):
    return {"role": "user", "content": f"u{name}"}


def reply(name, **weight):
    return {"role": "assistant", "content": f"a{name}", **weight}


def test_a_tree_has_a_row_per_leaf_and_each_sampled_token_in_one_span():
    rows = list(export_rows(Episode(record=RECORDS[0], interactions=TREE), tokenizer="abc"))
    common = {"tokenizer": "abc", "task": "t", "record": "r0", "reward": 0.5}
    assert rows == [
        {
            "messages": [user(0), reply(0), user(1), reply(1)],
            "ids": [1, 2, 3, 4, 5, 6],
            "spans": [[2, 4], [5, 6]],
            **common,
        },
        {  # the first reply is trained above; what another model said, never
            "messages": [user(0), reply(0, weight=0), user(2), reply(2)],
            "tools": [{"function": {"name": "add"}}],
            "ids": [1, 2, 3, 4, 7, 8, 9],
            "spans": [[6, 7]],
            **common,
        },
    ]


def test_rows_are_read_back_as_demonstrations():
    first, second = (
        demonstration(row, "rows.jsonl:1") for row in export_rows(Episode(record=RECORDS[0], interactions=TREE))
    )
    assert first.tokens.spans == [(2, 4, 1.0), (5, 6, 1.0)]
    assert first.weights == [0, 1, 0, 1]
    assert second.weights == [0, 0, 0, 1]


def test_what_teaches_nothing_has_no_row():
    alone = (call("0", None, (1, 2), (3, 4), trainable=False), call("1", "0", (5,), ()))
    assert list(export_rows(Episode(record=RECORDS[0], interactions=alone))) == []


def test_an_example_in_a_prompt_is_not_trained():
    shown = attrs.evolve(TREE[0], messages=(user(0), reply("example"), user(0)))
    (row,) = export_rows(Episode(record=RECORDS[0], interactions=(shown,)))
    assert row["messages"] == [user(0), reply("example", weight=0), user(0), reply(0)]
