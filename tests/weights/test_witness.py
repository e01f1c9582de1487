"""The digest that proves what was sampled."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.types import Episode, Interaction, Record
from agentrl_core.weights.witness import verify, witness

RECORD = Record(id="r", run_id="run", task_id="t", group_id="g", sample_index=0)
ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5).map(tuple)


def call(seq, parent, prompt, output, **fields):
    return Interaction(
        id=f"c{seq}",
        record_id="r",
        seq=seq,
        parent=parent.id if parent else None,
        prompt_ids=prompt,
        output_ids=output,
        logprobs=(0.0,) * len(output),
        versions=((0, len(output)),),
        messages=(),
        output={"role": "assistant", "content": ""},
        witness=witness(parent.witness if parent else "", prompt, output),
        **fields,
    )


@st.composite
def trees(draw):
    calls = []
    for seq in range(draw(st.integers(1, 6))):
        parent = draw(st.sampled_from([None, *calls]))
        calls.append(call(seq, parent, draw(ids), draw(ids)))
    return calls


@given(trees())
def test_what_the_engine_sampled_is_exact(calls):
    fidelity = verify(Episode(record=RECORD, interactions=tuple(calls)))
    assert fidelity.exact == fidelity.trained == sum(len(item.output_ids) for item in calls)
    assert fidelity.deviation is None
    assert fidelity.share == 1.0


@given(trees(), st.data())
def test_one_changed_token_is_found_where_it_is(calls, data):
    at = data.draw(st.integers(0, len(calls) - 1))
    name = data.draw(st.sampled_from(["prompt_ids", "output_ids"]))
    old = getattr(calls[at], name)
    place = data.draw(st.integers(0, len(old) - 1))
    changed = tuple(token + 1 if index == place else token for index, token in enumerate(old))
    broken = [*calls[:at], attrs.evolve(calls[at], **{name: changed}), *calls[at + 1 :]]
    episode = Episode(record=RECORD, interactions=tuple(broken))
    fidelity = verify(episode)
    tainted = [item for item in broken if broken[at] in episode.lineage(item)]
    assert fidelity.deviation is not None
    assert fidelity.deviation.interaction == calls[at].id
    start = len(episode.full_ids(broken[at])) - len(broken[at].prompt_ids) - len(broken[at].output_ids)
    assert fidelity.deviation.token == start
    assert fidelity.trained - fidelity.exact == sum(len(item.output_ids) for item in tainted)


def test_a_token_that_moves_from_prompt_to_output_is_noticed():
    first = call(0, None, (1, 2), (3,))
    moved = attrs.evolve(first, prompt_ids=(1,), output_ids=(2, 3))
    assert verify(Episode(record=RECORD, interactions=(moved,))).deviation is not None


def test_another_parent_is_noticed():
    one, two = call(0, None, (1,), (2,)), call(1, None, (1,), (3,))
    child = call(2, one, (4,), (5,))
    fidelity = verify(Episode(record=RECORD, interactions=(one, two, attrs.evolve(child, parent="c1"))))
    assert fidelity.deviation.interaction == "c2"


@pytest.mark.parametrize("parent", ["gone", None])
def test_a_missing_parent_is_noticed(parent):
    child = attrs.evolve(call(1, call(0, None, (1,), (2,)), (4,), (5,)), parent=parent)
    assert verify(Episode(record=RECORD, interactions=(child,))).deviation.token == 0


def test_what_has_no_digest_is_not_called_exact_and_no_deviation():
    old = attrs.evolve(call(0, None, (1,), (2, 3)), witness="")
    fidelity = verify(Episode(record=RECORD, interactions=(old,)))
    assert (fidelity.trained, fidelity.exact, fidelity.unwitnessed, fidelity.deviation) == (2, 0, 2, None)


def test_what_is_not_trained_does_not_count():
    judge = call(0, None, (1,), (2, 3), trainable=False)
    fidelity = verify(Episode(record=RECORD, interactions=(judge,)))
    assert (fidelity.trained, fidelity.share) == (0, 1.0)
