"""agentrl trace: episodes listed and shown, of a live run too, and runs found by any name."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import struct

import attrs
import pytest

from agentrl_core.cli.episode_text import episode_lines
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Episode, Outcome, Record, Task, ToolCall, ToolOutcome
from agentrl_core.weights.witness import witness


def test_episodes_are_listed_with_outcome_reward_and_tokens(agentrl, make_run):
    make_run("calm-otter")
    result = agentrl("trace", "list", "calm-otter")
    header, scored, failed = result.out.splitlines()
    assert result.code == 0
    assert " ".join(header.split()) == "RECORD STEP SET TASK SAMPLE OUTCOME REWARD CALLS PROMPT SAMPLED SECONDS REPLY"
    row = ["calm-otter-aaaa", "0", "train", "maze", "0", "scored", "1.000", "5", "50", "20", "1.50", "done"]
    assert scored.split() == row
    assert " ".join(failed.split()) == "calm-otter-bbbb 0 eval hall 1 (try 2) failed (ValueError) - 0 0 0 -"


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ((), ["calm-otter-aaaa", "calm-otter-bbbb"]),
        (("--task", "hall"), ["calm-otter-bbbb"]),
        (("--outcome", "scored"), ["calm-otter-aaaa"]),
        (("--limit", "1"), ["calm-otter-bbbb"]),
        (("--limit", "0"), ["calm-otter-aaaa", "calm-otter-bbbb"]),
        (("--task", "hall", "--outcome", "scored"), []),
        (("--min-reward", "1"), ["calm-otter-aaaa"]),
        (("--max-reward", "0.5"), []),
        (("--sort", "reward"), ["calm-otter-aaaa", "calm-otter-bbbb"]),  # without a reward: last
        (("--sort", "-reward"), ["calm-otter-aaaa", "calm-otter-bbbb"]),
        (("--sort", "tokens", "--limit", "1"), ["calm-otter-bbbb"]),
        (("--sort=-tokens", "--limit", "1"), ["calm-otter-aaaa"]),
        (("--sort", "-time", "--limit", "0"), ["calm-otter-aaaa", "calm-otter-bbbb"]),
    ],
)
def test_episodes_are_filtered(agentrl, make_run, options, found):
    make_run("calm-otter")
    assert [row["id"] for row in agentrl("trace", "list", "calm-otter", "--json", *options).json] == found


def test_episodes_as_json_have_all_fields(agentrl, make_run):
    make_run("calm-otter")
    first, second = agentrl("trace", "list", "--json").json
    assert (first["calls"], first["prompt_tokens"], first["output_tokens"]) == (5, 50, 20)
    assert (first["reward"], first["score_parts"]) == (1.0, {"near": 0.5})
    assert (second["outcome"], second["calls"]) == ("failed", 0)


def test_what_is_not_shown_is_said(agentrl, make_run):
    make_run("calm-otter")
    assert "1 earlier ones are not shown" in agentrl("trace", "list", "--limit", "1").out
    assert "no episodes that match" in agentrl("trace", "list", "--task", "nowhere").out


def test_the_worst_and_the_best_come_first_as_asked(agentrl, make_run, tmp_path):
    folder = make_run("calm-otter", reward=0.5)
    store = SQLiteStore(path=folder / "agentrl.db")
    rewards = {"c": 0.0, "d": 1.0, "e": None}

    async def add():
        for number, (name, reward) in enumerate(rewards.items()):
            record = Record(
                id=f"calm-otter-{name}", run_id="calm-otter", task_id="maze", group_id="calm-otter-g0", sample_index=1
            )
            record = attrs.evolve(record, attempt=number, started_at=200.0)
            await store.add_record(record)
            outcome = Outcome.SCORED if reward is not None else Outcome.TIMED_OUT
            await store.finish_record(attrs.evolve(record, finished_at=201.0, outcome=outcome, reward=reward))
        await store.close()

    asyncio.run(add())

    def listed(*options):
        return [row["id"][11:] for row in agentrl("trace", "list", "--json", *options).json]

    assert listed("--sort", "reward") == ["c", "aaaa", "d", "bbbb", "e"]
    assert listed("--sort", "-reward", "--limit", "2") == ["d", "aaaa"]
    assert listed("--min-reward", "0.5", "--sort=-reward") == ["d", "aaaa"]
    assert listed("--max-reward", "0.5", "--min-reward", "0.1") == ["aaaa"]
    assert "3 others are not shown" in agentrl("trace", "list", "--sort", "reward", "--limit", "2").out


def test_a_record_of_any_run_is_found(agentrl, make_run, tmp_path):
    make_run("calm-otter")
    newest = make_run("keen-wren")
    os.utime(newest / "agentrl.db", (2e9, 2e9))
    shown = agentrl("trace", "show", "calm-otter-a")
    assert shown.out.startswith("record calm-otter-aaaa: scored")
    assert "calm-otter, task maze" in shown.out
    missing = agentrl("trace", "show", "calm-otter-x")
    assert missing.code == 2
    assert "no record 'calm-otter-x' in any run of runs (did you mean calm-otter-" in missing.err
    (tmp_path / "runs" / "torn").mkdir()
    (tmp_path / "runs" / "torn" / "agentrl.db").write_text("no database", encoding="utf-8")
    assert agentrl("trace", "show", "calm-otter-a").out == shown.out  # whatever is broken elsewhere
    assert "torn" in agentrl("trace", "show", "nowhere").err


def test_an_unknown_outcome_is_refused_with_the_known_ones(agentrl, make_run):
    make_run("calm-otter")
    result = agentrl("trace", "list", "--outcome", "good")
    assert result.code == 2
    assert "timed_out" in result.err


EPISODE = """\
record calm-otter-aaaa: scored, reward 1
  run       calm-otter, task maze, group calm-otter-g0, sample 0
  reference (3, 4)
  answer    done
            (the whole reply, because it has no <answer>…</answer>)
  scorer    0.5 (near 0.5)
  scoring   judge:
              asked: ["a", 1]
              calls:
                1:
                  reply: two
                      lines
              cost: null
  tokens    5 calls, 50 new prompt tokens, 20 sampled, 1.50 s
  fidelity  unknown: no digests were stored for the 16 trained tokens

