"""agentrl trace replay: a stored episode runs again with its own outputs, and what differs is told."""

import json
import shutil

import pytest
from tests.cli.audited import judge

from agentrl_core.cli import main


@pytest.fixture
def project(trained_project, monkeypatch, agentrl):
    """The trained project as working directory; what a test tells the agent is forgotten at its end."""
    monkeypatch.chdir(trained_project)
    yield trained_project
    for name in ("door.txt", "more.txt", "bonus.txt", "judge.txt", "at.txt", "twice.txt", "gone.txt"):
        (trained_project / name).unlink(missing_ok=True)


@pytest.fixture
def records(agentrl, project):
    return agentrl("trace", "list", "--limit", "0", "--json").json


def test_every_episode_of_a_run_repeats_itself(agentrl, records):
    assert len(records) == 14  # three steps of two groups of two, and two evaluations of one task
    of_last_step = agentrl("runs", "show", "calm-otter", "--json").json["all_steps"][-1]["records"]
    last = next(item for item in records if item["id"] == of_last_step[0])  # its reward has the training step in it
    for record in (records[0], last, next(item for item in records if item["is_eval"])):
        done = agentrl("trace", "replay", record["id"][:10])
        assert done.out == (
            f"record {record['id']}: identical: 5 calls, 1 tool call, scored, reward {record['reward']:g} as recorded\n"
        )
        assert done.code == 0


def test_the_first_prompt_that_differs_is_shown_as_text_and_tokens(agentrl, records, project):
    (project / "door.txt").write_text(" open", encoding="utf-8")
    record = records[0]["id"]
    done = agentrl("trace", "replay", record)
    assert (done.code, done.err) == (1, "")
    first, where, recorded, recorded_ids, now, now_ids, *_ = done.out.splitlines()
    assert first.startswith(f"record {record}: DIFFERENT at call ")
    assert "the prompt differs from call [" in where
    assert recorded.startswith("  recorded")
    assert f"{record[:4]} >>> .<|im_end|>" in recorded
    assert f"{record[:4]} >>>  open.<|im_end|>" in now
    shown = agentrl("trace", "replay", record, "--json")
    assert shown.code == 1
    found = shown.json["divergence"]
    at = next(
        i for i, pair in enumerate(zip(found["expected_ids"], found["actual_ids"], strict=False)) if len(set(pair)) > 1
    )
    assert f"from token {at} on" in where
    assert recorded_ids.strip() == f"ids {found['expected_ids'][at : at + 24]}"
    assert now_ids.strip() == f"ids {found['actual_ids'][at : at + 24]}"
    assert not shown.json["identical"]


def test_a_call_more_and_another_reward_are_told(agentrl, records, project):
    record = records[0]["id"]
    (project / "bonus.txt").write_text("1", encoding="utf-8")
    done = agentrl("trace", "replay", record)
    assert done.code == 1
    assert f"record {record}: DIFFERENT, after 5 calls, 1 tool call as recorded" in done.out
    assert f"reward: recorded {records[0]['reward']}, now {records[0]['reward'] + 1}" in done.out
    (project / "more.txt").write_text("1", encoding="utf-8")
    done = agentrl("trace", "replay", record)
    assert done.code == 1
    assert f"record {record}: DIFFERENT at call 4\n" in done.out
    assert "every recorded call was repeated already" in done.out


def test_rewards_are_not_compared_where_the_step_is_unknown(agentrl, records, project, monkeypatch):
    (project / "bonus.txt").write_text("1", encoding="utf-8")
    monkeypatch.setattr("agentrl_core.run.replay.step_of_version", lambda *_: None)
    record = next(item["id"] for item in records if not item["is_eval"])
    done = agentrl("trace", "replay", record)
    assert done.code == 0
    assert "note: the store does not tell at which training step" in done.out


def test_another_question_to_a_judge_is_told(agentrl, records, project):
    (project / "judge.txt").write_text("?", encoding="utf-8")
    done = agentrl("trace", "replay", records[0]["id"])
    assert done.code == 1
    assert "DIFFERENT, after 3 calls, 1 tool call as recorded" in done.out
    assert "upstream judge: a call was not recorded; it ends with" in done.out


def test_tools_give_what_was_recorded_and_are_not_called(agentrl, records, project):
    before = (project / "looked.txt").read_text(encoding="utf-8")
    (project / "gone.txt").write_text("1", encoding="utf-8")  # the real one would raise
    assert agentrl("trace", "replay", records[0]["id"]).code == 0
    assert (project / "looked.txt").read_text(encoding="utf-8") == before


