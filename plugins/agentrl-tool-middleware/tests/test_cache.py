import asyncio
import itertools

import pytest

from agentrl_core.api.tools import ToolEpisode, ToolRequest, ToolResult, ToolSpec
from agentrl_tool_middleware.cache import Cache, Kept

READ = ToolSpec(name="read", read_only=True)
WRITE = ToolSpec(name="write")


@pytest.fixture
def call(pass_through):
    numbers = itertools.count()

    def run(cache, spec=READ, state=None, arguments=None, **options):
        answer = lambda _: str(next(numbers))  # noqa: E731
        return pass_through(cache, arguments, name=spec.name, spec=spec, answer=answer, state=state, **options).text

    return run


def test_an_equal_call_of_the_episode_is_answered_from_memory(call):
    cache, state = Cache(), {}
    assert call(cache, state=state, arguments={"a": 1, "b": 2}) == "0"
    assert call(cache, state=state, arguments={"b": 2, "a": 1}) == "0"
    assert call(cache, state=state, arguments={"a": 2, "b": 2}) == "1"
    assert call(cache, state={}, arguments={"a": 1, "b": 2}) == "2"


def test_a_call_that_may_change_something_is_made_and_forgets_what_its_server_said(call):
    cache, state = Cache(), {}
    assert [call(cache, state=state), call(cache, state=state, server="other")] == ["0", "1"]
    assert [call(cache, WRITE, state=state), call(cache, WRITE, state=state)] == ["2", "3"]
    assert [call(cache, state=state), call(cache, state=state, server="other")] == ["4", "1"]


def test_what_was_read_during_a_change_is_forgotten(call):
    cache, state = Cache(), {}

    def change(_):
        assert call(cache, state=state) == "0"
        return "changed"

    async def tool(request):
        return ToolResult.of_text(await asyncio.to_thread(change, request))

    episode = ToolEpisode(record_id="r", task_id="t", data={})
    request = ToolRequest(episode=episode, server="s", tool=WRITE, name="write", arguments={}, state=state)
    assert asyncio.run(cache.call(request, tool)).text == "changed"
    assert call(cache, state=state) == "1"


def test_named_tools_are_kept_although_they_have_no_hint(call):
    cache, state = Cache(tools=["write"]), {}
    assert [call(cache, WRITE, state=state), call(cache, WRITE, state=state)] == ["0", "0"]


def test_with_the_scope_run_episodes_share_results(call):
    cache = Cache(scope="run")
    assert [call(cache, state={}), call(cache, state={})] == ["0", "0"]


def test_errors_are_not_kept(pass_through):
    cache, state = Cache(), {}
    broken = ToolResult.of_text("broken", is_error=True)
    assert pass_through(cache, spec=READ, state=state, answer=broken).text == "broken"
    assert pass_through(cache, spec=READ, state=state, answer="fine").text == "fine"


def test_memory_and_time_are_limited():
    now = [0.0]
    kept = Kept(200, lambda: now[0])
    result = ToolResult.of_text("x" * 50)
    for key in "abc":
        kept.add(key, result, 10)
        assert kept.get("a") is (result if key != "c" else kept.get("a"))
    assert kept.size <= 200
    assert [kept.get(key) for key in "ab"].count(None) == 1
    kept.add("large", ToolResult.of_text("x" * 500), 10)
    assert kept.get("large") is None
    assert kept.get("c") is result
    now[0] = 10.0
    assert kept.get("c") is None
    assert kept.get("a") is None
    assert kept.size == 0


@pytest.mark.parametrize("options", [{"ttl_s": 0}, {"max_bytes": 0}])
def test_limits_are_checked(options):
    with pytest.raises(ValueError, match=f"'{next(iter(options))}'"):
        Cache(**options)
