import asyncio
import functools
import threading
from contextvars import ContextVar

import pytest

from agentrl_core.errors import ConfigError
from agentrl_core.rollout.subproc.inside.signatures import INJECTED
from agentrl_core.rollout.workflow_call import WorkflowCall

OFFERED = {name: f"the {name}" for name in INJECTED}


def call(function, data=None):
    return asyncio.run(WorkflowCall(function, "agent")({} if data is None else data, OFFERED))


def test_only_what_the_signature_accepts_is_passed():
    async def run(data, *, api_key, record_id="none", timeout=3):
        return data, api_key, record_id, timeout

    assert call(run, {"id": "t"}) == ({"id": "t"}, "the api_key", "the record_id", 3)


def test_a_catch_all_gets_everything():
    async def run(data, **kwargs):
        return kwargs

    assert call(run) == OFFERED


def test_data_alone_is_enough():
    async def run(data):
        return data

    assert call(run, {"id": "t"}) == {"id": "t"}


def test_the_first_parameter_may_have_any_name():
    async def run(row, base_url):
        return row, base_url

    assert call(run, {"id": "t"}) == ({"id": "t"}, "the base_url")


def test_a_sync_function_runs_off_the_loop_with_its_context():
    variable = ContextVar("variable")

    def run(data):
        return threading.current_thread() is threading.main_thread(), variable.get()

    async def episode():
        variable.set("episode")
        return await WorkflowCall(run, "agent")({}, OFFERED)

    assert asyncio.run(episode()) == (False, "episode")


def test_a_blocking_function_does_not_stall_the_loop():
    release = threading.Event()

    def block(data):
        assert release.wait(timeout=30)
        return "released"

    async def both():
        blocked = asyncio.create_task(WorkflowCall(block, "agent")({}, OFFERED))
        await asyncio.sleep(0)
        release.set()  # reached only because the loop goes on
        return await blocked

    assert asyncio.run(both()) == "released"


def test_an_error_on_the_thread_is_raised_where_it_is_awaited():
    def run(data):
        raise ValueError("from the thread")

    with pytest.raises(ValueError, match="from the thread"):
        call(run)


def test_a_sync_function_may_return_an_awaitable():
    async def inner():
        return "awaited"

    assert call(lambda data: inner()) == "awaited"


@pytest.mark.parametrize("function", [lambda: 0, lambda *, data: 0, lambda data=None: 0])
def test_a_function_without_a_place_for_the_task_is_refused(function):
    with pytest.raises(ConfigError, match=r"config.yaml:3: workflow: agent.* has no parameter for the task"):
        WorkflowCall(function, "agent", where="config.yaml:3: workflow")


def test_a_parameter_that_nobody_gives_is_refused_before_anything_starts():
    async def run(data, tray):
        return tray

    with pytest.raises(ConfigError, match="'tray'"):
        WorkflowCall(run, "agent")


def test_a_generator_is_refused_before_anything_starts():
    def run(data):
        yield 1.0

    async def run_async(data):
        yield 1.0

    for function in (run, run_async):
        with pytest.raises(ConfigError, match=r"agent.* yields; expected a function that returns the reward"):
            WorkflowCall(function, "agent")


def test_a_plain_function_cannot_use_the_async_client():
    def run(data, *, base_url, http_client):
        raise AssertionError

    async def agent(data, *, http_client):
        return http_client

    @functools.wraps(agent)
    def decorated(*arguments, **options):
        return agent(*arguments, **options)

    with pytest.raises(
        ConfigError, match=r"^workflow: agent takes http_client, which is for async clients, but is not as"
    ):
        WorkflowCall(run, "agent")
    assert call(decorated) == "the http_client"
