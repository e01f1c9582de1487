"""Fixtures for training tests: a toy policy, and episodes sampled from it with logprobs of a plain full forward."""

import random

import attrs
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl_core.api.kept_tokens import mask_of
from agentrl_core.batching import advantages
from agentrl_core.batching.credit import TreeCredit
from agentrl_core.batching.filters import ZeroVariance
from agentrl_core.config.training_sections import TrainerConfig
from agentrl_core.losses import AggregationConfig
from agentrl_core.losses.grpo import GRPO
from agentrl_core.training.learner import Learner
from agentrl_core.types import Episode, Group, Interaction, Record, Sampling, run_lengths
from agentrl_testing.policy import toy_policy


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """A Qwen3 of two layers with random weights."""
    return toy_policy(tmp_path_factory.mktemp("models") / "toy", seed=1)


@pytest.fixture
def learner(model_dir):
    """Make a learner: GRPO with the defaults, what is given changed."""

    def make(*, directory=model_dir, trainer=None, **changes):
        settings = {
            "loss": GRPO(),
            "aggregation": AggregationConfig(),
            "advantage": advantages.GRPO(),
            "credit": TreeCredit(),
            "filters": [ZeroVariance()],
            "config": TrainerConfig(**({"lr": 1e-3, "warmup_steps": 0} | (trainer or {}))),
        }
        return Learner(model_dir=directory, **(settings | changes))

    return make


@attrs.frozen
class Sampler:
    """Plays random two-turn dialogues with a model; the reward is the share of even output tokens."""

    model: object
    temperature: float = 1.0
    recorded: float | None = None
    """Temperature that the interactions name, where it is another."""
    top_k: int = 0
    """Number of likeliest tokens to sample from; 0: all."""

    def groups(self, count=2, size=4, *, seed=0, version=0):
        """`count` groups of `size` episodes each."""
        rng = random.Random(seed)
        return [self._group(rng, number, size, version) for number in range(count)]

    def _group(self, rng, number, size, version):
        prompt = [rng.randrange(200) for _ in range(rng.randint(3, 9))]
        episodes = tuple(self._episode(rng, f"g{number}r{index}", prompt, index, version) for index in range(size))
        return Group(id=f"g{number}", run_id="run", task_id=f"task{number}", index=number, episodes=episodes)

    def _episode(self, rng, name, prompt, index, version):
        ids, calls, even = list(prompt), [], []
        new = prompt
        for turn in range(2):
            if turn:
                new = [rng.randrange(200) for _ in range(rng.randint(1, 5))]
                ids.extend(new)
            output, logprobs, kept = self._sample(rng, ids, rng.randint(2, 6))
            ids.extend(output)
            even.extend(token % 2 == 0 for token in output)
            calls.append(
                Interaction(
                    id=f"{name}t{turn}",
                    record_id=name,
                    seq=turn,
                    parent=calls[-1].id if calls else None,
                    prompt_ids=tuple(new),
                    output_ids=tuple(output),
                    logprobs=tuple(logprobs),
                    kept=tuple(kept) if self.top_k else (),
                    versions=run_lengths([version] * len(output)),
                    messages=(),
                    output={"role": "assistant", "content": "", "tool_calls": [{}] * (1 - turn)},
                    sampling=Sampling(temperature=self.recorded or self.temperature, top_k=self.top_k),
                )
            )
        record = Record(
            id=name, run_id="run", task_id="task", group_id="g", sample_index=index, reward=sum(even) / len(even)
        )
        return Episode(record=record, interactions=tuple(calls))

    @torch.no_grad()
    def _sample(self, rng, ids, count):
        output, logprobs, kept = [], [], []
        for _ in range(count):
            logits = self.model(torch.tensor([[*ids, *output]])).logits[0, -1]
            if self.top_k:
                logits[logits < logits.topk(self.top_k).values[-1]] = -torch.inf
            distribution = torch.log_softmax(logits / self.temperature, -1)
            kept.append(mask_of((distribution > -torch.inf).nonzero().flatten().tolist()))
            output.append(rng.choices(range(len(distribution)), distribution.exp().tolist())[0])
            logprobs.append(distribution[output[-1]].item())
        return output, logprobs, kept


@pytest.fixture(scope="session")
def sampler(model_dir):
    """The toy policy's sampler."""
    return Sampler(AutoModelForCausalLM.from_pretrained(model_dir))


@pytest.fixture
def weights():
    """Copy a learner's weights."""

    def copy(learner):
        return {name: value.clone() for name, value in learner.weights().module.state_dict().items()}

    return copy
