import itertools

import pytest
import torch

from agentrl_core.config.schema import WarmStartConfig
from agentrl_core.models.tiny import build

ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"Say {number} times {word}."},
            {"role": "assistant", "content": f"{word} " * number},
        ]
    }
    for number, word in itertools.product((1, 2, 3), ("ab", "cd", "ef"))
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    build(path, seed=0, conversations=ROWS, size="0.1M", context_length=64)
    return path


def config(**changes):
    return WarmStartConfig(**({"data": "rows", "steps": 30, "batch_size": 6, "lr": 1e-2, "warmup_steps": 5} | changes))


def test_demonstrations_are_learnt(learner, directory):
    losses = learner(directory=directory).warm_start(ROWS, config())
    assert len(losses) == 30
    assert losses[0] == pytest.approx(torch.tensor(276.0).log().item(), rel=0.2)  # random weights know nothing
    assert losses[-1] < 0.4 * losses[0]


def test_equal_seeds_learn_equally(learner, directory, weights):
    ends = []
    for seed in (0, 0, 1):
        one = learner(directory=directory, seed=seed)
        one.warm_start(ROWS, config(steps=4))
        ends.append(weights(one))
    same, other = ([torch.equal(ends[0][name], end[name]) for name in end] for end in ends[1:])
    assert all(same)
    assert not all(other)


def test_every_demonstration_is_seen_once_per_pass(directory):
    from agentrl_core.training.warm_start import _batches

    class Lengths:
        def __len__(self):
            return 50

        def length(self, index):
            return index % 7

    import random

    batches = _batches(Lengths(), 8, random.Random(0))
    for _ in range(2):
        seen = list(itertools.chain.from_iterable(itertools.islice(batches, 7)))
        assert sorted(seen) == list(range(50))


def test_steps_start_with_a_fresh_optimizer(learner, directory):
    one = learner(directory=directory)
    one.warm_start(ROWS, config(steps=2))
    assert one._optimizer.state_dict()["state"] == {}


def test_the_rate_rises_then_falls_to_a_tenth():
    from agentrl_core.training.warm_start import _schedule

    shares = [_schedule(step, config(steps=100, warmup_steps=4)) for step in (0, 1, 3, 50, 99)]
    assert shares == pytest.approx([0.25, 0.5 * 0.991, 0.973, 0.55, 0.109])
    assert _schedule(0, config(warmup_steps=0)) == 1.0


def test_the_steps_of_a_warm_start_take_the_scheduled_rate(learner, directory, weights):
    ends = []
    for changes in ({"lr": 1e-2, "warmup_steps": 4}, {"lr": 2.5e-3, "warmup_steps": 1}):
        one = learner(directory=directory)
        one.warm_start(ROWS, config(steps=1, **changes))
        ends.append(weights(one))
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=0, atol=1e-7, msg=name)
