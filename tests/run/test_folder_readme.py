"""The README.md of a run's folder."""

import re

import pytest

from agentrl_core.errors import RunError
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.folder_readme import write_readme


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.create(tmp_path / "runs", "calm-otter")


def rows(directory):
    return dict(re.findall(r"^\| `(.*?)` \| (.*) \|$", (directory.path / "README.md").read_text("utf-8"), re.MULTILINE))


def test_it_lists_the_files_that_are_there_with_what_they_are(directory):
    directory.write_snapshot({}, directory.path)
    (directory.path / "agentrl.db").touch()
    (directory.path / "wandb").mkdir()
    write_readme(directory)
    first = rows(directory)
    assert set(first) == {"config.json", "agentrl.db", "checkpoints", "logs", "wandb"}
    assert first["wandb"] == "written by a tracker or a plugin"
    (directory.path / "agentrl.db-wal").touch()
    (directory.path / "model").mkdir()
    write_readme(directory)
    assert set(rows(directory)) == set(first) | {"agentrl.db-wal", "model"}
    assert (directory.path / "README.md").stat().st_mode & 0o077 == 0


def test_it_names_the_checkpoint_that_a_fork_began_from(directory):
    directory.write_snapshot({}, directory.path, origin="run brisk-heron, step 3, digest 1f")
    directory.write_snapshot({"seed": 1}, directory.path)  # a resumption keeps it
    write_readme(directory)
    assert "It began from the checkpoint of run brisk-heron, step 3, digest 1f." in (
        directory.path / "README.md"
    ).read_text("utf-8")


def test_a_fine_tuning_has_no_commands_for_episodes(directory):
    directory.write_snapshot({}, directory.path, command="sft")
    write_readme(directory)
    text = (directory.path / "README.md").read_text("utf-8")
    assert "runs resume" in text
    assert "trace" not in text
    assert "fork" not in text


def test_a_file_that_cannot_be_written_is_an_error_of_the_run(directory):
    directory.write_snapshot({}, directory.path)
    (directory.path / "README.md").mkdir()
    with pytest.raises(RunError, match=r"cannot write .*README\.md"):
        write_readme(directory)
