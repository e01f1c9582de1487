import asyncio
import math

import pytest
from tests import reward_calls as calls

from agentrl_core import AsyncRewardWrapper
from agentrl_core.concurrency.processes import close_workers
from agentrl_core.errors import EpisodeError


@pytest.fixture(autouse=True)
def no_workers_left():
    yield
    close_workers()


def reward(wrapper, *args, **kwargs):
    return asyncio.run(wrapper(*args, **kwargs))


def wrap(function, **options):
    return AsyncRewardWrapper(function, **{"max_workers": 1, "max_retries": 0} | options)


def test_a_sync_function_gets_its_arguments_elsewhere_and_gives_a_float():
    result = reward(wrap(calls.exact), "2+2?", "4", [1], [2], answer="4", level=3)
    assert (result, type(result)) == (1.0, float)


def test_an_async_function_is_awaited_here():
    async def exact(completion, *, answer):
        return completion == answer

    assert reward(wrap(exact), "4", answer="4") == 1.0


def test_one_that_hangs_rejects_the_episode_or_gives_zero_as_in_areal(tmp_path):
    async def hang(path):
        await asyncio.Event().wait()

    for function in (calls.hang, hang):
        with pytest.raises(EpisodeError, match=r"hang gave no reward within timeout_seconds = 0\.15") as caught:
            reward(wrap(function, timeout_seconds=0.15), tmp_path / "begun")
        assert caught.value.reason == "reward_timeout"
        assert reward(wrap(function, timeout_seconds=0.15, on_timeout="zero"), tmp_path / "begun") == 0.0


def test_hung_calls_cost_no_worker(tmp_path):
    async def scenario():
        slow = wrap(calls.hang, timeout_seconds=0.15, on_timeout="zero")
        hung = [slow(tmp_path / "begun") for _ in range(3)]
        return await asyncio.gather(*hung, wrap(calls.give)(0.5))

    assert asyncio.run(scenario()) == [0.0, 0.0, 0.0, 0.5]


def test_what_it_raises_is_tried_again_and_raised_in_the_end(tmp_path):
    assert reward(wrap(calls.fail_twice, max_retries=2), tmp_path / "calls") == 1.0
    (tmp_path / "calls").unlink()
    with pytest.raises(ValueError, match="not yet"):
        reward(wrap(calls.fail_twice, max_retries=1), tmp_path / "calls")
    assert (tmp_path / "calls").read_text() == ".."


@pytest.mark.parametrize(("value", "reason"), [(math.nan, "not_finite"), ("1", "reward_type"), (None, "reward_type")])
def test_what_is_no_finite_number_rejects_the_episode(value, reason):
    with pytest.raises(EpisodeError) as caught:
        reward(wrap(calls.give, max_retries=3), value)
    assert caught.value.reason == reason


def test_what_no_other_process_could_call_is_refused_when_it_is_wrapped():
    with pytest.raises(TypeError, match=r"<lambda> cannot be sent to a worker process"):
        AsyncRewardWrapper(lambda text: 1.0)


@pytest.mark.parametrize("options", [{"timeout_seconds": 0}, {"max_retries": -1}, {"on_timeout": "zeros"}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValueError, match="expected timeout_seconds above 0"):
        AsyncRewardWrapper(calls.exact, **options)
