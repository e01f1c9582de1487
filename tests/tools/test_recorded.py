"""The tools of a replay answer from the record: each recorded call once, and nothing that was not recorded."""

import asyncio

import attrs
import pytest

from agentrl_core.api.tools import ToolEpisode
from agentrl_core.config.component import Component
from agentrl_core.config.sampling_sections import ToolsConfig
from agentrl_core.errors import EnvironmentLostError, RunError
from agentrl_core.tools.recorded import RecordedToolbox
from agentrl_core.types import Episode, Interaction, Outcome, Record, ToolCall, ToolOutcome

CONFIG = ToolsConfig(servers=(Component("not-installed"),), middleware=(Component("neither"),), max_calls=1)
RECORD = Record(
    id="r", run_id="run", task_id="t", group_id="g", sample_index=0, outcome=Outcome.SCORED, reward=1.0
)  # fmt: skip
EPISODE = ToolEpisode(record_id="r", task_id="t", data={})


def tool_call(seq, arguments, text="", **fields):
    return ToolCall(
        id=f"tool-{seq}", record_id="r", seq=seq, name="look", arguments=arguments, server="fields",
        shown=({"type": "text", "text": text},), **{"outcome": ToolOutcome.OK, **fields},
    )  # fmt: skip


def toolbox(*calls, interactions=(), **record):
    record = attrs.evolve(RECORD, **record)
    return RecordedToolbox(CONFIG, Episode(record=record, interactions=interactions, tool_calls=calls))


def replayed(box, work):
    """Run `work(tools)` with the recorded tools; return its result, and the marks."""
    marks = []

    async def keep(_):
        raise AssertionError("a replay keeps no rows")

    async def scenario():
        await box.start()
        tools = box.open(EPISODE, keep=keep, mark=marks.append)
        try:
            return await work(tools)
        finally:
            await tools.close()
            await box.close()

    return asyncio.run(scenario()), marks


def test_results_come_by_name_and_arguments_in_any_order():
    first, second, third = (tool_call(0, {"at": 1}, "a"), tool_call(1, {"at": 2}, "b"), tool_call(2, {"at": 1}, "c"))
    box = toolbox(first, second, third)

    async def work(tools):
        calls = [{"id": "x", "function": {"name": "look", "arguments": text}} for text in ('{"at": 2}', '{"at":1}')]
        messages = await tools.call_all({"role": "assistant", "tool_calls": calls})
        return [message["content"] for message in messages], (await tools.call("look", {"at": 1})).id

    (texts, name), marks = replayed(box, work)
    assert (texts, name, marks) == (["b", "a"], "call_tool-2", [])
    assert (box.answered, box.left, box.diverged.done()) == (3, [], False)


def test_failed_calls_fail_again_and_mark_the_record():
    box = toolbox(tool_call(0, "{at", "Error: no JSON", outcome=ToolOutcome.INVALID_ARGUMENTS))
    shown, marks = replayed(box, lambda tools: tools.call("look", "{at"))
    assert (shown.outcome, shown.result.is_error, shown.result.text) == (
        ToolOutcome.INVALID_ARGUMENTS,
        True,
        "Error: no JSON",
    )
    assert marks == ["invalid_arguments"]


@pytest.mark.parametrize("calls", [(tool_call(0, {}, outcome=ToolOutcome.ENVIRONMENT_LOST, error="gone"),), ()])
def test_a_lost_environment_is_lost_again(calls):
    box = toolbox(*calls, outcome=Outcome.REJECTED, reason="environment_lost")

    async def work(tools):
        with pytest.raises(EnvironmentLostError):
            await (tools.call("look", {}) if calls else tools.specs())
        return tools.lost

    lost, marks = replayed(box, work)
    assert (lost.reason, marks) == ("environment_lost", ["environment_lost"])


def test_a_call_that_was_not_recorded_ends_the_replay_with_its_name():
    box = toolbox(tool_call(3, {"at": 1}))

    async def work(tools):
        with pytest.raises(RunError):
            await tools.call("look", {"at": 2})
        with pytest.raises(RunError):
            await tools.specs()

    replayed(box, work)
    assert box.diverged.result() == (
        'a tool call was not recorded: look({"at":2}); the next recorded one is tool call [3] look({"at":1})'
    )
    assert isinstance(box.fatal, RunError)


def test_a_call_that_the_agent_gave_up_is_waited_for_again():
    box = toolbox(tool_call(0, {}, outcome=ToolOutcome.CANCELLED))

    async def work(tools):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tools.call("look", {}), 0.01)

    replayed(box, work)
    assert not box.diverged.done()


def test_a_call_that_the_end_of_the_episode_cut_ends_the_replay():
    box = toolbox(tool_call(0, {}, outcome=ToolOutcome.CANCELLED), outcome=Outcome.TIMED_OUT)

    async def work(tools):
        with pytest.raises(RunError):
            await tools.call("look", {})

    replayed(box, work)
    assert box.diverged.result() == "tool call [0] look({}) had not ended when the recorded episode did"


def test_the_tools_are_those_that_the_policy_was_offered():
    functions = [{"name": "look", "description": "See.", "parameters": {"type": "object"}}, {"name": "walk"}]
    offered = tuple({"type": "function", "function": function} for function in functions)
    judge = ({"type": "function", "function": {"name": "grade"}},)

    def llm_call(seq, tools, upstream=""):
        return Interaction(
            id=str(seq), record_id="r", seq=seq, prompt_ids=(), output_ids=(), logprobs=(), versions=(), messages=(),
            output={}, tools=tools, upstream=upstream,
        )  # fmt: skip

    calls = (llm_call(0, judge, "judge"), llm_call(1, offered[:1]), llm_call(2, offered))
    found, _ = replayed(toolbox(interactions=calls), lambda tools: tools.as_openai())
    assert found[0] == offered[0]
    assert [item["function"]["name"] for item in found] == ["look", "walk"]
