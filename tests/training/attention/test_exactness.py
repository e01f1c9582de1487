"""Merged equals unmerged: against every call run alone through the model, its loss added up token by token."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl_core.api.losses import LossBatch
from agentrl_core.batching.packing import pack
from agentrl_core.batching.samples import training_samples
from agentrl_core.losses import AggregationConfig
from agentrl_core.losses.aggregate import aggregate
from agentrl_core.losses.grpo import GRPO
from agentrl_core.training.policy import Policy
from agentrl_core.types import Episode, Group, Interaction, Record, Sampling, run_lengths

VOCABULARY = 7
CLIP = 0.2


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    made = AutoModelForCausalLM.from_config(config).eval()
    for weight in made.parameters():
        weight.data.add_(torch.randn_like(weight) * 0.3)
    return made


@pytest.fixture(scope="module")
def policies(model):
    return {name: Policy(model, attention=name) for name in ("rect", "dense", "rows")}


tokens = st.integers(0, 2)
calls = st.tuples(
    st.integers(0, 9),  # which earlier call it continues, a fresh prompt where there is none of that number
    st.lists(tokens, max_size=4),  # new prompt tokens
    st.lists(tokens, max_size=4),  # output; an empty one is not trained
    st.sampled_from([0.7, 1.0]),
)
groups = st.lists(st.lists(st.lists(calls, min_size=1, max_size=4), min_size=1, max_size=3), min_size=1, max_size=2)
"""Groups of records of calls over three tokens: nested, equal, ending inside of another, of one token."""


def episode(drafts, name):
    made = []
    for number, (parent, prompt, output, temperature) in enumerate(drafts):
        earlier = made[parent] if parent < len(made) else None
        made.append(
            Interaction(
                id=f"{name}c{number}",
                record_id=name,
                seq=number,
                parent=earlier.id if earlier else None,
                prompt_ids=tuple(prompt) if earlier else (2, *prompt),
                output_ids=tuple(output),
                logprobs=tuple(-0.9 - 0.3 * ((place + number) % 4) for place in range(len(output))),
                versions=run_lengths([0] * len(output)),
                messages=(),
                output={},
                sampling=Sampling(temperature=temperature),
            )
        )
    record = Record(id=name, run_id="run", task_id="task", group_id="group", sample_index=0, reward=1.0)
    return Episode(record=record, interactions=tuple(made))


def build(drafts):
    made = []
    for index, records in enumerate(drafts):
        episodes = tuple(episode(record, f"g{index}r{number}") for number, record in enumerate(records))
        made.append(Group(id=f"g{index}", run_id="run", task_id="task", index=index, episodes=episodes))
    return made


def advantages_of(groups):
    signs = itertools.cycle([1.0, -0.5, 0.25])
    return {item.id: next(signs) for one in groups for run in one.episodes for item in run.interactions}


def alone(model, groups, advantages):
    """Loss and gradients of GRPO with the mean over tokens, by the formula, one call after the other."""
    total, count = torch.zeros(()), 0
    for run in (run for one in groups for run in one.episodes):
        for item in run.interactions:
            if not item.output_ids:
                continue
            ids = run.full_ids(item)
            logits = model(torch.tensor([ids])).logits[0, -len(item.output_ids) - 1 :]
            for place, (token, sampled) in enumerate(zip(item.output_ids, item.logprobs, strict=True)):
                scores = logits[place] / item.sampling.temperature
                ratio = torch.exp(torch.log_softmax(scores, -1)[token] - sampled)
                clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
                total = total - torch.minimum(ratio * advantages[item.id], clipped * advantages[item.id])
                count += 1
    loss = total / max(count, 1)
    return loss, torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


def ours(policy, groups, advantages, max_tokens):
    samples = training_samples(groups, advantages).samples
    config = AggregationConfig()
    update = pack(samples, max_tokens=max_tokens, config=config, merge=policy.merges)
    policy.model.zero_grad()
    value = 0.0
    for batch in update.micro_batches:
        logprobs, entropy = policy.logprobs(batch)
        view = LossBatch(
            logprobs=logprobs,
            behaviour_logprobs=batch.behaviour_logprobs,
            advantages=batch.advantages,
            mask=batch.mask,
            sequence=batch.sequence,
            num_sequences=batch.num_sequences,
            record=batch.record,
            group=batch.group,
            lag=-batch.version,
            entropy=entropy,
        )
        loss = aggregate(config, view, GRPO(clip=CLIP).loss(view), update.denominators)
        loss.backward()
        value += loss.item()
    return value, [weight.grad for weight in policy.model.parameters()]


@pytest.mark.parametrize("attention", ["rect", "dense", "rows"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drafts=groups, max_tokens=st.sampled_from([1, 9, 1000]))
@example(drafts=[[[(9, [0, 1], [2, 2], 1.0)], [(9, [0, 1], [2, 2], 1.0)]]], max_tokens=1000)  # two records alike
@example(drafts=[[[(9, [0], [1, 2, 0], 1.0), (9, [0], [1], 1.0)]]], max_tokens=1000)  # one ends inside of the other
@example(drafts=[[[(9, [], [1], 1.0)]]], max_tokens=1000)  # one token
@example(drafts=[[[(9, [1], [], 1.0), (0, [2], [1], 0.7)]]], max_tokens=1000)  # an empty output before a real one
def test_merged_equals_unmerged(model, policies, attention, drafts, max_tokens):
    made = build(drafts)
    advantages = advantages_of(made)
    if not any(item.output_ids for one in made for run in one.episodes for item in run.interactions):
        return
    expected_loss, expected = alone(model, made, advantages)
    loss, gradients = ours(policies[attention], made, advantages, max_tokens)
    assert abs(loss - expected_loss.item()) < 1e-5
    largest = max(gradient.abs().max().item() for gradient in expected if gradient is not None)
    for gradient, known in zip(gradients, expected, strict=True):
        right = torch.zeros_like(gradient) if known is None else known
        assert (gradient - right).abs().max().item() < 1e-5 * largest + 1e-6
