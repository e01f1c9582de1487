"""agentrl trace lineage: from a record to the weights that contain it, and back."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from agentrl_core.api.stores import StepRow
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.weights.manifest import write_manifest

CHECKPOINTS = "runs/calm-otter/checkpoints"


@pytest.fixture
def project(trained_project, monkeypatch, agentrl):
    monkeypatch.chdir(trained_project)
    return trained_project


def digest(step):
    return json.loads(Path(CHECKPOINTS, f"step-{step}", "manifest.json").read_text(encoding="utf-8"))["blake2b"]


def test_each_record_leads_to_its_step_version_and_checkpoint(agentrl, project):
    steps = agentrl("runs", "show", "calm-otter", "--json").json["all_steps"]
    assert [step["step"] for step in steps] == [1, 2, 3]
    for step in steps:
        saved = 2 if step["step"] < 3 else 3  # every second step is saved, and the last one
        for name in step["records"]:
            (found,) = agentrl("trace", "lineage", name, "--json").json
            (use,) = found["trained_by"]
            assert (use["step"], use["version"], use["voided"]) == (step["step"], step["version"], False)
            assert use["checkpoint"]["folder"] == f"{CHECKPOINTS}/step-{saved}"
            assert use["checkpoint"]["digest"] == digest(saved)
            shown = agentrl("trace", "show", name, "--json").json
            tokens = sum(len(call["output_ids"]) for call in shown["interactions"])
            assert use["trained_tokens"] == tokens == sum(call["trained_tokens"] for call in found["calls"])
            assert [call["interaction"] for call in found["calls"]] == [call["id"] for call in shown["interactions"]]
            # Synchronous training: the version before the step's own sampled all tokens.
            assert [origin["version"] for origin in found["sampled_by"]] == [step["version"] - 1]
            assert found["task"] == shown["task"]["id"]
            assert found["missing"] == []


def test_steps_versions_and_checkpoints_lead_back_to_the_same_records(agentrl, project):
    for step in agentrl("runs", "show", "calm-otter", "--json").json["all_steps"]:
        (of_step,) = agentrl("trace", "lineage", f"step:{step['step']}", "--json").json
        assert [item["record"] for item in of_step["records"]] == step["records"]
        assert of_step["groups"] == step["groups"]
        (of_version,) = agentrl("trace", "lineage", f"version:{step['version'] - 1}", "--json").json
        assert set(step["records"]) <= {item["record"] for item in of_version["records"]}
        assert of_version["trained_by"] == [step["step"]]
    (of_folder,) = agentrl("trace", "lineage", f"{CHECKPOINTS}/step-2", "--json").json
    assert (of_folder["checkpoint"]["digest"], of_folder["verified"]) == (digest(2), True)
    assert of_folder["steps"] == [[1, 1, 4], [2, 2, 4]]


def test_the_chain_is_told_in_lines(agentrl, project):
    name = agentrl("runs", "show", "calm-otter", "--json").json["all_steps"][2]["records"][0]
    (found,) = agentrl("trace", "lineage", name, "--json").json
    lines = agentrl("trace", "lineage", name[:8]).out.splitlines()
    first, task, sealed, sampled, *calls, trained, step_sealed, saved = lines
    assert first.startswith(f"record {name}: scored, reward ")
    assert task.startswith("  task        t")
    digests = (found["task_digest"][:16], found["digest"][:16])
    assert sealed == "  sealed      task {}…, record {}…, in seal 3".format(*digests)
    assert sampled == (
        f"  sampled by  version 2: published by step 2, saved in {CHECKPOINTS}/step-2 "
        f"(version 2, BLAKE2b {digest(2)[:16]}…)"
    )
    assert [line.rpartition(", digest ")[2] for line in calls] == [f"{call['digest'][:16]}…" for call in found["calls"]]
    assert step_sealed == f"  sealed      step {found['trained_by'][0]['digest'][:16]}…"
    assert len(calls) == 5
    assert trained.startswith("  trained by  step 3: ")
    assert saved == f"  saved in    {CHECKPOINTS}/step-3 (version 3, BLAKE2b {digest(3)[:16]}…)"
    for thing in ("step:1", "version:0", f"{CHECKPOINTS}/step-3"):
        assert agentrl("trace", "lineage", thing).code == 0
    assert "before the first step (policy)" in agentrl("trace", "lineage", "version:0").out


def test_an_evaluation_is_said_to_be_trained_by_no_step(agentrl, project):
    records = agentrl("trace", "list", "--limit", "0", "--json").json
    evaluation = next(item["id"] for item in records if item["is_eval"])
    (found,) = agentrl("trace", "lineage", evaluation, "--json").json
    assert found["trained_by"] == []
    assert found["missing"] == ["no step has trained it: it belongs to an evaluation"]


def test_a_trained_run_is_as_it_was_sealed(agentrl, project):
    """Digests of the same facts are the same in the lineage and in the verification, on the way there and back."""
    found = agentrl("trace", "verify", "calm-otter", "--json").json
    assert (found["intact"], found["findings"], found["notes"]) == (True, [], [])
    assert found["num_records"] == len(agentrl("trace", "list", "--limit", "0", "--json").json)
    (of_step,) = agentrl("trace", "lineage", "step:3", "--json").json
    for item in of_step["records"]:
        (record,) = agentrl("trace", "lineage", item["record"], "--json").json
        assert record["digest"] == item["digest"] != ""
        assert record["trained_by"][0]["digest"] == of_step["digest"]
    (of_folder,) = agentrl("trace", "lineage", f"{CHECKPOINTS}/step-3", "--json").json
    assert of_folder["sealed"] == of_folder["checkpoint"]["digest"] == digest(3)
    assert f"head {found['head']}" in agentrl("runs", "show", "calm-otter").out


def test_a_damaged_checkpoint_is_named(agentrl, project, tmp_path):
    folder = tmp_path / "runs" / "calm-otter"
    shutil.copytree(project / "runs" / "calm-otter", folder)
    weights = next(folder.glob("checkpoints/step-2/*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    (found,) = agentrl("trace", "lineage", str(folder / "checkpoints" / "step-2"), "--json").json
    assert not found["verified"]
    assert f"{weights} is damaged" in found["missing"][0]
    (folder / "checkpoints" / "step-2" / "manifest.json").write_text("{}", encoding="utf-8")
    lost = agentrl("trace", "lineage", "step:2", "--run", str(folder), "--json").json[0]["missing"]
    assert len(lost) == 1
    assert "is damaged" in lost[0]


def test_what_the_store_lacks_is_said(agentrl, make_run):
    make_run("calm-otter")
    (found,) = agentrl("trace", "lineage", "calm-otter-aaaa", "--json").json
    assert [(use["step"], use["voided"]) for use in found["trained_by"]] == [(1, False), (2, True)]
    assert found["calls"][1]["versions"] == {"3": 2, "4": 2}
    assert found["calls"][4]["trained_tokens"] == 0
    assert found["missing"] == [
        "no checkpoint has the weights of step 1 or of a later step (trainer.save_steps, trainer.keep_last)"
    ]
    (failed,) = agentrl("trace", "lineage", "calm-otter-bbbb", "--json").json
    assert failed["missing"] == ["no step has trained it: it belongs to an evaluation"]
    assert [origin["told"] for origin in found["sampled_by"]] == ["no step in the store published it"] * 2


def test_a_resumed_runs_version_is_the_weights_of_its_checkpoint(agentrl, make_run):
    """The run made steps 1 and 2, went back to step 1 (version 3), and made step 2 again (version 4)."""
    folder = make_run("calm-otter")
    checkpoint = folder / "checkpoints" / "step-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_text("w", encoding="utf-8")
    write_manifest(checkpoint, version=1, step=1)
    store = SQLiteStore(path=folder / "agentrl.db")

    async def go_on():
        await store.add_version("calm-otter", 3, step=1)
        await store.add_step(
            StepRow(run_id="calm-otter", step=2, version=4, groups=(), records=("calm-otter-aaaa",), metrics={})
        )
        await store.add_version("calm-otter", 4, step=2)
        await store.close()

    asyncio.run(go_on())
    (found,) = agentrl("trace", "lineage", "version:3", "--json").json
    origin = found["origin"]
    assert origin["told"] == "the weights of step 1, published again when the run was resumed"
    assert origin["checkpoint"]["folder"].endswith("checkpoints/step-1")
    first, second = agentrl("trace", "lineage", "step:2", "--json").json
    assert (first["voided"], second["voided"]) == (True, False)
    assert agentrl("trace", "lineage", "step:2").out.startswith("step 2 (repeated by a resumed run) of run calm-otter")


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        ("step:9", "run calm-otter has no step 9; its last step is 2"),
        ("version:9", "run calm-otter has no policy version 9; its last version is 2"),
        ("step:two", "step:two: expected step:N with a whole number N"),
        ("nothing", "no record 'nothing' in any run of runs"),
    ],
)
def test_what_does_not_exist_is_named(agentrl, make_run, thing, said):
    make_run("calm-otter")
    refused = agentrl("trace", "lineage", thing)
    assert refused.code == 2
    assert said in refused.err
