"""Learning rates that a config leaves open depend on whether the policy is built from nothing or loaded."""

import pytest

from agentrl_core.config import parse, parse_as
from agentrl_core.config.sft import SftConfig
from agentrl_core.training.default_lr import with_rates

BUILT, LOADED = {"use": "tiny"}, {"path": "models/qwen"}


@pytest.mark.parametrize(("model", "rl", "warm_start", "sft"), [(BUILT, 4e-4, 3e-3, 1e-3), (LOADED, 1e-6, 2e-5, 2e-5)])
def test_a_loaded_model_is_trained_by_small_steps(model, rl, warm_start, sft):
    run = with_rates(parse({"model": model, "warm_start": {"data": "demos.jsonl"}}))
    assert run.warm_start is not None
    assert (run.trainer.lr, run.warm_start.lr) == (rl, warm_start)
    assert with_rates(parse_as(SftConfig, {"model": model, "data": {"train": "chats.jsonl"}})).trainer.lr == sft


def test_a_rate_that_is_given_stays():
    run = with_rates(parse({"model": LOADED, "trainer": {"lr": 0}, "warm_start": {"data": "demos.jsonl", "lr": 1e-3}}))
    assert run.warm_start is not None
    assert (run.trainer.lr, run.warm_start.lr) == (0, 1e-3)
