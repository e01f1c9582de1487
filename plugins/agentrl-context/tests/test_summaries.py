"""`discard_all` and `summarise` put a summary in the place of turns."""

import pytest

from agentrl_context.summaries import CLOSING, INSTRUCTION, OPENING, DiscardAll, Summarise
from agentrl_core.errors import ContextLengthError, RequestError
from agentrl_testing import ContextPolicySuite


class TestConformance(ContextPolicySuite):
    @pytest.fixture(
        params=[DiscardAll(), DiscardAll(summary="none"), DiscardAll(summary="cheap"), Summarise(), Summarise(keep=5)],
        ids=["discard_all", "no summary", "upstream", "summarise", "keep 5"],
    )
    def policy(self, request):
        return request.param


def task(summary):
    return {"role": "user", "content": f"task\n\n{OPENING}\n{summary}\n{CLOSING}"}


def test_everything_becomes_a_summary_by_the_policy(compact, history, asked):
    messages = history(3)
    assert compact(DiscardAll(max_summary_tokens=77), messages) == [messages[0], task("the summary")]
    ((question, max_tokens, upstream),) = asked.questions
    # It begins with the whole history, so it continues the exact tokens of the last call.
    assert question == [*messages, {"role": "user", "content": INSTRUCTION}]
    assert (max_tokens, upstream) == (77, "")


def test_the_newest_turns_stay_beside_a_summary(compact, history):
    messages = history(4)
    assert compact(Summarise(keep=1), messages) == [messages[0], task("the summary"), *messages[8:]]


def test_a_later_summary_takes_the_place_of_an_earlier_one(compact, history, asked):
    asked.answers = ["first", "second"]
    once = compact(DiscardAll(), history(2))
    twice = compact(DiscardAll(), [*once, *history(2)[2:]])
    assert twice == [once[0], task("second")]
    # The earlier summary is part of what is summed up.
    assert asked.questions[1][0][1] == task("first")


def test_without_a_summary_only_the_task_is_left(compact, history, asked):
    messages = history(3)
    assert compact(DiscardAll(summary="none"), messages) == messages[:2]
    assert asked.questions == []


def test_an_upstream_gets_the_conversation_as_one_text(compact, history, asked):
    policy = DiscardAll(summary="cheap")
    assert policy.upstreams == ("cheap",)
    compact(policy, history(1, result="42"))
    (([question], _, upstream),) = asked.questions
    assert upstream == "cheap"
    assert question["content"] == (
        "[system]\nsystem\n\n[user]\ntask\n\n[assistant]\nreply 0\n\n[assistant calls search]\n{}\n\n[tool]\n42\n\n"
        + INSTRUCTION
    )


def test_a_request_joins_the_users_own_message(compact, history, asked):
    compact(DiscardAll(), [*history(1), {"role": "user", "content": "and?"}])
    assert asked.questions[0][0][-1] == {"role": "user", "content": f"and?\n\n{INSTRUCTION}"}


def test_an_empty_summary_is_said_to_be_empty(compact, history, asked):
    asked.answers = ["  "]
    assert compact(DiscardAll(), history(1))[1] == task("(empty)")


def test_a_task_of_parts_gets_the_summary_as_a_part(compact, history, asked):
    asked.answers = ["first", "second"]
    messages = history(1)
    messages[1] = {"role": "user", "content": [{"type": "text", "text": "task"}]}
    once = compact(DiscardAll(), messages)
    assert [part["text"] for part in once[1]["content"]] == ["task", f"{OPENING}\nfirst\n{CLOSING}"]
    again = compact(DiscardAll(), [*once, *messages[2:]])
    assert [part["text"] for part in again[1]["content"]] == ["task", f"{OPENING}\nsecond\n{CLOSING}"]


def test_a_history_that_leaves_no_room_is_cut_before_the_policy_is_asked(compact, history, asked):
    messages = history(2, result="0123456789" * 1000)
    compact(DiscardAll(max_summary_tokens=1000), messages, prompt_tokens=18_000)
    question = asked.questions[0][0]
    lengths = [len(one["content"]) for one in question if one["role"] == "tool"]
    assert lengths[0] == lengths[1]
    # Half of the tokens fit, and so should half of the characters.
    assert sum(len(one["content"]) for one in question[:-1]) == pytest.approx(10_000, rel=0.01)
    assert [one["content"] for one in question if one["role"] == "assistant"] == ["reply 0", "reply 1"]


def test_a_history_that_is_still_too_long_is_cut_further(compact, history, asked):
    asked.errors = [ContextLengthError(prompt_tokens=count, context_length=10_000) for count in (20_000, 10_500)]
    compact(DiscardAll(), history(3, result="word " * 500))
    sizes = [sum(len(one["content"]) for one in question) for question, _, _ in asked.questions]
    assert sizes[1] < 0.6 * sizes[0]
    assert sizes[2] < 0.95 * sizes[1]


def test_if_nothing_helps_the_policy_is_asked_without_the_turns(compact, history, asked):
    asked.errors = [ContextLengthError(prompt_tokens=20_000, context_length=10_000)] * 8
    messages = history(3)
    compact(DiscardAll(), messages)
    assert asked.questions[-1][0] == [messages[0], {"role": "user", "content": f"task\n\n{INSTRUCTION}"}]


def test_other_errors_reach_the_agent(compact, history, asked):
    asked.errors = [RequestError(503, "paused", "try again")]
    with pytest.raises(RequestError, match="try again"):
        compact(DiscardAll(), history(1))