[0] call-0  start, stop, version 3, prompt 10 (10 new, 7 cached), sampled 4
    tools     move, look
    system    Walk.
    user      Go to
              (3, 4).
    assistant calls move({"to": "north"})
              calls move({"to": "east"})

[1] call-1  after [0], stop, version 3-4, prompt 24 (10 new, 0 cached), sampled 4
    tool      a wall\\x1b[2J
    assistant Hm.
              calls move({"to": "south"})

    [2] call-2  after [1], length, version 3, prompt 38 (10 new, 0 cached), sampled 4, malformed tool calls 1
        tool      a wall\\x1b[2J
        assistant lost

    [3] call-3  after [1], stop, version 3, prompt 38 (10 new, 0 cached), sampled 4
        user      there
                  {"type": "image"}
        assistant

    [4] call-4  after [3], stop, version 3, prompt 52 (10 new, 0 cached), sampled 4, reward 1, not trained
        asked for {"temperature": 0.2}
        assistant done
"""


@pytest.mark.parametrize(
    ("judged", "lines"),
    [
        ({"answer": "4", "from": "schema", "looked_for": "<a>…</a>"}, ["answer    4", "(inside <a>…</a>)"]),
        ({"answer": "4", "from": "workflow", "looked_for": "<a>…</a>"}, ["answer    4", "(returned by the workflow)"]),
        (
            {"answer": "", "from": "nowhere", "looked_for": "<a>…</a>"},
            ["answer    (empty: the reply has no <a>…</a>, which the task's answer_schema asks for)"],
        ),
        (
            {"answer": "", "from": "reply", "looked_for": "<a>…</a>"},
            ["answer    (empty: the last reply has no text besides thoughts and tool calls)"],
        ),
    ],
)
def test_a_shown_episode_says_what_was_judged_and_why_nothing_was(judged, lines):
    record = Record(id="r", run_id="run", task_id="t", group_id="g", sample_index=0, score_details={"judged": judged})
    shown = [line.text.strip() for line in episode_lines(Episode(record=record, interactions=()), None)]
    start = shown.index(lines[0])
    assert shown[start : start + len(lines)] == lines
    assert not any(line.startswith("scoring") for line in shown)


def test_an_episode_is_shown_as_a_tree_with_its_numbers(agentrl, make_run):
    make_run("calm-otter")
    assert agentrl("trace", "show", "calm-otter-aa").out == EPISODE


TOOL_CALLS = """\
    tool [0] move  ok, 0.25 s, server maze, session
        arguments {"to": "north"}
        shown     a wall\\x1b[2J
    tool [1] move  tool_error, 1.50 s, server maze, session, 2 attempts, changed by shorten
        arguments {"to": "east"}
        sent      step({"to": "e"})
        error     no such \\x07 field
        shown     a wall
        raw       a high wall
"""


def add_tool_calls(folder):
    """Add two tool calls that the first LLM call asked for, and one long one after the last."""

    def call(seq, to, **fields):
        default = {"isolation": "session", "outcome": ToolOutcome.OK, "started_at": 90.5, "finished_at": 90.75}
        default |= {"call_id": "c", "name": "move", "tool": "move", "server": "maze"}
        arguments = {"to": to}
        record = "calm-otter-aaaa"
        return ToolCall(id=f"t{seq}", record_id=record, seq=seq, arguments=arguments, **{**default, **fields})

    def text(value):
        return ({"type": "text", "text": value},)

    changed = {"sent": {"to": "e"}, "tool": "step", "attempts": 2, "middleware": ("shorten",), "finished_at": 92.0}
    failed = {"outcome": ToolOutcome.TOOL_ERROR, "error": "no such \x07 field"}
    calls = [
        call(0, "north", shown=text("a wall\x1b[2J")),
        call(1, "east", shown=text("a wall"), raw=text("a high wall"), **changed, **failed),
        call(2, "home", call_id="", started_at=99.0, finished_at=99.0, shown=text("x" * 5000)),
    ]

    async def add():
        store = SQLiteStore(path=folder / "agentrl.db")
        for item in calls:
            await store.add_tool_call("calm-otter", item)
        await store.close()

    asyncio.run(add())
    with contextlib.closing(sqlite3.connect(folder / "agentrl.db")) as db:
        db.execute("UPDATE interactions SET finished_at = 90.0 + seq")
        db.execute("UPDATE records SET marks = '[\"tool_error\", \"odd\\u001b\"]' WHERE id = 'calm-otter-aaaa'")
        db.commit()


def test_tool_calls_are_shown_at_their_place(agentrl, make_run):
    add_tool_calls(make_run("calm-otter"))
    shown = agentrl("trace", "show", "calm-otter-aaaa").out
    before, _, after = shown.partition(TOOL_CALLS)
    assert before.endswith('calls move({"to": "east"})\n')
    assert after.startswith("\n[1] call-1")
    assert "marks     tool_error, odd\\x1b" in before
    assert "5 calls, 3 tool calls, 50 new" in before
    last = shown[shown.index("tool [2]") :]
    assert "… (4400 more characters, see --full)" in last
    assert "x" * 601 not in last
    assert "x" * 5000 in agentrl("trace", "show", "calm-otter-aaaa", "--full").out
    found = agentrl("trace", "show", "calm-otter-aaaa", "--json").json
    assert [item["id"] for item in found["tool_calls"]] == ["t0", "t1", "t2"]
    assert found["tool_calls"][1]["raw"] == [{"type": "text", "text": "a high wall"}]


@pytest.mark.parametrize(
    ("outcome", "attempts"), [(ToolOutcome.INVALID_ARGUMENTS, 0), (ToolOutcome.BLOCKED, 0), (ToolOutcome.NOT_SENT, 3)]
)
def test_a_call_that_was_not_sent_is_not_shown_as_sent(outcome, attempts):
    record = Record(id="r", run_id="run", task_id="t", group_id="g", sample_index=0)
    call = ToolCall(
        id="c",
        record_id="r",
        seq=0,
        name="ev_add",
        tool="add",
        arguments={"a": "2"},
        outcome=outcome,
        attempts=attempts,
    )
    shown = "\n".join(
        line.text for line in episode_lines(Episode(record=record, interactions=(), tool_calls=(call,)), None)
    )
    assert f"ev_add  {outcome.value}" in shown
    assert " sent " not in shown


def test_marks_are_listed_counted_and_filtered(agentrl, make_run):
    add_tool_calls(make_run("calm-otter"))
    assert "scored [tool_error, odd\\x1b]" in agentrl("trace", "list", "calm-otter").out
    marked = agentrl("trace", "list", "calm-otter", "--mark", "tool_error", "--json").json
    assert [row["id"] for row in marked] == ["calm-otter-aaaa"]
    assert agentrl("trace", "list", "calm-otter", "--mark", "tool", "--json").json == []
    assert "marks       tool_error 1, odd\\x1b 1" in agentrl("runs", "show", "calm-otter").out
    assert agentrl("runs", "show", "calm-otter", "--json").json["marks"]["tool_error"] == 1


def test_a_failed_episode_says_why(agentrl, make_run):
    make_run("calm-otter")
    assert agentrl("trace", "show", "calm-otter-b", "--run", "calm-otter").out.splitlines() == [
        "record calm-otter-bbbb: failed (ValueError), no reward",
        "  why       no",
        "            map",
        "  run       calm-otter, task hall, group calm-otter-g1, sample 1, try 2, evaluation",
        "  tokens    0 calls, 0 new prompt tokens, 0 sampled",
    ]


def test_an_episode_as_json_has_tokens_and_task(agentrl, make_run):
    make_run("calm-otter")
    shown = agentrl("trace", "show", "calm-otter-aaaa", "--json").json
    assert shown["record"]["outcome"] == "scored"
    assert shown["task"]["answer"] == "(3, 4)"
    assert [item["parent"] for item in shown["interactions"]] == [None, "call-0", "call-1", "call-1", "call-3"]
    assert shown["interactions"][1]["versions"] == [[3, 2], [4, 2]]
    assert shown["interactions"][0]["output_ids"] == [2, 2, 2, 2]


def test_an_episode_is_shown_with_the_task_of_its_own_set(agentrl, make_run):
    """Training and evaluation tasks may have one id."""
    store = SQLiteStore(path=make_run("calm-otter") / "agentrl.db")
    asyncio.run(store.add_tasks("calm-otter", [Task(id="maze", data={}, answer="held out")], task_set="eval"))
    record = Record(
        id="evaluated", run_id="calm-otter", task_id="maze", group_id="calm-otter-g0", sample_index=0, is_eval=True,
        task_set="eval", started_at=103.0,
    )  # fmt: skip
    asyncio.run(store.add_record(record))
    asyncio.run(store.close())
    assert "held out" in agentrl("trace", "show", "evaluated").out
    assert "(3, 4)" in agentrl("trace", "show", "calm-otter-aaaa").out
    assert agentrl("trace", "show", "evaluated", "--json").json["task"]["answer"] == "held out"
    assert agentrl("trace", "list").out.splitlines()[-1].split()[:4] == ["evaluated", "0", "eval", "maze"]


def test_an_unknown_record_is_named_with_the_nearest(agentrl, make_run):
    make_run("calm-otter")
    result = agentrl("trace", "show", "calm-otter-aaax")
    assert result.code == 2
    assert "no record 'calm-otter-aaax' in any run of runs (did you mean calm-otter-aaaa?)" in result.err


def test_an_ambiguous_record_is_refused(agentrl, make_run):
    make_run("calm-otter")
    result = agentrl("trace", "show", "calm-otter-")
    assert result.code == 2
    assert "calm-otter-aaaa, calm-otter-bbbb" in result.err


# --- fidelity ---


def test_verify_names_the_first_token_that_the_engine_did_not_sample(agentrl, make_run):
    folder = make_run("calm-otter")
    with contextlib.closing(sqlite3.connect(folder / "agentrl.db")) as database, database:
        _bear_witness(database)
    good = agentrl("trace", "verify", "calm-otter")
    assert good.code == 0
    assert "16 of 16 trained tokens are exactly what the engine sampled" in good.out
    with contextlib.closing(sqlite3.connect(folder / "agentrl.db")) as database, database:
        database.execute(
            "UPDATE interactions SET output_ids = CAST(x'07000000' || substr(output_ids, 5) AS BLOB) WHERE seq = 1"
        )
    bad = agentrl("trace", "verify", "calm-otter")
    assert bad.code == 1
    assert "record calm-otter-aaaa: 4 of 16" in bad.out
    assert "first deviation at interaction call-1, turn 1, token 14" in bad.out
    report = agentrl("trace", "verify", "calm-otter", "--json").json
    assert report["share"] == 0.25
    assert report["deviations"]["calm-otter-aaaa"]["turn"] == 1


def _bear_witness(database):
    """Give every stored call the digest that the gateway would have."""
    digests = {None: ""}
    rows = database.execute("SELECT id, parent, prompt_ids, output_ids FROM interactions ORDER BY seq").fetchall()
    for name, parent, *blobs in rows:
        ids = [struct.unpack(f"<{len(blob) // 4}i", blob) for blob in blobs]
        digests[name] = witness(digests[parent], *ids)
        database.execute("UPDATE interactions SET witness = ? WHERE id = ?", (digests[name], name))


# --- finding the run ---


def test_a_run_is_found_by_name_folder_database_and_as_the_newest(agentrl, make_run, tmp_path):
    old, new = make_run("calm-otter"), make_run("brisk-heron")
    os.utime(old / "agentrl.db", (1.0, 1.0))
    for arguments, name in (
        (("calm-otter",), "calm-otter"),
        ((str(old),), "calm-otter"),
        ((str(old / "agentrl.db"),), "calm-otter"),
        ((), "brisk-heron"),
        (("brisk-heron", "--runs", str(tmp_path / "runs")), "brisk-heron"),
    ):
        assert agentrl("trace", "list", "--json", *arguments).json[0]["run_id"] == name
    os.utime(new / "agentrl.db", (0.5, 0.5))
    assert agentrl("trace", "list", "--json").json[0]["run_id"] == "calm-otter"


def test_a_live_run_is_readable(agentrl, make_run):
    path = make_run("calm-otter") / "agentrl.db"
    writer = SQLiteStore(path=path)
    asyncio.run(writer.add_evaluation("calm-otter", "eval", ["maze"], version=2))
    assert len(agentrl("trace", "list", "--json").json) == 2
    asyncio.run(writer.close())


def test_a_database_of_another_name_is_read(agentrl, make_run, tmp_path):
    copy = (make_run("calm-otter") / "agentrl.db").rename(tmp_path / "kept.db")
    assert agentrl("trace", "list", str(copy), "--json").json[0]["run_id"] == "calm-otter"


def test_an_unknown_run_is_named_with_the_nearest(agentrl, make_run):
    make_run("calm-otter")
    result = agentrl("trace", "list", "calm-oter")
    assert result.code == 2
    assert "no run 'calm-oter' in runs (did you mean calm-otter?)" in result.err
    for name in ("calm-fox", "wise-owl", "zealous-lynx"):
        make_run(name)
    told = agentrl("trace", "list", "wise").err
    assert "(did you mean wise-owl?)" in told
    told = agentrl("trace", "list", "xyz").err
    assert "(the nearest there: " in told
    assert told.count("-") - told.count("- ") == 3


def test_no_runs_at_all_says_how_to_start_one(agentrl, tmp_path):
    result = agentrl("trace", "list")
    assert result.code == 2
    assert "agentrl run CONFIG" in result.err
    assert "runs has no runs" in agentrl("trace", "list", "calm-otter").err


def test_a_folder_without_a_database_is_named(agentrl, tmp_path):
    (tmp_path / "runs" / "empty").mkdir(parents=True)
    result = agentrl("trace", "list", "empty")
    assert result.code == 2
    assert "contains no agentrl.db" in result.err


def test_a_database_without_a_run_is_named(agentrl, tmp_path):
    asyncio.run(SQLiteStore(path=tmp_path / "runs" / "empty" / "agentrl.db").close())
    result = agentrl("trace", "list", "empty")
    assert result.code == 2
    assert "does not contain a run yet" in result.err


def test_control_characters_of_tasks_do_not_reach_the_terminal(agentrl, make_run, write):
    folder = make_run("calm-otter")
    evil = Record(
        id="evil", run_id="calm-otter", task_id="\x1b]0;pwned\x07", group_id="calm-otter-g0", sample_index=1,
        started_at=104.0,
    )  # fmt: skip
    write(folder, lambda store: store.add_record(evil))
    for command in (("trace", "list"), ("trace", "show", "evil")):
        told = agentrl(*command).out
        assert r"\x1b]0;pwned\x07" in told
        assert "\x1b" not in told
    assert "\x1b" not in agentrl("trace", "show", "\x1b[2J").err


def test_episodes_of_one_step_are_listed(agentrl, make_run):
    make_run("calm-otter")
    assert [row["step"] for row in agentrl("trace", "list", "--step", "0", "--json").json] == [0, 0]
    assert agentrl("trace", "list", "--step", "9", "--json").json == []
