import json
import os
import random
import re
import resource
import stat
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from agentrl_core.errors import LostError, RunError
from agentrl_core.stores.files import Writer
from agentrl_core.training.checkpoint import prune, restore_checkpoint
from agentrl_core.training.master_weights import MasterWeights


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


@pytest.mark.parametrize("saved", [1, 2])
def test_a_kill_while_a_checkpoint_is_replaced_loses_no_checkpoint(learner, tmp_path, monkeypatch, saved):
    """The process dies after the former checkpoint moved aside, so no code of it puts that back."""
    one = learner()
    one.save(tmp_path / "step-1", step=1, version=1)
    (tmp_path / "step-1").rename(tmp_path / ".step-1.former")
    (tmp_path / ".step-1.draft").mkdir()
    monkeypatch.setattr(torch, "save", _refuse)
    with pytest.raises(RunError, match="No space left"):
        one.save(tmp_path / f"step-{saved}", step=saved, version=5)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert one.restore(tmp_path / "step-1") == (1, 1)


def _refuse(*_args, **_options):
    raise OSError("No space left")


def test_a_replacement_that_fails_leaves_the_former_checkpoint(learner, tmp_path, monkeypatch):
    rename = Path.replace

    def refusing(path, target):
        if path.name == ".step-1.draft":
            raise OSError("I/O error")
        return rename(path, target)

    one = learner()
    one.save(tmp_path / "step-1", step=1, version=1)
    monkeypatch.setattr(Path, "replace", refusing)
    with pytest.raises(RunError, match="I/O error"):
        one.save(tmp_path / "step-1", step=1, version=5)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert one.restore(tmp_path / "step-1") == (1, 1)


def test_the_checkpoint_of_another_model_changes_nothing(learner, sampler, weights, tmp_path):
    """Names and number of the weights are the same, so the optimizer's state would fit."""
    one = learner()
    one.step(sampler.groups(), step=1, version=0)
    one.save(tmp_path / "step-1", step=1, version=1)
    config = AutoConfig.from_pretrained(tmp_path / "step-1")
    config.intermediate_size *= 2
    model = AutoModelForCausalLM.from_config(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    masters = MasterWeights(model)
    optimizer = torch.optim.AdamW(masters.parameters)
    with pytest.raises(RunError, match=r"step-1 is the checkpoint of another model .*mlp.*model\.path"):
        restore_checkpoint(tmp_path / "step-1", model=model, masters=masters, optimizer=optimizer)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not optimizer.state


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


def test_two_writers_never_share_a_draft(learner, tmp_path):
    """The one that was declared lost writes while its successor does."""
    one = learner()

    def check():
        assert [path.name for path in tmp_path.glob(".*")] == [".step-1.former.draft"]
        one.save(tmp_path / "step-1", step=1, version=2, writer=Writer(name="successor"))
        raise LostError

    with pytest.raises(LostError):
        one.save(tmp_path / "step-1", step=1, version=1, writer=Writer(name="former", check=check))
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert one.restore(tmp_path / "step-1") == (1, 2)


def test_drafts_of_members_that_are_gone_are_removed_and_no_others(learner, tmp_path):
    for name in (".step-1.a.draft", ".step-1.c.draft", ".step-9.draft"):
        (tmp_path / name).mkdir()
    learner().save(tmp_path / "step-1", step=1, version=1, writer=Writer(name="b", gone=frozenset({"a"})))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".step-1.c.draft", "step-1"]


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


def flip(path, seed):
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[random.Random(seed).randrange(len(content))] ^= 1 << (seed % 8)
    path.write_bytes(bytes(content))


def test_a_changed_byte_in_any_file_is_found_and_the_file_named(learner, tmp_path):
    one = learner()
    one.save(tmp_path / "step-1", step=1, version=1)
    files = sorted(path for path in (tmp_path / "step-1").rglob("*") if path.is_file())
    assert {"model.safetensors", "optimizer.pt", "config.json", "manifest.json"} <= {path.name for path in files}
    for path in files:
        written = path.read_bytes()
        for seed in range(8):
            flip(path, seed)
            with pytest.raises(RunError, match=rf"{re.escape(path.name)}.*remove that folder to go on from the one"):
                one.restore(tmp_path / "step-1")
        path.write_bytes(written)
    assert one.restore(tmp_path / "step-1") == (1, 1)


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer.json", "optimizer.pt"])
def test_a_missing_file_is_named(learner, tmp_path, name):
    one = learner()
    one.save(tmp_path / "step-1", step=1, version=1)
    (tmp_path / "step-1" / name).unlink()
    with pytest.raises(RunError, match=rf"not a complete checkpoint: .*{re.escape(name)}.* missing"):
        one.restore(tmp_path / "step-1")


