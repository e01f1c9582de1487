"""Equal seed, config and engine give equal runs to the last bit, in whatever order the episodes end."""

import asyncio
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentrl_core import Trainer, workflow_context
from agentrl_core.run import resume

STEPS = 2  # in which no task comes twice
EPISODES = 8  # of one step
ENGINE = '''
"""Says random letters, which depend on a call's seed alone; their log-probs depend on nothing but the letter."""
import random

import attrs

from agentrl_core.engines.scripted import ScriptedEngine


class Engine(ScriptedEngine):
    def __init__(self, *, model_dir, seed, dtype):
        super().__init__(replies=(), model_dir=model_dir, vocab_size=263)

    def _reply(self, request, index):
        rng = random.Random(request.sampling.seed)
        return [rng.randrange(100, 180) for _ in range(rng.randint(2, 6))]

    async def generate(self, request):
        async for chunk in super().generate(request):
            yield attrs.evolve(chunk, logprobs=tuple(-(token % 40) / 8 - 1 for token in chunk.ids))
'''


class Letters:
    """Two calls per episode; rewards letters. With `order`, the episodes of a step end one after the other."""

    def __init__(self, order=None):
        self._order = order
        self._waiting = {}
        self.ended = []

    async def run(self, data, *, base_url, api_key, http_client):
        here = workflow_context.get()
        place = (here.task_id, here.sample_index)
        if self._order is not None:
            await self._turn(place)
        texts, messages = [], list(data["messages"])
        for _ in range(2):
            body = {"model": "default", "messages": messages}
            headers = {"authorization": f"Bearer {api_key}"}
            reply = await http_client.post(f"{base_url}/v1/chat/completions", json=body, headers=headers)
            reply.raise_for_status()
            message = reply.json()["choices"][0]["message"]
            texts.append(message["content"] or "")
            messages += [message, {"role": "user", "content": "More."}]
        self.ended.append(place)
        if self._order is not None:
            self._call_next()
        return sum(map(str.isalpha, "".join(texts))) / 12

    async def _turn(self, place):
        self._waiting[place] = asyncio.Event()
        event = self._waiting[place]
        if len(self._waiting) == EPISODES:
            self._call_next()
        await event.wait()

    def _call_next(self):
        if self._waiting:
            self._waiting.pop(self._order(self._waiting)).set()


def outcome(directory, step=STEPS):
    """Weights, optimizer state, and every metric that is no time."""
    folder = Path(directory) / "checkpoints" / f"step-{step}"
    lines = (Path(directory) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [event for event in map(json.loads, lines) if event["event"] == "step_finished"]
    metrics = {
        event["step"]: {name: value for name, value in event["metrics"].items() if not name.endswith("_s")}
        for event in steps
    }
    return load_file(folder / "model.safetensors"), torch.load(folder / "optimizer.pt"), metrics


def assert_equal(one, other):
    torch.testing.assert_close(one[:2], other[:2], rtol=0, atol=0)
    assert one[2] == other[2]


@pytest.fixture
def config(project):
    """Several updates, micro-batches and merged calls per step."""
    Path("fixed.py").write_text(ENGINE, encoding="utf-8")

    def make(name, **trainer):
        settings = {"steps": STEPS, "lr": 1e-2, "updates": 2, "max_tokens_per_microbatch": 120, "save_steps": 1}
        return project(
            name=name,
            seed=11,
            engine={"use": "fixed.py:Engine"},
            trainer=settings | {"max_logprob_gap": 1e3} | trainer,  # the engine's are made up
            rollout={"timeout_s": 60.0},
        )

    return make


def test_two_runs_are_equal_bit_by_bit(config):
    first, second = (Trainer(config(name)).train(workflow=Letters()) for name in ("first", "second"))
    found = outcome(first.directory)
    assert_equal(found, outcome(second.directory))
    assert found[2][STEPS]["loss/grad_norm"] > 0
    other = Trainer(config("other") | {"seed": 12}).train(workflow=Letters())
    assert outcome(other.directory)[2] != found[2]


def test_the_order_in_which_episodes_end_changes_nothing(config):
    forth, back = Letters(order=min), Letters(order=max)
    one = Trainer(config("forth")).train(workflow=forth)
    two = Trainer(config("back")).train(workflow=back)
    assert forth.ended[:EPISODES] == back.ended[:EPISODES][::-1]  # they really ended the other way round
    assert_equal(outcome(one.directory), outcome(two.directory))


def test_a_resumed_run_is_the_run_that_was_never_interrupted(config):
    whole = Trainer(config("whole")).train(workflow=Letters())
    begun = Trainer(config("begun", steps=STEPS - 1)).train(workflow=Letters())
    resume(Path(begun.directory), [f"trainer.steps={STEPS}"], workflow=Letters())
    assert_equal(outcome(whole.directory), outcome(begun.directory))


def test_a_resumed_run_reaches_its_target_where_the_uninterrupted_one_does(config):
    target = {"stop_at_reward": -1.0, "steps": 6}
    assert Trainer(config("aimed", **target)).train(workflow=Letters()).steps == 3  # of three steps the mean counts
    begun = Trainer(config("stopped", **target | {"steps": 2})).train(workflow=Letters())
    assert resume(Path(begun.directory), ["trainer.steps=6"], workflow=Letters()).steps == 3
