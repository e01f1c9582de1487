import attrs
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl_core.api.kept_tokens import mask_of
from agentrl_core.api.losses import LossOutput
from agentrl_core.batching.packing import pack
from agentrl_core.batching.samples import training_samples
from agentrl_core.errors import TrainingError
from agentrl_core.losses.aggregate import AggregationConfig, aggregate
from agentrl_core.types import FinishReason, Sampling
from agentrl_core.weights.witness import witness


def lay_out(members, group, advantages=None, *, style="individual"):
    groups = [group(members)]
    if advantages is None:
        advantages = {item.id: 1.0 for member in members for item in member.interactions}
    return training_samples(groups, advantages, style=style)


def test_a_linear_dialogue_is_one_sample_with_a_span_per_turn(episode, interaction, group):
    turns = [
        interaction("t1", prompt=(10, 11), output=(20, 21), versions=[3, 4]),
        interaction("t2", parent="t1", prompt=(12,), output=(22,), versions=[4]),
        interaction("t3", parent="t2", prompt=(13, 14), output=(23, 24), versions=[4, 4]),
    ]
    found = lay_out([episode(turns)], group, {"t1": 0.5, "t2": -1.0, "t3": 2.0})
    (sample,) = found.samples
    assert list(sample.ids) == [10, 11, 20, 21, 12, 22, 13, 14, 23, 24]
    assert list(sample.positions) == [2, 3, 5, 8, 9]
    assert sample.call_tokens == 3 + 5 + 9  # of each call all that stands before its last token
    assert list(sample.logprobs) == [*turns[0].logprobs, *turns[1].logprobs, *turns[2].logprobs]
    assert list(sample.advantages) == [0.5, 0.5, -1.0, 2.0, 2.0]
    assert list(sample.versions) == [3, 4, 4, 4, 4]
    assert [found.interactions[i] for i in sample.interactions] == ["t1", "t1", "t2", "t3", "t3"]
    assert found.records == ("record",)


def test_a_fork_trains_its_trunk_once(episode, interaction, group):
    calls = [
        interaction("trunk", prompt=(1,), output=(2,)),
        interaction("left", parent="trunk", prompt=(3,), output=(4,)),
        interaction("right", parent="trunk", prompt=(5,), output=(6,)),
    ]
    left, right = lay_out([episode(calls)], group).samples
    assert (list(left.ids), list(left.positions)) == ([1, 2, 3, 4], [1, 3])
    assert (list(right.ids), list(right.positions)) == ([1, 2, 5, 6], [3])


SEQUENCES = [("individual", [[0, 1], [2]]), ("concat", [[0, 0], [1]])]


@pytest.mark.parametrize(("style", "expected"), SEQUENCES)
def test_a_training_sequence_is_a_call_or_what_leads_to_a_leaf(style, expected, episode, interaction, group):
    calls = [
        interaction("trunk", prompt=(1,), output=(2,)),
        interaction("left", parent="trunk", prompt=(3,), output=(4,)),
        interaction("right", parent="trunk", prompt=(5,), output=(6,)),
    ]
    found = lay_out([episode(calls)], group, {"trunk": 0.5, "left": 1.0, "right": -1.0}, style=style)
    assert [list(sample.sequences) for sample in found.samples] == expected
    assert [list(sample.advantages) for sample in found.samples] == [[0.5, 1.0], [-1.0]]


def aggregated(found, config):
    """The loss of samples whose tokens cost what their advantage is."""
    update = pack(found.samples, max_tokens=100, config=config)
    (batch,) = update.micro_batches
    cost = LossOutput(per_token=batch.advantages, keep=torch.ones_like(batch.advantages), metrics={})
    return aggregate(config, batch, cost, update.denominators).item()