def test_the_first_other_tool_call_is_named(agentrl, records, project):
    record = records[0]["id"]
    (project / "at.txt").write_text("!", encoding="utf-8")
    done = agentrl("trace", "replay", record)
    assert done.code == 1
    first, second = done.out.splitlines()
    assert first == f"record {record}: DIFFERENT, after 1 call as recorded"
    assert (
        f'a tool call was not recorded: look({{"at":"{record[:4]}!"}}); the next recorded one is tool call [0]'
        in second
    )
    (project / "at.txt").unlink()
    (project / "twice.txt").write_text("1", encoding="utf-8")
    found = agentrl("trace", "replay", record, "--json").json
    assert found["differences"] == ['a tool call was not recorded: look({"at":"again"})']
    assert (found["tool_calls"], found["identical"]) == (1, False)


def test_tool_calls_of_a_trained_run_are_shown_and_verified(agentrl, records, project):
    record = records[0]["id"]
    shown = agentrl("trace", "show", record).out
    assert f'        arguments {{"at": "{record[:4]}"}}\n        shown     The door is {record[:4]}\n' in shown
    verified = agentrl("trace", "verify", "calm-otter")
    assert verified.code == 0
    assert "70 LLM calls and 14 tool calls are as in" in verified.out


RUNNER = """
import os, sys
os.chdir(sys.argv[1])
from agentrl_core.cli import main
code = main(sys.argv[2:])
print(code, "torch" in sys.modules)
"""


def test_a_replay_imports_no_torch(launch, records, project):
    done = launch(str(project), "trace", "replay", records[0]["id"], program=["-c", RUNNER])
    assert done.stdout.splitlines()[1:] == ["0 False"], done.stderr


def test_a_replay_writes_nothing_into_the_run(agentrl, records, project):
    folder = project / "runs" / "calm-otter"
    before = sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*") if "agentrl.db" not in path.name)
    agentrl("trace", "replay", records[0]["id"])
    after = sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*") if "agentrl.db" not in path.name)
    assert before == after
    assert agentrl("trace", "list", "--limit", "0", "--json").json == records


def test_a_run_whose_agents_connect_by_themselves_is_refused(agentrl, records, project, tmp_path, monkeypatch):
    folder = tmp_path / "runs" / "calm-otter"
    shutil.copytree(project / "runs" / "calm-otter", folder)
    kept = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kept["config"]["workflow"] = None
    kept["config"]["rollout"]["agent"]["mode"] = "online"
    (folder / "config.json").write_text(json.dumps(kept), encoding="utf-8")
    done = agentrl("trace", "replay", records[0]["id"], "--run", str(folder))
    assert done.code == 2
    assert "its agents connect by themselves" in done.err


@pytest.fixture
def resampled(agentrl, records, project, tmp_path):
    """Sample the first record anew in a copy of the run whose judge answers; a function of the options."""
    folder = tmp_path / "runs" / "calm-otter"
    shutil.copytree(project / "runs" / "calm-otter", folder)
    with judge() as url:
        kept = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kept["config"]["gateway"]["upstreams"]["judge"]["url"] = url
        (folder / "config.json").write_text(json.dumps(kept), encoding="utf-8")
        yield lambda *options: agentrl("trace", "replay", records[0]["id"], "--run", str(folder), *options)


def test_an_episode_is_sampled_anew_from_a_call_on(agentrl, resampled, records, project):
    before = agentrl("trace", "show", records[0]["id"], "--json").json["interactions"]
    done = resampled("--from", "1", "--json")
    assert done.code == 0, done.err
    after = done.json["episode"]["interactions"]
    assert (done.json["repeated"], done.json["version"]) == (1, 3)
    assert after[0]["output_ids"] == before[0]["output_ids"]
    assert after[0]["versions"] == before[0]["versions"] == [[0, 6]]
    assert {version for call in after[1:3] for version, _ in call["versions"]} == {3}
    assert done.json["episode"]["record"]["outcome"] == "scored"
    assert agentrl("trace", "list", "--limit", "0", "--json").json == records
    told = resampled("--from", "1", "--seed", "7")
    assert f"record {records[0]['id']}: 1 calls as recorded, sampled from call [1] on by version 3" in told.out
    other = resampled("--from", "1", "--seed", "7", "--json").json["episode"]["interactions"]
    assert [call["output_ids"] for call in other[1:3]] != [call["output_ids"] for call in after[1:3]]


def test_a_difference_before_the_call_is_told(resampled, project):
    (project / "door.txt").write_text(" open", encoding="utf-8")
    done = resampled("--from", "2")
    assert done.code == 1
    assert "before call [2]" in done.out


def test_calls_that_the_episode_lacks_are_refused(resampled):
    done = resampled("--from", "9")
    assert (done.code, "has no call 9; expected one of 0 to 4" in done.err) == (2, True)
    assert resampled("--seed", "1").code == 2


def test_an_unknown_record_is_refused(agentrl, project):
    assert main(["trace", "replay", "nothing"]) == 2
