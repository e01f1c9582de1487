"""A path without a model: what is there instead, and how to get one."""

from pathlib import Path

import pytest

from agentrl_core.models.folder import no_model_in


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def model(folder):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")


def test_a_model_directory_is_one(folder):
    model(folder / "models/tiny")
    assert no_model_in("models/tiny", folder) is None


def test_an_id_of_the_hub_gets_the_command_that_downloads_it_and_the_path_to_write(folder):
    told = no_model_in("Qwen/Qwen3-0.6B", folder)
    assert "`hf download Qwen/Qwen3-0.6B --local-dir project/models/Qwen3-0.6B`" in told
    assert told.endswith("name the folder: models/Qwen3-0.6B")


@pytest.mark.parametrize(
    ("written", "owner"),
    [
        ("models/Qwen3-0.6B", "Qwen"),
        ("SmolLM2-135M", "HuggingFaceTB"),
        ("./own/model", "OWNER"),
        ("nowhere", "OWNER"),
    ],
)
def test_a_path_to_nowhere_gets_the_command_that_would_fill_it(folder, written, owner):
    told = no_model_in(written, folder)
    near = (folder / written).relative_to(folder.parent)
    assert told.startswith(f"there is no folder {near}; `hf download {owner}/{Path(written).name} ")
    assert f"--local-dir {near}`" in told


def test_a_folder_without_a_model_may_hold_checkpoints(folder):
    (folder / "empty").mkdir()
    assert no_model_in("empty", folder).endswith("is not a model directory: it has no config.json")
    for step in (9, 20):
        model(folder / f"runs/calm-otter/checkpoints/step-{step}")
    for written in ("runs/calm-otter", "runs/calm-otter/checkpoints"):
        assert "(did you mean project/runs/calm-otter/checkpoints/step-20?)" in no_model_in(written, folder)


def test_a_file_is_no_model(folder):
    (folder / "weights.gguf").touch()
    assert "is a file; expected the folder of a model" in no_model_in("weights.gguf", folder)