@pytest.mark.parametrize(
    ("options", "individual", "concat"),
    [
        # A turn of one token that costs 4, and one of three tokens that cost 0 each.
        ({"aggregation": "token_mean"}, 1.0, 1.0),
        ({"aggregation": "seq_mean_token_mean", "unit": "sequence"}, 2.0, 1.0),
        ({"aggregation": "seq_mean_token_sum", "unit": "sequence"}, 2.0, 4.0),
        ({"aggregation": "constant", "unit": "sequence", "horizon": 8}, 0.25, 0.5),
        ({"aggregation": "seq_mean_token_mean", "unit": "record"}, 1.0, 1.0),
        ({"aggregation": "seq_mean_token_mean", "unit": "interaction"}, 2.0, 2.0),
        ({"aggregation": "agentcpm_rows"}, 1.0, 1.0),
    ],
)
def test_styles_differ_where_sequences_are_averaged_and_nowhere_else(
    options, individual, concat, episode, interaction, group
):
    calls = [interaction("a", output=(7,)), interaction("b", parent="a", output=(8, 9, 10))]
    found = {
        style: aggregated(
            lay_out([episode(calls)], group, {"a": 4.0, "b": 0.0}, style=style), AggregationConfig(**options)
        )
        for style in ("individual", "concat")
    }
    assert found == {"individual": individual, "concat": concat}


def test_outputs_that_are_not_the_policys_are_context_only(episode, interaction, group):
    calls = [
        interaction("t1", prompt=(1,), output=(2,), trainable=False),
        interaction("t2", parent="t1", prompt=(3,), output=(4,)),
        interaction("t3", parent="t2", prompt=(5,), output=(6, 7), finish_reason=FinishReason.ABORT),
    ]
    (sample,) = lay_out([episode(calls)], group).samples
    assert (list(sample.ids), list(sample.positions)) == ([1, 2, 3, 4], [3])


def test_what_the_engine_sampled_is_told_from_what_it_did_not(episode, interaction, group):
    one = interaction("t1", prompt=(1, 2), output=(3,))
    two = interaction("t2", parent="t1", prompt=(4,), output=(5, 6))
    one = attrs.evolve(one, witness=witness("", one.prompt_ids, one.output_ids))
    two = attrs.evolve(two, witness=witness(one.witness, two.prompt_ids, two.output_ids))
    found = lay_out([episode([one, two])], group).fidelity
    assert (found.trained, found.exact) == (3, 3)
    changed = attrs.evolve(two, output_ids=(5, 7))
    with pytest.raises(TrainingError, match=r"1 of 3 tokens.*interaction t2, turn 1, token 3"):
        lay_out([episode([one, changed])], group)


def test_records_and_groups_are_numbered_through_the_step(episode, group):
    groups = [
        group([episode({"a": None}, name="r0"), episode({"b": None}, name="r1")], name="g0"),
        group([episode({"c": None}, name="r2")], name="g1"),
    ]
    found = training_samples(groups, dict.fromkeys("abc", 1.0))
    assert [(sample.record, sample.group) for sample in found.samples] == [(0, 0), (1, 0), (2, 1)]
    assert (found.records, found.groups) == (("r0", "r1", "r2"), ("g0", "g1"))


def test_an_interaction_whose_numbers_do_not_match_is_refused(episode, interaction, group):
    with pytest.raises(TrainingError, match=r"interaction bad: 2 output tokens, 2 logprobs and 1 versions"):
        lay_out([episode([interaction("bad", versions=[0])])], group)
    with pytest.raises(TrainingError, match="no prompt before it"):
        lay_out([episode([interaction("bad", prompt=())])], group)


def test_loss_tokens_keep_their_sampling_masks(episode, interaction, group):
    masks = (mask_of([3, 9]), mask_of([4]))
    calls = [
        interaction("t1", output=(3, 4), kept=masks),
        interaction("t2", parent="t1", prompt=(5,), output=(6,)),
        interaction("t3", parent="t2", prompt=(7,), output=(8, 9), trainable=False),
    ]
    (sample,) = lay_out([episode(calls)], group).samples
    assert sample.kept == (*masks, b"")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kept": (mask_of([3]),)}, "2 output tokens and 1 sampling masks"),
        ({"sampling": Sampling(top_p=0.9)}, r"sampled with top_p 0.9 and top_k 0, but the engine returned no sampling"),
        ({"sampling": Sampling(top_k=5), "kept": (mask_of([3]), b"")}, "returned no sampling masks"),
    ],
)
def test_a_truncated_distribution_without_its_masks_is_never_trained(episode, interaction, group, fields, message):
    with pytest.raises(TrainingError, match=message):
        lay_out([episode([interaction("bad", output=(3, 4), **fields)])], group)


