"""agentrl trace diff: where two episodes part, and what else differs."""

import attrs
import pytest

from agentrl_core.cli.diff import compare
from agentrl_core.types import Episode, FinishReason, Interaction, Outcome, Record, Sampling, ToolCall, ToolOutcome


def call(seq, parent, prompt, output, **fields):
    return Interaction(
        id=f"call-{seq}", record_id="r", seq=seq, parent=parent, prompt_ids=prompt, output_ids=output,
        logprobs=(-1.0,) * len(output), versions=((0, len(output)),), messages=(), output={"role": "assistant"},
        started_at=float(seq), **fields,
    )  # fmt: skip


RECORD = Record(
    id="r", run_id="run", task_id="t", group_id="g", sample_index=0, outcome=Outcome.SCORED, reward=1.0,
    rewards={"call-1": 1.0},
)  # fmt: skip
ONE = Episode(record=RECORD, interactions=(call(0, None, (1, 2), (3, 4)), call(1, "call-0", (5,), (6, 7))))


def changed(place, **fields):
    items = list(ONE.interactions)
    items[place] = attrs.evolve(items[place], **fields)
    return attrs.evolve(ONE, interactions=tuple(items))


def renamed(episode):
    """The same episode as another record: other ids, and other seeds."""
    names = {item.id: f"other-{item.seq}" for item in episode.interactions}
    items = tuple(
        attrs.evolve(item, id=names[item.id], parent=names.get(item.parent), sampling=Sampling(seed=9))
        for item in episode.interactions
    )
    rewards = {names[name]: value for name, value in episode.record.rewards.items()}
    return Episode(record=attrs.evolve(episode.record, id="other", rewards=rewards), interactions=items)


def test_equal_episodes_have_no_difference_whatever_their_ids():
    found = compare(ONE, renamed(ONE))
    assert (found.parting, found.differences) == (None, [])


@pytest.mark.parametrize(
    ("other", "place"),
    [
        (changed(0, output_ids=(3, 9)), (1, "output", 3)),
        (changed(0, output_ids=(3, 4, 9)), (1, "output", 4)),
        (changed(1, prompt_ids=(8,)), (2, "prompt", 4)),
        (changed(1, prompt_ids=(5, 6), output_ids=(7,)), (2, "prompt", 7)),
        (changed(1, output_ids=(6, 8)), (2, "output", 6)),
        (attrs.evolve(ONE, interactions=ONE.interactions[:1]), (2, "missing", 0)),
    ],
)
def test_the_first_token_that_differs_is_found(other, place):
    for found in (compare(ONE, other), compare(other, ONE)):
        assert (found.parting.call, found.parting.part, found.parting.token) == place


def test_settings_and_results_are_compared():
    other = changed(0, sampling=Sampling(temperature=0.5), finish_reason=FinishReason.LENGTH, versions=((1, 2),))
    results = {"reward": 0.5, "rewards": {}, "outcome": Outcome.FAILED, "score_parts": {"f1": 0.5}, "marks": ("odd",)}
    other = attrs.evolve(other, record=attrs.evolve(RECORD, **results))
    assert compare(ONE, other).differences == [
        "call 1: temperature: 1.0 -> 0.5",
        "call 1: finish_reason: stop -> length",
        "call 1: versions: ((0, 2),) -> ((1, 2),)",
        "outcome: scored -> failed",
        "reward: 1.0 -> 0.5",
        "score_parts: {} -> {'f1': 0.5}",
        "marks: () -> ('odd',)",
        "rewards by call: {2: 1.0} -> {}",
    ]


def test_calls_of_other_models_are_compared_by_their_messages():
    judged = {"upstream": "judge", "prompt_ids": (), "output_ids": (), "logprobs": (), "versions": ()}
    one, other = changed(1, **judged), changed(1, **judged, output={"role": "assistant", "content": "no"})
    assert compare(one, one).parting is None
    assert compare(one, other).parting.part == "message"


