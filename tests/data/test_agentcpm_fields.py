"""Names of task fields in AgentCPM's files: what each of them means, and what they never change."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.data.agentcpm_fields import ANSWER, QUERY, with_own_names
from agentrl_core.data.tasks import line_of, load_tasks

JSON = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text())


@pytest.mark.parametrize("query", QUERY)
@pytest.mark.parametrize("answer", ANSWER)
def test_each_name_gives_a_task(tmp_path, query, answer):
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"task_id": 7, query: "2+2?", answer: 4}), encoding="utf-8")
    (task,) = load_tasks(path)
    assert (task.id, task.data["query"], task.data["messages"][0]["content"], task.answer) == ("7", "2+2?", "2+2?", "4")
    assert line_of(path, "7") == 1


def test_the_first_user_message_of_a_raw_row_is_the_query():
    raw = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "2+2?"}], "answer": "4"}
    found = with_own_names({"id": "t", "raw": raw})
    assert (found["query"], found["answer"]) == ("2+2?", "4")


def test_a_means_an_answer_beside_q_only():
    assert with_own_names({"q": "2+2?", "a": "4"})["answer"] == "4"
    assert "answer" not in with_own_names({"query": "Add them.", "a": 3, "b": 4})


@given(
    st.dictionaries(
        st.sampled_from(["id", "task_id", "query", "messages", "answer", "a", "raw", *QUERY, *ANSWER]), JSON
    )
)
def test_what_a_row_has_stays_as_it_is(row):
    found = with_own_names(row)
    assert {name: found[name] for name, value in row.items() if value is not None} == {
        name: value for name, value in row.items() if value is not None
    }
    assert found.keys() - row.keys() <= {"id", "query", "answer"}