def test_a_checkpoint_of_before_manifests_is_still_taken(learner, tmp_path):
    one = learner()
    one.save(tmp_path / "step-1", step=1, version=3)
    (tmp_path / "step-1" / "manifest.json").unlink()
    (tmp_path / "step-1" / "trainer_state.json").write_text('{"step": 1, "version": 3, "seed": 0}')
    assert one.restore(tmp_path / "step-1") == (1, 3)


def test_the_state_of_another_step_is_refused(learner, tmp_path):
    one = learner()
    one.save(tmp_path / "step-2", step=2, version=2)
    (tmp_path / "step-2" / "manifest.json").unlink()  # as in a checkpoint of before manifests
    (tmp_path / "step-2" / "trainer_state.json").write_text('{"step": 999, "version": 2}')
    with pytest.raises(RunError, match=r"trainer_state.json says step 999, but the checkpoint is that of step 2"):
        one.restore(tmp_path / "step-2")


def test_a_folder_under_the_name_of_another_step_is_refused(learner, tmp_path):
    one = learner()
    one.save(tmp_path / "step-2", step=2, version=2)
    (tmp_path / "step-2").rename(tmp_path / "step-7")
    with pytest.raises(RunError, match=r"says step 2, but the checkpoint is that of step 7"):
        one.restore(tmp_path / "step-7")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_not_saved(learner, tmp_path, value):
    one = learner()
    one.save(tmp_path / "step-1", step=1, version=1)
    one.weights().module.state_dict()["model.norm.weight"][3] = value
    with pytest.raises(
        RunError, match=r"step-2 is not written: 1 of .*\(the first is model\.norm\.weight\).* lower trainer\.lr"
    ):
        one.save(tmp_path / "step-2", step=2, version=2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_only_its_owner_reads_a_checkpoint(learner, tmp_path, umask):
    one = learner()
    before = os.umask(umask)
    try:
        one.save(tmp_path / "step-1", step=1, version=1)
    finally:
        os.umask(before)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "step-1").rglob("*")}
    assert set(found.values()) == {0o600}, found
    assert stat.S_IMODE((tmp_path / "step-1").stat().st_mode) == 0o700


def test_every_file_is_on_the_disk_before_the_checkpoint_appears(learner, tmp_path, monkeypatch):
    synced, fsync, replace = set(), os.fsync, Path.replace

    def recording(descriptor):
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def checked(path, target):
        missing = [item.name for item in (path, *path.rglob("*")) if item.stat().st_ino not in synced]
        assert not missing
        synced.clear()
        return replace(path, target)

    one = learner()
    monkeypatch.setattr(os, "fsync", recording)
    monkeypatch.setattr(Path, "replace", checked)
    one.save(tmp_path / "step-1", step=1, version=1)
    assert synced == {tmp_path.stat().st_ino}  # and then its name


def test_ctrl_c_while_a_checkpoint_is_written_leaves_no_draft(learner, tmp_path, monkeypatch):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    one = learner()
    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.save(tmp_path / "step-1", step=1, version=1)
    assert not list(tmp_path.iterdir())


def test_the_draft_of_a_killed_process_goes_with_the_next_checkpoint(learner, tmp_path):
    (tmp_path / ".step-1.draft").mkdir()
    (tmp_path / ".step-1.draft" / "model.safetensors").write_bytes(b"half")
    learner().save(tmp_path / "step-2", step=2, version=2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


def test_a_file_that_may_not_grow_is_the_cause_that_is_told(learner, sampler, tmp_path):
    """As with `ulimit -f`; torch itself says `unexpected pos 20411776 vs 20411664`."""
    one = learner()
    one.step(sampler.groups(), step=1, version=0)  # the optimizer's state is then larger than the weights
    one.save(tmp_path / "step-1", step=1, version=1)
    optimizer, weights = ((tmp_path / "step-1" / name).stat().st_size for name in ("optimizer.pt", "model.safetensors"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (weights // 2, (weights + optimizer) // 2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            with pytest.raises(RunError, match=r"cannot write the checkpoint .*step-2: .*[Ff]ile too large.*make room"):
                one.save(tmp_path / "step-2", step=2, version=2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert one.restore(tmp_path / "step-1") == (1, 1)
