import itertools

import pytest
import torch

from agentrl_core.config.training_sections import WarmStartConfig
from agentrl_core.data.demonstrations import demonstration
from agentrl_core.models.tiny import build

CHATS = [
    {
        "messages": [
            {"role": "user", "content": f"Say {number} times {word}."},
            {"role": "assistant", "content": f"{word} " * number},
        ]
    }
    for number, word in itertools.product((1, 2, 3), ("ab", "cd", "ef"))
]
ROWS = [demonstration(chat, f"rows.jsonl:{line}") for line, chat in enumerate(CHATS, start=1)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    build(path, seed=0, conversations=CHATS, size="0.1M", context_length=64)
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


def test_steps_start_with_a_fresh_optimizer(learner, directory):
    one = learner(directory=directory)
    one.warm_start(ROWS, config(steps=2))
    assert one._optimizer.state_dict()["state"] == {}


def test_the_steps_of_a_warm_start_take_the_scheduled_rate(learner, directory, weights):
    ends = []
    for changes in ({"lr": 1e-2, "warmup_steps": 4}, {"lr": 2.5e-3, "warmup_steps": 1}):
        one = learner(directory=directory)
        one.warm_start(ROWS, config(steps=1, **changes))
        ends.append(weights(one))
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=0, atol=1e-7, msg=name)
