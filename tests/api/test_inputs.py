"""What agents of frameworks are given of a task."""

import pytest

from agentrl_core.api.inputs import agent_input, as_messages, as_text
from agentrl_core.errors import DataError

ASKED = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "1+1?"}]


def test_messages_come_before_a_query():
    assert agent_input({"messages": ASKED, "query": "no"}) == ASKED
    assert agent_input({"query": "1+1?"}) == "1+1?"
    assert agent_input({"messages": [], "query": "1+1?"}) == "1+1?"


def test_another_key_may_be_named():
    assert agent_input({"query": "no", "question": "yes"}, input_key="question") == "yes"
    with pytest.raises(DataError, match="task 't' has no 'question', which the workflow's input_key names; it has id"):
        agent_input({"id": "t", "query": "no"}, input_key="question")


def test_a_row_without_input_is_told():
    with pytest.raises(DataError, match="task 't' has neither 'messages' nor 'query' for the agent; it has id, answer"):
        agent_input({"id": "t", "answer": "2"})


def test_one_form_is_made_of_the_other():
    assert as_messages("1+1?") == [{"role": "user", "content": "1+1?"}]
    assert as_messages(ASKED) == ASKED
    assert as_text("1+1?") == as_text(ASKED[1:]) == "1+1?"


@pytest.mark.parametrize(
    ("messages", "roles"),
    [
        (ASKED, "system, user"),
        ([ASKED[1], {"role": "assistant", "content": "2"}, ASKED[1]], "user, assistant, user"),
        ([{"role": "user", "content": [{"type": "text", "text": "1+1?"}]}], "user"),
    ],
)
def test_what_is_no_single_text_is_refused_and_nothing_is_left_out(messages, roles):
    told = rf"task 't': agents of this framework take one text; .* found `messages` with the roles {roles};"
    with pytest.raises(DataError, match=told):
        as_text(messages, task_id="t")
