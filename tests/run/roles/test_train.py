"""`agentrl train` of a run that is finished."""

import asyncio

import pytest

from agentrl_core import config as configs
from agentrl_core.errors import MemberError, RunError, UsageError
from agentrl_core.run import membership
from agentrl_core.run.components import resolve
from agentrl_core.run.roles.agreement import new_member
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


def test_a_trainer_that_is_refused_changes_nothing(stored, tmp_path, capfd, monkeypatch):
    path, store = stored("running", trainer={"steps": 4})
    components = resolve(configs.load(path, name="r"), role="sample")
    sampler = new_member(components, "r", "sample")
    asyncio.run(store.join(sampler))
    # else the process number, which is that of the trainer below, would say that its process is gone
    monkeypatch.setattr(membership, "_own", {sampler.id})
    components.close()
    asyncio.run(store.set_control("r", wanted="pause"))
    snapshot = (tmp_path / "runs/r/config.json").read_bytes()

    async def everything():
        return await store.runs(), await store.members("r"), await store.control("r"), await store.seals("r")

    before = asyncio.run(everything())
    with pytest.raises(MemberError, match=r"cannot join run 'r': trainer\.steps is 12 here, and 4 in sample on"):
        train(path, ["trainer.steps=12"], name="r")
    assert asyncio.run(everything()) == before
    assert (tmp_path / "runs/r/config.json").read_bytes() == snapshot
    assert "loading" not in capfd.readouterr().out
