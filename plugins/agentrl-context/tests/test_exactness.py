"""Records with compacted histories train exactly: one merged forward has the gradient of one forward per branch.

The loss is the mean over the N trained tokens of -w * ratio: `ratio` is pi / mu of the token, with mu as the engine
recorded it, and w the credit of the token's call, times an advantage of 1. Every token counts once, whatever the number
of branches that contain it.
"""

import asyncio
import json

import pytest
import torch

from agentrl_context.summaries import DiscardAll, Summarise
from agentrl_context.tool_results import DiscardToolResults
from agentrl_context.window import SlidingWindow
from agentrl_core.api.compaction import compaction_of
from agentrl_core.batching.credit import TreeCredit
from agentrl_core.batching.packing import pack
from agentrl_core.batching.samples import training_samples
from agentrl_core.chat import Chat
from agentrl_core.config.sampling_sections import GatewayConfig, SamplingConfig
from agentrl_core.engines.embedded import EmbeddedEngine
from agentrl_core.gateway import Gateway
from agentrl_core.gateway.compaction import NamedPolicy
from agentrl_core.losses.aggregate import AggregationConfig, aggregate
from agentrl_core.losses.grpo import GRPO
from agentrl_core.training.policy import Policy
from agentrl_core.types import Episode, Group, Outcome, Record
from agentrl_testing import toy_policy

LIMIT = {"max_prompt_tokens": 200}
ASKING = {"instruction": "Sum up.", "max_summary_tokens": 12}
POLICIES = {
    "discard_tool_results": DiscardToolResults(keep=1, placeholder="[gone]", **LIMIT),
    "sliding_window": SlidingWindow(keep=1, **LIMIT),
    "discard_all": DiscardAll(**LIMIT, **ASKING),
    "discard_all, no summary": DiscardAll(summary="none", **LIMIT),
    "summarise": Summarise(keep=1, **LIMIT, **ASKING),
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return toy_policy(tmp_path_factory.mktemp("models") / "toy", seed=3)


@pytest.fixture(scope="module")
def engine(model_dir):
    engine = EmbeddedEngine(model_dir=model_dir)
    engine.start()
    yield engine
    engine.close()


class Store:
    async def add_interaction(self, run_id, interaction):
        """Nothing: the session keeps what it made."""


def played(engine, model_dir, policy, *, turns=7):
    """Return the record of an agent that sends its whole history, with a tool's result after each reply."""
    gateway = Gateway(
        engine=engine,
        chat=Chat.from_directory(model_dir),
        store=Store(),
        run_id="run",
        sampling=SamplingConfig(max_tokens=10),
        config=GatewayConfig(),
        seed=5,
        context=NamedPolicy(name="it", policy=policy),
    )
    record = Record(id="r", run_id="run", task_id="t", group_id="g", sample_index=0, outcome=Outcome.SCORED, reward=1.0)

    async def playing():
        session = await gateway.open_session(record, seed_key=(1,))
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "question"}]
        for turn in range(turns):
            body = json.dumps({"messages": messages}).encode()
            url = f"{session.base_url}/v1/chat/completions"
            reply = await gateway.http_client.request("POST", url, content=body)
            assert reply.status_code == 200, reply.text
            text = reply.json()["choices"][0]["message"]["content"]
            result = {"role": "tool", "tool_call_id": f"c{turn}", "content": f"result {turn} of a tool, long enough"}
            messages += [{"role": "assistant", "content": text}, result]
        return await gateway.close_session(session)

    gateway.start()
    try:
        return Episode(record=record, interactions=asyncio.run(playing()))
    finally:
        gateway.close()


@pytest.fixture(scope="module", params=POLICIES)
def episode(request, engine, model_dir):
    """A record with several compactions."""
    found = played(engine, model_dir, POLICIES[request.param])
    assert sum(compaction_of(item) is not None for item in found.interactions) >= 2
    assert any(not item.is_agents for item in found.interactions) == (request.param in ("discard_all", "summarise"))
    return found


@pytest.fixture(scope="module")
def policy(model_dir):
    return Policy.load(model_dir, dtype="float64")


