"""The export formats: what they hold, and that the readers of others accept them."""

import io
import json

import attrs
import pytest
from hypothesis import given, settings
from tests.data.episodes import TASKS, episodes
from tests.data.test_export import RECORDS, TREE

from agentrl_core.api.stores import RunRow
from agentrl_core.batching.credit import is_trained
from agentrl_core.data.export.agentcpm import documents
from agentrl_core.data.export.atif import trajectories
from agentrl_core.data.export.branches import branches_of
from agentrl_core.data.export.chat import chat_rows
from agentrl_core.data.export.episodes import episode_row, read_episode, read_episodes
from agentrl_core.errors import DataError, UsageError
from agentrl_core.types import Episode, Interaction, Task, ToolCall, ToolOutcome

RUN = RunRow(
    id="run",
    created_at=0.0,
    status="finished",
    config={},
    components={"workflow": "agentrl-qa==1.2 agentrl_qa:Agent"},
)
EPISODE = Episode(record=RECORDS[0], interactions=TREE)
FEWER = settings(max_examples=40)
"""An episode is slow to draw."""
TASK = Task(id="t", data={"id": "t", "query": "How many?"}, answer="4")


# --- jsonl ---


@FEWER
@given(episodes(), TASKS)
def test_an_exported_episode_is_read_back_equal(episode, task):
    found = read_episode(json.loads(json.dumps(episode_row(episode, task))))
    assert (found.episode, found.task) == (episode, task)


def test_a_file_of_another_format_is_refused_with_its_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    good = episode_row(EPISODE, TASK)
    path.write_text(json.dumps(good) + "\n", encoding="utf-8")
    assert read_episodes(path)[0].episode == EPISODE
    earlier = {name: value for name, value in good.items() if name != "tool_calls"}
    earlier["record"] = {name: value for name, value in good["record"].items() if name != "marks"}
    path.write_text(json.dumps(earlier), encoding="utf-8")
    assert read_episodes(path)[0].episode == EPISODE
    unknown = {**good, "record": {**good["record"], "rewarded": 1}}
    path.write_text("\n".join(map(json.dumps, [good, {"messages": []}, unknown])), encoding="utf-8")
    with pytest.raises(DataError) as raised:
        read_episodes(path)
    second, third = str(raised.value).splitlines()
    assert "rows.jsonl:2: expected a record of `agentrl trace export --format jsonl`" in second
    assert "rows.jsonl:3" in third
    assert "rewarded" in third


# --- parquet ---


@settings(max_examples=15)
@given(episodes(), TASKS)
def test_parquet_holds_the_same_as_jsonl(tmp_path_factory, episode, task):
    pytest.importorskip("pyarrow", reason="55 MB: pip install 'agentrl-core[parquet]' to test the format parquet")
    from agentrl_core.data.export.parquet import read_parquet, write_parquet

    path = tmp_path_factory.mktemp("parquet") / "episodes.parquet"
    with path.open("wb") as file:
        write_parquet([episode_row(episode, task)] * 65, file)
    found = read_parquet(path)
    assert len(found) == 65
    assert all((item.episode, item.task) == (episode, task) for item in found)


def test_parquet_holds_lone_surrogates_as_escapes(tmp_path):
    pytest.importorskip("pyarrow", reason="55 MB: pip install 'agentrl-core[parquet]' to test the format parquet")
    from agentrl_core.data.export.parquet import read_parquet, write_parquet

    said = ({"role": "user", "content": "bad \udc80 byte"},)
    calls = (attrs.evolve(TREE[0], messages=said), *TREE[1:])
    episode = Episode(record=attrs.evolve(RECORDS[0], detail="bad \udc80 byte"), interactions=calls)
    with (tmp_path / "rows").open("wb") as file:
        write_parquet([episode_row(episode, TASK)], file)
    (found,) = read_parquet(tmp_path / "rows")
    assert found.episode.interactions == calls
    assert found.episode.record.detail == "bad \\udc80 byte"


def test_without_pyarrow_the_extra_is_named(monkeypatch):
    import sys

    from agentrl_core.data.export.parquet import write_parquet

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"needs pyarrow.*install.*agentrl-core\[parquet\]"):
        write_parquet([], io.BytesIO())


# --- chat ---


