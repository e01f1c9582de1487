"""The folder of one run."""

import logging
import os
import stat
from pathlib import Path

import pytest

from agentrl_core.errors import RunError, UsageError
from agentrl_core.run.directory import RunDirectory


def test_an_existing_name_is_refused_and_nothing_in_it_changes(tmp_path):
    first = RunDirectory.create(tmp_path, "mine")
    (first.path / "kept").write_text("x")
    with pytest.raises(UsageError, match=r"run 'mine' exists already .* agentrl runs resume .*/mine"):
        RunDirectory.create(tmp_path, "mine")
    assert (first.path / "kept").read_text() == "x"


def test_an_empty_name_is_generated_anew_each_time(tmp_path):
    names = {RunDirectory.create(tmp_path, "").name for _ in range(20)}
    assert len(names) == 20


def test_the_snapshot_is_read_back_as_written(tmp_path):
    directory = RunDirectory.create(tmp_path, "mine")
    directory.write_snapshot({"seed": 3, "name": "é"}, tmp_path)
    assert RunDirectory.open(directory.path).read_snapshot() == ({"seed": 3, "name": "é"}, tmp_path)


def test_checkpoints_are_ordered_by_step_not_by_name(tmp_path):
    directory = RunDirectory.create(tmp_path, "mine")
    assert directory.all_checkpoints() == []
    for name in ("step-9", "step-10", "step-0", "step-11.partial", "other"):
        (directory.checkpoints / name).mkdir()
    assert directory.all_checkpoints() == [(step, directory.checkpoints / f"step-{step}") for step in (10, 9, 0)]


def test_a_checkpoint_that_a_killed_process_was_replacing_gets_its_name_back(tmp_path):
    directory = RunDirectory.create(tmp_path, "one")
    for name in (".step-2.former", ".step-3.former", "step-3"):
        (directory.checkpoints / name).mkdir()
    with directory.locked():
        assert [step for step, _ in directory.all_checkpoints()] == [3, 2]
    assert not list(directory.checkpoints.glob(".*"))


def test_a_checkpoint_that_is_put_aside_is_kept_and_none_of_the_run_s_any_more(tmp_path):
    directory = RunDirectory.create(tmp_path, "mine")
    for number in (1, 2):
        (directory.checkpoints / "step-4").mkdir()
        (directory.checkpoints / "step-4" / "which").write_text(str(number))
        aside = directory.put_aside(directory.checkpoints / "step-4")
        assert aside.name == f"aside-{number}-step-4"
        assert (aside / "which").read_text() == str(number)
        assert directory.all_checkpoints() == []


def test_opening_what_is_no_run_names_the_nearest(tmp_path):
    RunDirectory.create(tmp_path, "calm-otter").write_snapshot({}, tmp_path)
    with pytest.raises(UsageError, match="did you mean calm-otter"):
        RunDirectory.open(tmp_path / "calm-oter")


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="set output_dir to another folder"):
        RunDirectory.create(tmp_path / "file", "mine")


def test_the_log_takes_any_text_but_no_secrets(tmp_path):
    directory = RunDirectory.create(tmp_path, "quiet")
    key, address = f"sk-agentrl-{'k' * 43}", "http://127.0.0.1:8000/s/tokentokentoken/v1"
    with directory.logging_to("run"):
        logging.getLogger("agentrl_core.test").warning("%s at %s said \ud800", key, address)
    text = directory.log("run").read_text(encoding="utf-8")
    assert text.endswith("sk-agentrl-… at http://127.0.0.1:8000/s/…/v1 said \\ud800\n")


def test_the_log_takes_what_packages_log_too_and_once(tmp_path, capsys):
    directory = RunDirectory.create(tmp_path, "chatty")
    theirs = logging.getLogger("someones_package")
    before = theirs.level, theirs.propagate, [*theirs.handlers]
    with directory.logging_to("run", modules={"agentrl_core", "someones_package"}):
        logging.getLogger("agentrl_core.test").warning("ours")
        logging.getLogger("someones_package.part").warning("theirs")
        logging.getLogger("somebody_elses").warning("another's")
    lines = directory.log("run").read_text(encoding="utf-8").splitlines()
    assert [line.partition(": ")[2] for line in lines] == ["ours", "theirs"]
    assert (theirs.level, theirs.propagate, theirs.handlers) == before
    assert "theirs" not in capsys.readouterr().err


def test_a_missing_config_is_named(tmp_path):
    directory = RunDirectory.create(tmp_path, "headless")
    directory.database.touch()
    with pytest.raises(UsageError, match=r"headless/config.json is missing, .* put it back"):
        RunDirectory.open(directory.path)


def test_a_log_on_a_full_disk_hides_no_other_error(tmp_path):
    directory = RunDirectory.create(tmp_path, "full")
    directory.log("run").symlink_to("/dev/full")
    with pytest.raises(ValueError, match="the cause"), directory.logging_to("run"):  # noqa: PT012
        logging.getLogger("agentrl_core.test").warning("lost")
        raise ValueError("the cause")


def test_a_log_finds_its_folder_gone(tmp_path):
    directory = RunDirectory.create(tmp_path, "bare")
    directory.log("run").parent.rmdir()
    with directory.logging_to("run"):
        pass
    assert directory.log("run").is_file()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_owner_enters_a_run_s_folder(tmp_path, umask):
    before = os.umask(umask)
    try:
        directory = RunDirectory.create(tmp_path / "runs", "mine")
        directory.write_snapshot({}, tmp_path)
        with directory.locked(), directory.logging_to("run"):
            modes = {
                path.name: stat.S_IMODE(path.stat().st_mode) for path in (directory.path, *directory.path.rglob("*"))
            }
    finally:
        os.umask(before)
    assert modes == {
        "mine": 0o700, "logs": 0o700, "checkpoints": 0o700, "config.json": 0o600, ".lock": 0o600, "run_0.log": 0o600,
    }  # fmt: skip


def test_links_out_of_a_run_s_folder_are_not_followed(tmp_path):
    directory = RunDirectory.create(tmp_path / "runs", "mine")
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "shared").write_text("x")
    before = {path: path.stat().st_mode for path in (outside, outside / "shared")}
    (directory.path / "folder").symlink_to(outside)
    (directory.path / "file").symlink_to(outside / "shared")
    with directory.private():
        pass
    assert {path: path.stat().st_mode for path in before} == before


def test_a_snapshot_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    directory = RunDirectory.create(tmp_path, "mine")
    directory.write_snapshot({"seed": 1}, tmp_path)
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(RunError, match=r"config\.json: .*No space left"):
        directory.write_snapshot({"seed": 2}, tmp_path)
    assert directory.read_snapshot()[0] == {"seed": 1}
