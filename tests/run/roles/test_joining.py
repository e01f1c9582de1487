"""Servers and samplers before and after a run: when they may join, and when and how they end."""

import asyncio

import pytest

from agentrl_core import config as configs
from agentrl_core.api.members import Member
from agentrl_core.errors import RunError
from agentrl_core.run.roles.frame import take_part
from agentrl_core.run.roles.joining import Commands, FoundRun, RunEnd, RunOver

NO_WAIT = ["roles.wait_s=0.1"]


@pytest.fixture
def run(stored):
    """`run("failed")` stores the run `r` with that status and returns its store."""

    def begin(status):
        _, store = stored(status)
        return store

    return begin


def join(store):
    trainer = Member(run_id="r", role="train", lease_s=1000.0)
    asyncio.run(store.join(trainer))
    return trainer.id


def look(store):
    """Look once for the run's end, as a member does."""

    async def once():
        row, told = (await store.runs())[0], []
        end = RunEnd(FoundRun(store=store, row=row), 60, told.append, Commands(config="config.yaml", name="r"))
        await end.look(await store.members("r", live=True))
        return told

    return asyncio.run(once())


@pytest.mark.parametrize("status", ["running", "failed", "interrupted", "finished"])
def test_a_run_with_a_live_trainer_goes_on_whatever_a_former_one_has_made_of_it(run, status):
    store = run(status)
    join(store)
    assert look(store) == []


def test_a_run_without_a_trainer_ends_as_its_row_says(run):
    store = run("running")
    asyncio.run(store.leave(join(store)))
    assert "resume the run with `agentrl train config.yaml --name r`" in look(store)[0]
    asyncio.run(store.update_run("r", status="failed", error="the loss is NaN"))
    with pytest.raises(RunError, match=r"run 'r' has failed: the loss is NaN; resume the run with `agentrl train"):
        look(store)
    asyncio.run(store.update_run("r", status="finished"))
    with pytest.raises(RunOver, match="run 'r' has ended: finished"):
        look(store)


def part(role="sample"):
    told = []
    take_part(role, "config.yaml", NO_WAIT, "r", lambda joining: pytest.fail("it joined"), told.append)
    return told


@pytest.mark.parametrize("role", ["sample", "serve"])
def test_whoever_joins_after_the_end_ends_at_once(run, role):
    asyncio.run(run("finished").close())
    assert part(role) == ["run 'r' has ended: finished"]


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_a_run_that_may_be_resumed_is_waited_for_with_the_command_of_this_process(run, status):
    asyncio.run(run(status).close())
    resume = r"resume it with `agentrl train config\.yaml --name r roles\.wait_s=0\.1`"
    with pytest.raises(RunError, match=rf"the trainer of run 'r', which is {status}; {resume}"):
        part()


def test_commands_have_the_overrides_of_this_process_and_no_password(written):
    path = written()
    given = ["trainer.steps=12", "seed=3", "store.url=mongodb://me:hush@host/?authSource=admin"]
    command = Commands.of(path.name, configs.load(path, ["trainer.steps=12"], name="r"), given)
    kept = "seed=3 'store.url=mongodb://me@host/?authSource=admin'"
    assert command("sample") == f"agentrl sample config.yaml --name r trainer.steps=12 {kept}"
    assert command("train", "trainer.steps=24") == f"agentrl train config.yaml --name r trainer.steps=24 {kept}"
