"""Learning rates that a config leaves open depend on whether the policy is built from nothing or loaded."""

import pytest

from agentrl_core.config import parse, parse_as
from agentrl_core.config.sft import SftConfig
from agentrl_core.training.default_lr import with_rates

MODEL = {"use": "any"}


@pytest.mark.parametrize(
    ("pretrained", "rl", "warm_start", "sft"), [(False, 4e-4, 3e-3, 1e-3), (True, 1e-6, 2e-5, 2e-5)]
)
def test_a_trained_model_is_trained_by_small_steps(pretrained, rl, warm_start, sft):
    run = with_rates(parse({"model": MODEL, "warm_start": {"data": "demos.jsonl"}}), pretrained=pretrained)
    assert run.warm_start is not None
    assert (run.trainer.lr, run.warm_start.lr) == (rl, warm_start)
    tuning = parse_as(SftConfig, {"model": MODEL, "data": {"train": "chats.jsonl"}})
    assert with_rates(tuning, pretrained=pretrained).trainer.lr == sft


def test_a_rate_that_is_given_stays():
    given = {"model": MODEL, "trainer": {"lr": 0}, "warm_start": {"data": "demos.jsonl", "lr": 1e-3}}
    run = with_rates(parse(given), pretrained=True)
    assert run.warm_start is not None
    assert (run.trainer.lr, run.warm_start.lr) == (0, 1e-3)
