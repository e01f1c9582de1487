"""Weights written for a server: beside anything else, checked, and gone with their process."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl_core.api.weights import DirectoryWeights, ModuleWeights
from agentrl_core.engines.engine_weights import load_model
from agentrl_core.errors import EngineError
from agentrl_core.weights.folder import WeightsFolder
from agentrl_testing.policy import toy_policy

KILLED = (
    "import sys; from pathlib import Path; from agentrl_core.weights.folder import WeightsFolder\n"
    "folder = WeightsFolder(Path(sys.argv[1])); print(folder._own.path(), flush=True); sys.stdin.read()\n"
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return toy_policy(tmp_path_factory.mktemp("models") / "toy", seed=1)


@pytest.fixture
def module(model_dir):
    return AutoModelForCausalLM.from_pretrained(model_dir)


@pytest.fixture
def folder(tmp_path):
    """Make a folder of weights in `root`; all are closed at the end."""
    made = []

    def make(root=tmp_path):
        made.append(WeightsFolder(root))
        return made[-1]

    yield make
    for each in made:
        each.close()


def publish(folder, version, module):
    return folder.write(version, ModuleWeights(module))


def test_only_the_newest_version_stays_and_nothing_that_others_have_there_goes(folder, module, tmp_path):
    for name in ("version-control-notes", "version-1", "agentrl-weights-mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kept").write_text("x")
    one, other = folder(), folder()
    first = publish(one, 1, module)
    others = publish(other, 1, module)
    second = publish(one, 2, module)
    assert not first.exists()
    assert (others / "model.safetensors").is_file()
    assert (second / "model.safetensors").is_file()
    one.close()
    assert not second.exists()
    assert (others / "model.safetensors").is_file()
    other.close()
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()) == [
        Path("agentrl-weights-mine/kept"),
        Path("version-1/kept"),
        Path("version-control-notes/kept"),
    ]


def test_a_temporary_folder_ends_with_the_engine(folder, module):
    one = folder(None)
    written = publish(one, 1, module)
    assert (written / "config.json").is_file()
    one.close()
    assert not written.parent.exists()


def test_a_directory_is_passed_on_as_it_is(folder, tmp_path):
    given = DirectoryWeights(tmp_path / "model")
    assert folder().write(3, given) == tmp_path / "model"
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_when_the_next_begins_and_a_living_one_s_stays(folder, module, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            left = Path(process.stdout.readline().strip())
            publish(folder(), 1, module)
            assert left.is_dir()
            process.send_signal(signal.SIGKILL)
            process.wait(60)
        finally:
            process.kill()
    elsewhere = shutil.copytree(left, left.with_name("agentrl-weights-of-another-machine"))
    (elsewhere / "boot_id").write_text("another")
    publish(folder(), 1, module)
    assert not left.exists()
    assert elsewhere.is_dir()


def test_a_changed_byte_in_published_weights_is_found(folder, module):
    written = publish(folder(), 4, module)
    load_model(written, torch.float32)
    path = written / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 64
    path.write_bytes(content)
    with pytest.raises(EngineError, match=r"model\.safetensors is damaged"):
        load_model(written, torch.float32)


def test_weights_that_are_not_finite_are_not_published(folder, module, tmp_path):
    with torch.no_grad():
        module.model.norm.weight[1] = float("nan")
    with pytest.raises(EngineError, match=r"version 4 is not published: .*model\.norm\.weight"):
        publish(folder(), 4, module)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_named(folder, module, tmp_path, monkeypatch):
    def full(_directory):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_pretrained", full)
    with pytest.raises(
        EngineError, match=rf"cannot write the weights of version 4 to {tmp_path}.*No space.*weights_dir"
    ):
        publish(folder(), 4, module)