@st.composite
def trees(draw):
    """Shape of a random episode: (parent number or None, prompt length, output length, trainable, aborted)."""
    count = draw(st.integers(1, 9))
    return [
        (
            draw(st.sampled_from([None, *range(number)])),
            draw(st.integers(1, 4)),
            draw(st.integers(0, 4)),
            draw(st.booleans()),
            draw(st.integers(0, 5)) == 0,
        )
        for number in range(count)
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes=st.lists(trees(), min_size=1, max_size=3), style=st.sampled_from(["individual", "concat"]))
def test_every_trained_token_is_in_the_loss_once_with_the_ids_that_the_engine_saw(
    shapes, style, episode, interaction, group
):
    fresh = iter(range(10**6))  # every token of the group is another number, so a wrong one shows
    members, trained = [], {}
    for number, shape in enumerate(shapes):
        calls = []
        for place, (parent, prompt, output, trainable, aborted) in enumerate(shape):
            calls.append(
                interaction(
                    f"{number}.{place}",
                    parent=None if parent is None else f"{number}.{parent}",
                    prompt=[next(fresh) for _ in range(prompt)],
                    output=[next(fresh) for _ in range(output)],
                    trainable=trainable,
                    finish_reason=FinishReason.ABORT if aborted else FinishReason.STOP,
                )
            )
        member = episode(calls, name=f"r{number}")
        members.append(member)
        for call in member.interactions:
            if call.trainable and call.finish_reason is not FinishReason.ABORT:
                for offset, token in enumerate(call.output_ids):
                    context = member.full_ids(call)
                    before = context[: len(context) - len(call.output_ids) + offset]
                    trained[token] = (before, call.logprobs[offset], call.id)
    advantages = {call.id: float(place) for place, call in enumerate(c for m in members for c in m.interactions)}
    found = lay_out(members, group, advantages, style=style)
    seen = {}
    sequences = {}
    for sample in found.samples:
        assert len(sample.positions) > 0
        assert sample.positions[-1] == len(sample.ids) - 1
        for position, logprob, owner in zip(sample.positions, sample.logprobs, sample.interactions, strict=True):
            token = sample.ids[position]
            assert token not in seen
            seen[token] = (tuple(sample.ids[:position]), logprob, found.interactions[owner])
        for owner, sequence, value in zip(sample.interactions, sample.sequences, sample.advantages, strict=True):
            assert value == advantages[found.interactions[owner]]  # rewards of single turns survive
            sequences.setdefault(sequence, set()).add((id(sample), owner) if style == "individual" else id(sample))
    assert seen == trained
    assert sorted(sequences) == list(range(found.num_sequences))
    assert all(len(owners) == 1 for owners in sequences.values())  # one call, or one leaf's dialogue
    assert found.num_sequences == len(found.samples if style == "concat" else found.interactions)


def test_every_loss_token_carries_the_temperature_of_its_interaction(interaction, episode, group):
    calls = [
        interaction("a", output=(3, 4), sampling=Sampling(temperature=0.5)),
        interaction("b", parent="a", output=(5,), sampling=Sampling(temperature=1.5)),
    ]
    (sample,) = training_samples([group([episode(calls)])], {"a": 1.0, "b": 1.0}).samples
    assert sample.temperatures == [0.5, 0.5, 1.5]


def test_what_was_sampled_at_temperature_zero_cannot_be_trained(interaction, episode, group):
    greedy = group([episode([interaction("a", sampling=Sampling(temperature=0.0))])])
    with pytest.raises(TrainingError, match=r"record record, interaction a: sampled at temperature 0,"):
        training_samples([greedy], {"a": 1.0})
    assert training_samples([greedy], {}).samples == ()