def gradients(policy):
    found = [parameter.grad.clone() for parameter in policy.model.parameters()]
    policy.model.zero_grad()
    return found


def merged(policy, episode, credit):
    """The learner's way: all branches in one forward over their trie."""
    group = Group(id="g", run_id="run", task_id="t", index=0, episodes=(episode,))
    samples = training_samples([group], credit)
    config = AggregationConfig()
    update = pack(samples.samples, max_tokens=100_000, config=config)
    (batch,) = update.micro_batches
    logprobs, entropy = policy.logprobs(batch)
    view = batch.view(logprobs, entropy, version=0)
    loss = aggregate(config, view, GRPO().loss(view), update.denominators)
    loss.backward()
    return loss.item(), gradients(policy), batch


def assert_same(ours, theirs):
    """All gradients agree to a millionth of the largest: transformers' norms compute in float32 in every model."""
    largest = max(gradient.abs().max().item() for gradient in theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6 * largest)


def leaves(episode):
    parents = {item.parent for item in episode.interactions}
    return [item for item in episode.interactions if item.id not in parents]


def branch_terms(policy, episode, leaf):
    """Yield call and sum of ratios of the calls of a branch, from a plain forward over the branch alone."""
    ids = episode.full_ids(leaf)
    logits = policy.model(torch.tensor([ids])).logits[0]
    table, start = torch.log_softmax(logits, -1), 0
    for item in episode.lineage(leaf):
        start += len(item.prompt_ids)
        places = torch.arange(start, start + len(item.output_ids))
        found = table[places - 1, torch.tensor(item.output_ids)]
        start += len(item.output_ids)
        torch.testing.assert_close(found, torch.tensor(item.logprobs, dtype=torch.float64), rtol=0, atol=2e-5)
        yield item, torch.exp(found - torch.tensor(item.logprobs, dtype=torch.float32).double()).sum()


def test_one_merged_forward_has_the_gradient_of_one_forward_per_branch(policy, episode):
    """Tokens that branches share are in the loss of the first branch only. Also compares mu with pi, token by token."""
    loss, ours, batch = merged(policy, episode, TreeCredit().credit(episode))
    count = sum(len(item.output_ids) for item in episode.interactions)
    assert len(batch.prediction) == count
    total, done = 0.0, set()
    for leaf in leaves(episode):
        terms = [value for item, value in branch_terms(policy, episode, leaf) if item.id not in done]
        done |= {item.id for item in episode.lineage(leaf)}
        part = -torch.stack(terms).sum() / count
        part.backward()
        total += part.item()
    assert loss == pytest.approx(total, abs=1e-6)
    assert_same(ours, gradients(policy))


def test_with_shared_weights_it_has_that_of_the_mean_over_the_branches(policy, episode):
    """Each branch's loss is a sum over all of its tokens here, also those that it shares with other branches."""
    loss, ours, _ = merged(policy, episode, TreeCredit(branches="shared").credit(episode))
    count = sum(len(item.output_ids) for item in episode.interactions)
    branches, total = leaves(episode), 0.0
    for leaf in branches:
        part = -torch.stack([value for _, value in branch_terms(policy, episode, leaf)]).sum() / count / len(branches)
        part.backward()
        total += part.item()
    assert loss == pytest.approx(total, abs=1e-6)
    assert_same(ours, gradients(policy))


def test_what_branches_share_is_computed_once(policy, episode):
    _, _, batch = merged(policy, episode, TreeCredit().credit(episode))
    separate = sum(len(episode.full_ids(leaf)) - 1 for leaf in leaves(episode))
    assert batch.tokens < separate


def test_a_summary_of_the_policy_trains(policy, episode):
    summaries = [item for item in episode.interactions if not item.is_agents]
    group = Group(id="g", run_id="run", task_id="t", index=0, episodes=(episode,))
    samples = training_samples([group], TreeCredit().credit(episode))
    trained = {samples.interactions[number] for sample in samples.samples for number in sample.interactions}
    assert {item.id for item in summaries} <= trained
    # It continues the branch that it sums up, so its prompt adds only the request.
    assert all(item.parent is not None for item in summaries)
