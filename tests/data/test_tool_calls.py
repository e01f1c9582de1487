"""Each tool call belongs to the LLM call that asked for it, by its id, or else by time."""

from agentrl_core.data.tool_calls import by_asking_call
from agentrl_core.types import Episode, Interaction, Record, ToolCall, ToolOutcome


def llm_call(seq, *ids, finished_at):
    asked = [{"id": name, "function": {"name": "look", "arguments": "{}"}} for name in ids]
    return Interaction(
        id=f"call-{seq}", record_id="r", seq=seq, prompt_ids=(), output_ids=(), logprobs=(), versions=(), messages=(),
        output={"role": "assistant", **({"tool_calls": asked} if asked else {})}, finished_at=finished_at,
    )  # fmt: skip


def tool_call(seq, call_id="", *, at):
    return ToolCall(
        id=f"tool-{seq}", record_id="r", seq=seq, call_id=call_id, name="look", arguments={}, outcome=ToolOutcome.OK,
        started_at=at, finished_at=at + 1,
    )  # fmt: skip


def placed(*calls):
    """Two LLM calls, ended at 1 and 3, of which the second asks again with an id of the first."""
    record = Record(id="r", run_id="run", task_id="t", group_id="g", sample_index=0)
    interactions = (llm_call(0, "a", "b", finished_at=1.0), llm_call(1, "a", finished_at=3.0))
    found = by_asking_call(Episode(record=record, interactions=interactions, tool_calls=calls))
    return {place: [call.seq for call in calls] for place, calls in found.items()}


def test_an_id_decides_whatever_came_in_between():
    assert placed(tool_call(0, "b", at=9.0), tool_call(1, "a", at=9.0)) == {"call-0": [0], "call-1": [1]}


def test_an_id_that_came_twice_is_that_of_the_last_call_before():
    assert placed(tool_call(0, "a", at=2.0), tool_call(1, "a", at=3.0)) == {"call-0": [0], "call-1": [1]}


def test_an_id_counts_even_if_clocks_differ():
    assert placed(tool_call(0, "a", at=0.5)) == {"call-0": [0]}


def test_a_call_without_a_known_id_belongs_to_the_last_call_before_it():
    found = placed(tool_call(0, at=0.5), tool_call(1, at=2.0), tool_call(2, "other", at=4.0), tool_call(3, at=4.0))
    assert found == {None: [0], "call-0": [1], "call-1": [2, 3]}