def test_ids_of_tool_calls_do_not_make_messages_of_other_models_differ():
    def judged(name, place):
        function = {"name": "look", "arguments": place}
        asked = {"role": "assistant", "tool_calls": [{"id": name, "function": function}]}
        messages = (asked, {"role": "tool", "tool_call_id": name, "content": "a wall"})
        return changed(1, upstream="judge", prompt_ids=(), output_ids=(), logprobs=(), versions=(), messages=messages)

    assert compare(judged("a", "left"), judged("b", "left")).parting is None
    assert compare(judged("a", "left"), judged("a", "right")).parting.part == "message"


def with_tools(*calls):
    return attrs.evolve(ONE, tool_calls=calls)


def tool_call(seq, arguments, text="a wall", **fields):
    return ToolCall(
        id=f"tool-{seq}", record_id="r", seq=seq, name="look", arguments=arguments,
        shown=({"type": "text", "text": text},), **{"outcome": ToolOutcome.OK, **fields},
    )  # fmt: skip


def test_tool_calls_are_compared_up_to_the_first_other_call():
    one = with_tools(tool_call(0, {"at": 1}), tool_call(1, {"at": 2}), tool_call(2, {"at": 3}))
    same = with_tools(*(attrs.evolve(call, id="x", call_id="y", started_at=9.0) for call in one.tool_calls))
    assert compare(one, same).differences == []
    lost = tool_call(0, {"at": 1}, "gone", outcome=ToolOutcome.TOOL_ERROR)
    other = with_tools(lost, tool_call(1, "{at"), tool_call(2, {}))
    assert compare(one, other).differences == [
        "tool call 1 (look): outcome: ok -> tool_error",
        "tool call 1 (look): shown: 'a wall' -> 'gone'",
        'tool call 2: look({"at": 2}) -> look({at)',
    ]
    assert compare(one, with_tools(*one.tool_calls[:2])).differences == [
        'tool calls: 3 -> 2, the first that one lacks is look({"at": 3})'
    ]


def test_long_results_are_shown_around_the_first_difference():
    one, other = (with_tools(tool_call(0, {}, "a" * 500 + end + "c" * 500)) for end in ("b", "d"))
    (line,) = compare(one, other).differences
    assert len(line) < 250
    assert "b" in line.partition(" -> ")[0]
    assert "d" in line.partition(" -> ")[2]


def test_two_records_of_a_group_part_in_the_first_reply(agentrl, trained_project, monkeypatch):
    monkeypatch.chdir(trained_project)
    one, other = agentrl("runs", "show", "calm-otter", "--json").json["all_steps"][0]["records"][:2]
    done = agentrl("trace", "diff", one[:10], other)
    assert done.code == 1
    first, a, a_ids, b, b_ids, *rest = done.out.splitlines()
    assert first.startswith(
        f"A {one} (run calm-otter) and B {other} (run calm-otter): different at call 1, in its output"
    )
    assert ">>>" in a
    assert ">>>" in b
    assert a_ids != b_ids
    assert any(line.startswith("  reward: ") for line in rest)
    found = agentrl("trace", "diff", one, other, "--json").json
    assert found["parting"]["part"] == "output"
    at = found["parting"]["token"]
    assert found["parting"]["one_ids"][:at] == found["parting"]["other_ids"][:at]
    same = agentrl("trace", "diff", one, one, "--run", "calm-otter")
    assert (same.code, same.out.rpartition(": ")[2]) == (0, "the same calls, token by token\n")


def test_records_of_two_runs_are_compared(agentrl, make_run):
    make_run("calm-otter")
    make_run("keen-wren", reward=0.5)
    # The interactions of both runs are the same, but for their records.
    done = agentrl("trace", "diff", "calm-otter-aaaa", "keen-wren-aaaa")
    assert done.out.splitlines()[1:] == ["  reward: 1.0 -> 0.5", "  rewards by call: {5: 1.0} -> {5: 0.5}"]
    refused = agentrl("trace", "diff", "calm-otter-aaaa", "keen-wren-aaaa", "--run", "calm-otter")
    assert refused.code == 2
    assert "no record 'keen-wren-aaaa' in run calm-otter" in refused.err