def test_chat_has_the_messages_of_each_branch_in_openais_form():
    first, second, *_ = rows = list(chat_rows(EPISODE))
    assert len(rows) == 2
    assert [message["content"] for message in first["messages"]] == ["u0", "a0", "u1", "a1"]
    assert [message["content"] for message in second["messages"]] == ["u0", "a0", "u2", "a2", "u3", "a3"]
    assert (second["record"], second["branch"], second["reward"], second["outcome"]) == ("r0", 1, 0.5, "scored")


@FEWER
@given(episodes())
def test_every_chat_is_in_openais_form(episode):
    for row in chat_rows(episode):
        json.dumps(row, allow_nan=False)
        for message in row["messages"]:
            allowed = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"}
            assert set(message) <= allowed
            assert message["content"] is not None or message["tool_calls"]
            for call in message.get("tool_calls", ()):
                assert call["id"]
                assert call["type"] == "function"
                assert isinstance(call["function"]["arguments"], str)


# --- atif ---


@FEWER
@given(episodes(), TASKS)
def test_every_trajectory_is_valid_and_has_each_sampled_token_once(episode, task):
    atif = pytest.importorskip("atif", reason="atif is a dependency of the tests: pip install atif")
    tokens, names = [], []
    for row in trajectories(episode, task, RUN):
        found = atif.Trajectory.model_validate_json(json.dumps(row))
        names.append(found.trajectory_id)
        own = [step for step in found.steps if step.metrics is not None and not step.is_copied_context]
        sampled = [step for step in own if step.metrics.completion_token_ids is not None]
        tokens += [(step.extra["interaction"], step.metrics) for step in sampled]
    assert len(set(names)) == len(names)
    sampled = [item for item in episode.interactions if not item.upstream]
    assert sorted(name for name, _ in tokens) == [item.id for item in sampled]
    by_id = dict(tokens)
    for item in sampled:
        metrics = by_id[item.id]
        assert tuple(metrics.prompt_token_ids + metrics.completion_token_ids) == episode.full_ids(item)
        assert tuple(metrics.completion_token_ids) == item.output_ids
        assert tuple(metrics.logprobs) == item.logprobs


def test_a_trajectory_joins_tools_with_their_results_and_marks_what_is_copied():
    first, second = trajectories(EPISODE, TASK, RUN)
    assert first["agent"] == {"name": "agentrl-qa==1.2 agentrl_qa:Agent", "version": "1.2", "model_name": "default"}
    assert (first["session_id"], first["trajectory_id"], second["trajectory_id"]) == ("r0", "r0.0", "r0.1")
    assert [step.get("is_copied_context", False) for step in first["steps"]] == [False] * 4
    assert [step.get("is_copied_context", False) for step in second["steps"]] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    assert second["steps"][5]["extra"]["trained"] is False
    assert second["steps"][3]["metrics"]["prompt_token_ids"] == [1, 2, 3, 4, 7, 8]
    assert second["final_metrics"]["total_completion_tokens"] == 3
    assert first["extra"]["task"]["answer"] == "4"


def answered_and_left(*, outcome=ToolOutcome.OK, error=""):
    """An episode whose first turn asks for a tool and is answered, and whose last turn asks and is not."""

    def turn(seq, parent, messages, at):
        asked = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        output = {"role": "assistant", "content": None, "tool_calls": [asked]}
        return Interaction(
            id=f"call-{seq}", record_id="r0", seq=seq, parent=parent, prompt_ids=(1,), output_ids=(2,),
            logprobs=(-0.5,), versions=((0, 1),), messages=messages, output=output, finished_at=at,
        )  # fmt: skip

    def tool_call(seq, text, at):
        return ToolCall(
            id=f"tool-{seq}", record_id="r0", seq=seq, call_id="c", name="look", arguments={"at": 1}, server="fields",
            tool="look", outcome=outcome, error=error, shown=({"type": "text", "text": text},), started_at=at,
            finished_at=at + 0.5,
        )  # fmt: skip

    answer = {"role": "tool", "tool_call_id": "c", "content": "a wall"}
    turns = (turn(0, None, ({"role": "user", "content": "u"},), 1.0), turn(1, "call-0", (answer,), 3.0))
    return Episode(
        record=RECORDS[0], interactions=turns, tool_calls=(tool_call(0, "a wall", 2.0), tool_call(1, "a door", 4.0))
    )


