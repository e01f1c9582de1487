"""`agentrl train` of a run that is finished."""

import asyncio

import pytest

from agentrl_core.errors import RunError, UsageError
from agentrl_core.run.roles.train import train


@pytest.fixture
def finished(stored):
    """The config file of a finished run of 4 steps, which a target stopped before its last step; no checkpoint."""
    path, store = stored("finished", trainer={"steps": 4})
    asyncio.run(store.close())
    return path


@pytest.mark.parametrize("steps", [[], ["trainer.steps=3"]])
def test_a_finished_run_is_not_opened_again(finished, steps):
    told = r"run 'r' is finished\. .* more than its 4 steps: `agentrl train .*trainer\.steps=8`; .*`agentrl runs fork r"
    with pytest.raises(UsageError, match=told):
        train(finished, steps, name="r")


def test_a_finished_run_goes_on_if_its_config_asks_for_more_steps(finished):
    with pytest.raises(RunError, match=r"waited 0\.1 s for a server"):
        train(finished, ["trainer.steps=5", "roles.wait_s=0.1"], name="r")
