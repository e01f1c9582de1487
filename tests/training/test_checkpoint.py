import json
import re

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl_core.errors import RunError
from agentrl_core.training.checkpoint import prune


def test_a_checkpoint_is_a_model_directory(learner, sampler, weights, tmp_path, model_dir):
    one = learner()
    one.step(sampler.groups(), step=1, version=0)
    one.save(tmp_path / "step-1", step=1, version=1)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "step-1").state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in weights(one).items())
    messages = [{"role": "user", "content": "hi"}]
    texts = [
        AutoTokenizer.from_pretrained(folder).apply_chat_template(messages, tokenize=False)
        for folder in (model_dir, tmp_path / "step-1")
    ]
    assert texts[0] == texts[1]
    assert (tmp_path / "step-1" / "tokenizer.json").read_bytes() == (model_dir / "tokenizer.json").read_bytes()
    assert json.loads((tmp_path / "step-1" / "trainer_state.json").read_text())["version"] == 1


def test_a_restored_run_goes_on_to_identical_weights(learner, sampler, weights, tmp_path):
    trainer = {"updates": 2, "warmup_steps": 3}
    whole = learner(trainer=trainer)
    for step in range(1, 5):
        whole.step(sampler.groups(seed=step), step=step, version=9)
        if step == 2:
            whole.save(tmp_path / "step-2", step=2, version=2)
    for directory in ({}, {"directory": tmp_path / "step-2"}):
        resumed = learner(trainer=trainer, **directory)
        assert resumed.restore(tmp_path / "step-2") == (2, 2)
        for step in (3, 4):
            resumed.step(sampler.groups(seed=step), step=step, version=9)
        expected, found = weights(whole), weights(resumed)
        assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_only_the_newest_checkpoints_stay(learner, tmp_path):
    others = [tmp_path / name for name in ("step-one", "best", "step-3.bak")]
    for folder in others:
        folder.mkdir()
    (tmp_path / "step-0").write_text("a file of that name")
    one = learner(trainer={"keep_last": 2})
    for step in (2, 9, 10):
        one.save(tmp_path / f"step-{step}", step=step, version=step)
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"step-9", "step-10", "step-0", *(folder.name for folder in others)}


def test_the_tokenizer_outlives_the_folder_it_came_from(learner, tmp_path):
    one = learner(trainer={"keep_last": 1})
    one.save(tmp_path / "step-1", step=1, version=1)
    resumed = learner(directory=tmp_path / "step-1", trainer={"keep_last": 1})
    for step in (2, 3):
        resumed.save(tmp_path / f"step-{step}", step=step, version=step)
    assert (tmp_path / "step-3" / "tokenizer.json").is_file()


def test_saving_again_replaces_the_checkpoint(learner, sampler, weights, tmp_path):
    one = learner()
    one.save(tmp_path / "step-1", step=1, version=1)
    one.step(sampler.groups(), step=1, version=0)
    one.save(tmp_path / "step-1", step=1, version=2)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "step-1").state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in weights(one).items())
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_a_disk_that_refuses_leaves_the_former_checkpoint(learner, tmp_path):
    one = learner()
    one.save(tmp_path / "step-1", step=1, version=1)
    (tmp_path / ".step-1.draft").write_text("in the way of the draft's folder")
    with pytest.raises(RunError, match=r"cannot write the checkpoint .*step-1: .*output_dir"):
        one.save(tmp_path / "step-1", step=1, version=5)
    assert json.loads((tmp_path / "step-1" / "trainer_state.json").read_text())["version"] == 1


def test_half_a_checkpoint_is_refused(learner, tmp_path):
    one = learner()
    one.save(tmp_path / "step-1", step=1, version=1)
    (tmp_path / "step-1" / "optimizer.pt").unlink()
    with pytest.raises(RunError, match="not a complete checkpoint"):
        one.restore(tmp_path / "step-1")


@pytest.mark.parametrize(("keep", "left"), [(1, 1), (3, 3), (6, 4)])
def test_pruning_keeps_as_many_as_asked(tmp_path, keep, left):
    for step in range(4):
        (tmp_path / f"step-{step}").mkdir()
    prune(tmp_path, keep=keep, saved=3)
    assert {path.name for path in tmp_path.iterdir()} == {f"step-{step}" for step in range(4 - left, 4)}


def test_pruning_leaves_later_steps(tmp_path):
    for step in (1, 2, 3, 8, 9):
        (tmp_path / f"step-{step}").mkdir()
    prune(tmp_path, keep=1, saved=3)
    assert {path.name for path in tmp_path.iterdir()} == {"step-3", "step-8", "step-9"}


@pytest.mark.parametrize("failure", [SafetensorError("I/O error: No space left"), RuntimeError("file write failed")])
def test_a_full_disk_leaves_no_draft(learner, tmp_path, monkeypatch, failure):
    def refuse(*_args, **_options):
        raise failure

    one = learner()
    monkeypatch.setattr(torch, "save", refuse)
    with pytest.raises(RunError, match=r"cannot write the checkpoint .*step-1: .*output_dir"):
        one.save(tmp_path / "step-1", step=1, version=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["optimizer.pt", "trainer_state.json", "model.safetensors"])
@pytest.mark.parametrize("size", [0, 20, 900])
def test_a_truncated_file_is_named(learner, tmp_path, name, size):
    one = learner()
    one.save(tmp_path / "step-1", step=1, version=1)
    path = tmp_path / "step-1" / name
    path.write_bytes(path.read_bytes()[: min(size, path.stat().st_size - 1)])
    expected = rf"{re.escape(name)}.*remove that folder to go on from the one before"
    with pytest.raises(RunError, match=expected):
        one.restore(tmp_path / "step-1")
