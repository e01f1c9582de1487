"""Task files: what a line may hold, and what is said about each line that cannot be a task."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.data.tasks import load_tasks
from agentrl_core.errors import DataError
from agentrl_core.types import Task


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write_tasks(*lines):
        content = b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
        (tmp_path / "tasks.jsonl").write_bytes(content)
        return "tasks.jsonl"

    return write_tasks


@pytest.fixture
def problems(write):
    def problems_of(*lines):
        with pytest.raises(DataError) as caught:
            load_tasks(write(*lines))
        return str(caught.value).splitlines()

    return problems_of


def row(**fields):
    return json.dumps({"id": "a", "query": "q", **fields})


def test_a_row_becomes_a_task_that_keeps_the_whole_row(write):
    tasks = load_tasks(write(row(id="t1", query="2+2?", answer="4", scorer="numeric", answer_schema="boxed", level=3)))
    messages = [{"role": "user", "content": "2+2?"}]
    assert tasks == [
        Task(
            id="t1",
            data={
                "id": "t1", "query": "2+2?", "answer": "4", "scorer": "numeric", "answer_schema": "boxed", "level": 3,
                "messages": messages,
            },
            answer="4",
            scorer="numeric",
            answer_schema="boxed",
        )
    ]  # fmt: skip


def test_what_a_row_leaves_out_has_its_default(write):
    (task,) = load_tasks(write('{"id": "a", "query": "q", "answer": null, "scorer": null, "answer_schema": null}'))
    assert (task.answer, task.scorer, task.answer_schema) == (None, None, "")


def test_messages_are_taken_as_they_are(write):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "q"}]}]
    (task,) = load_tasks(write(json.dumps({"id": "a", "messages": messages})))
    assert task.data == {"id": "a", "messages": messages}
    (both,) = load_tasks(write(row(messages=messages)))
    assert (both.data["messages"], both.data["query"]) == (messages, "q")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("4", "4"), (4, "4"), (0.5, "0.5"), (True, "true"), (["ü", 1], '["ü", 1]'), ("", ""), (0, "0"), (None, None),
    ],
)  # fmt: skip
def test_an_answer_is_text_whatever_json_value_it_was(write, answer, text):
    (task,) = load_tasks(write(row(answer=answer)))
    assert task.answer == text
    assert task.data["answer"] == answer


def test_an_id_may_be_a_number(write):
    (task,) = load_tasks(write(row(id=7)))
    assert (task.id, task.data["id"]) == ("7", "7")


def test_blank_lines_and_a_byte_order_mark_are_skipped(write):
    tasks = load_tasks(write(b"\xef\xbb\xbf" + row(id="a").encode(), "", "  \t\r", row(id="b") + "\r", ""))
    assert [task.id for task in tasks] == ["a", "b"]


def test_a_line_separator_inside_a_text_ends_no_line(write):
    (task,) = load_tasks(write('{"id": "a", "query": "x\u2028y\x85z"}'))
    assert task.data["query"] == "x\u2028y\x85z"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not valid JSON: Expecting property name enclosed in double quotes (column 2)"),
        (row(x=float("nan")), "not valid JSON: NaN is not a JSON number"),
        ("[" * 5000 + "]" * 5000, "not valid JSON: nested too deeply"),
        ("9" * 5000, "expected whole numbers that Python can read, found one with too many digits"),
        ("[1]", "expected a JSON object, found a list"),
        ('"a"', "expected a JSON object, found a text"),
        (b'{"id": "\xff"}', "expected UTF-8 text, found the byte 0xff"),
        ('{"query": "q"}', "id: missing; every task needs a unique id"),
        (row(id=None), "id: missing; every task needs a unique id"),
        (row(id=""), "id: expected a text that is not empty"),
        (row(id=1.5), "id: expected a text or a whole number, found the number 1.5"),
        (row(id=True), "id: expected a text or a whole number, found true or false"),
        ('{"id": "a"}', "expected `query` (a text) or `messages` (a list), found neither"),
        (row(query=3), "query: expected a text that is not empty, found the number 3"),
        (row(query=""), "query: expected a text that is not empty, found an empty text"),
        (row(messages="hi"), "messages: expected a list of messages, found a text"),
        (row(messages=[]), "messages: expected a list of messages, found an empty list"),
        (row(messages=["hi"]), "messages.0: expected an object with a role, found a text"),
        (row(messages=[{"role": "user"}, {"content": "x"}]), "messages.1.role: expected a text, found nothing"),
        (row(answer={"a": 1}), "answer: expected a text, a number, true, false or a list, found an object"),
        (row(scorer=["f1"]), "scorer: expected a text that is not empty, found a list"),
        (row(id="\ud800"), "id: expected text that UTF-8 can encode, found half of a surrogate pair"),
        (row(answer=["\ud800"]), "answer: expected text that UTF-8 can encode, found half of a surrogate pair"),
        (row(answer_schema=1), "answer_schema: expected a text that is not empty, found the number 1"),
        (row(answer_schema="<a>"), "answer_schema: expected a tag name or `boxed`, found '<a>'"),
    ],
)
def test_a_bad_line_is_named_with_its_number(problems, line, problem):
    assert problems(row(id="first"), "", line) == [f"tasks.jsonl:3: {problem}"]


def test_all_bad_lines_are_reported_together(problems):
    assert problems("{}", row(id="a"), "x", row(id="a"), row(id="a")) == [
        "tasks.jsonl:1: id: missing; every task needs a unique id",
        "tasks.jsonl:3: not valid JSON: Expecting value (column 1)",
        "tasks.jsonl:4: id 'a' was used before, on line 2",
        "tasks.jsonl:5: id 'a' was used before, on line 2",
    ]


def test_a_number_and_the_same_text_are_one_id(problems):
    assert problems(row(id=7), row(id="7")) == ["tasks.jsonl:2: id '7' was used before, on line 1"]


def test_a_file_full_of_bad_lines_says_how_many_more_there_are(problems):
    found = problems(*["{}"] * 50)
    assert len(found) == 21
    assert found[-1] == "tasks.jsonl: 30 more problems"


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_tasks_is_refused(problems, content):
    assert problems(content) == ["tasks.jsonl: no tasks in the file; expected one JSON object per line"]


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl: cannot read the task file: No such file or directory"):
        load_tasks(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="cannot read the task file: Is a directory"):
        load_tasks(tmp_path)


values = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
rows = st.lists(
    st.fixed_dictionaries(
        {"id": st.text(min_size=1), "query": st.text(min_size=1)},
        optional={"answer": values, "level": values, "tags": st.lists(values, max_size=3)},
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda item: item["id"],
)


@given(rows)
def test_rows_reach_the_agent_unchanged_and_in_order(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "tasks.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert [dict(task.data) for task in load_tasks(path)] == [
        {**item, "messages": [{"role": "user", "content": item["query"]}]} for item in rows
    ]