def test_a_trajectory_says_how_tool_calls_ended_and_has_the_results_that_no_model_read():
    atif = pytest.importorskip("atif", reason="atif is a dependency of the tests: pip install atif")
    (row,) = trajectories(answered_and_left(outcome=ToolOutcome.TOOL_ERROR, error="no field"), TASK, RUN)
    atif.Trajectory.model_validate_json(json.dumps(row))
    _, first, last = row["steps"]
    facts = {"outcome": "tool_error", "error": "no field", "server": "fields", "tool": "look", "seconds": 0.5}
    facts["attempts"] = 1
    results = first["observation"]["results"]
    assert results == [{"content": "a wall", "source_call_id": "c", "extra": facts}]
    (result,) = last["observation"]["results"]
    assert result == {"content": [{"type": "text", "text": "a door"}], "source_call_id": "c", "extra": facts}


# --- agentrl ---

COLLECTIONS = {
    "Task": "tid split epoch added_step description num_samples scores status system_prompt query_prompt answer_schema "
    "task_answer scorer task_id turns",
    "Record": "_id task split traj_id traj meta_infos status score trained_count last_trained_step",
    "DispatchedSamplingTask": "_id task traj_id req_type request response sampled_from priority creat_time finish_time "
    "score advantage created_at_step is_minio_managed task_type status token_ids",
    "DBRecordData": "split fetched messages tools scores advantages created_at_step reward step logprobs record_id",
}
"""The documents of AgentCPM's database and their fields; `token_ids` is added here."""
STATUS = {
    "Task": {"created", "running", "waiting", "completed"},
    "Record": {"created", "running", "completed", "failed", "scoring", "scored", "ready", "abandoned"},
    "DispatchedSamplingTask": {
        "pending", "running", "completed", "failed", "toolfailed", "formaterror", "repeaterror", "cancelled", "dropped",
    },
}  # fmt: skip


@FEWER
@given(episodes(), TASKS)
def test_documents_have_the_fields_of_agentcpms_database(episode, task):
    made = list(documents(episode, task, group=[episode.record], is_first=True, trained_steps=[1, 2], token_text=str))
    json.dumps(made, allow_nan=False)
    found = {}
    for line in made:
        name, document = line["collection"], line["document"]
        assert set(document) == set(COLLECTIONS[name].split())
        assert document.get("status", "none") in STATUS.get(name, {"none"})
        found.setdefault(name, []).append(document)
    assert [len(found.get(name, ())) for name in COLLECTIONS] == [
        1, 1, len(episode.interactions), len(list(branches_of(episode)))
    ]  # fmt: skip
    (record,) = found["Record"]
    assert record["task"] == found["Task"][0]["tid"]
    assert record["traj"] == [item["_id"] for item in found.get("DispatchedSamplingTask", ())]
    assert (record["trained_count"], record["last_trained_step"]) == (2, 2)
    calls = {item.id: item for item in episode.interactions}
    trained = 0
    for row in found.get("DBRecordData", ()):
        assert set(row["logprobs"]) == set(row["scores"]) == set(row["created_at_step"])
        assert all(row["messages"][int(index)]["role"] == "assistant" for index in row["logprobs"])
        trained += len(row["logprobs"])
    assert trained == sum(item.trainable for item in calls.values())
    assert trained >= sum(map(is_trained, calls.values()))


def test_documents_name_the_tool_calls_and_those_that_failed():
    def made(episode):
        lines = documents(episode, TASK, group=[episode.record], is_first=False, token_text=str)
        by_name = {}
        for line in lines:
            by_name.setdefault(line["collection"], []).append(line["document"])
        return by_name

    found = made(answered_and_left(outcome=ToolOutcome.NOT_SENT, error="no server"))
    first, second = found["Record"][0]["meta_infos"]["tool_calls"]
    assert (first["id"], first["name"], first["arguments"], first["seconds"]) == ("c", "look", {"at": 1}, 0.5)
    assert (second["outcome"], second["error"]) == ("not_sent", "no server")
    assert [item["status"] for item in found["DispatchedSamplingTask"]] == ["toolfailed"] * 2
    assert [item["status"] for item in made(answered_and_left())["DispatchedSamplingTask"]] == ["completed"] * 2


def test_a_group_has_one_task_document():
    second = list(documents(EPISODE, TASK, group=RECORDS[:3], is_first=False, token_text=str))
    assert "Task" not in {line["collection"] for line in second}
    first, *_ = documents(EPISODE, TASK, group=RECORDS[:3], is_first=True, token_text=str)
    assert (first["document"]["num_samples"], first["document"]["scores"]) == (3, [0.5, 1.0, 1.0])
    assert first["document"]["task_answer"] == {"answer": "4", "aug_answer": [], "query": "How many?"}
