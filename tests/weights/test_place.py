"""Versions handed from a trainer to servers: whole or absent, checked, and kept as long as somebody reads them."""

import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl_core.errors import EngineError, LostError, WeightsError
from agentrl_core.stores.files import Writer
from agentrl_core.training.checkpoint import Companions
from agentrl_core.weights.place import WeightsPlace
from agentrl_testing.policy import toy_policy


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return toy_policy(tmp_path_factory.mktemp("models") / "toy", seed=1)


@pytest.fixture
def module(model_dir):
    return AutoModelForCausalLM.from_pretrained(model_dir)


@pytest.fixture
def place(tmp_path):
    return WeightsPlace(tmp_path / "weights")


def test_a_version_is_a_whole_model_with_its_tokenizer(place, module, model_dir):
    with torch.no_grad():
        module.model.norm.weight[0] = 0.25
    place.write(3, module, companions=Companions.read(model_dir))
    with place.reading(3) as folder:
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        assert AutoTokenizer.from_pretrained(folder).vocab_size == AutoTokenizer.from_pretrained(model_dir).vocab_size
    for name, value in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_the_newest_two_versions_stay_and_the_one_that_is_read(place, module):
    place.write(0, module)
    with place.reading(0):
        for version in (1, 2, 5):
            place.write(version, module)
        assert place.versions() == [5, 2, 0]
    place.write(6, module)
    assert place.versions() == [6, 5]
    assert sorted(path.name for path in place.root.iterdir()) == ["version-5", "version-6"]


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "manifest.json"])
@pytest.mark.parametrize("harm", ["cut", "changed", "missing"])
def test_a_damaged_version_is_refused_and_the_next_one_is_not(place, module, file, harm):
    path = place.write(1, module) / file
    content = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-9] if harm == "cut" else content[:-9] + b"x" + content[-8:])
    with pytest.raises(WeightsError, match=r"version[ -]1"), place.reading(1):
        pass
    place.write(2, module)
    with place.reading(2):
        pass


def test_a_version_under_another_number_is_refused(place, module):
    place.write(1, module).rename(place.root / "version-7")
    with pytest.raises(WeightsError, match="not that of version 7"), place.reading(7):
        pass


def test_an_error_of_the_reader_is_not_taken_for_one_of_the_weights(place, module):
    place.write(1, module)
    with pytest.raises(FileNotFoundError), place.reading(1):
        raise FileNotFoundError


def test_a_version_that_is_not_there_is_named(place):
    assert place.versions() == []
    with pytest.raises(WeightsError, match="version 4 of the weights is not in"), place.reading(4):
        pass


def test_what_a_killed_trainer_left_is_no_version_and_goes_with_the_next(place, module):
    whole = place.write(1, module)
    shutil.copytree(whole, place.root / ".version-2.draft")
    shutil.copytree(whole, place.root / ".version-0.gone")
    assert place.versions() == [1]
    place.write(2, module)
    assert sorted(path.name for path in place.root.iterdir()) == ["version-1", "version-2"]


def test_drafts_of_members_that_are_gone_are_removed_and_no_others(tmp_path, module):
    place = WeightsPlace(tmp_path, writer=Writer(name="b", gone=frozenset({"a"})))
    for name in (".version-2.a.draft", ".version-2.c.draft"):
        (tmp_path / name).mkdir()
    place.write(2, module)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".version-2.c.draft", "version-2"]


def test_a_writer_that_may_not_write_any_more_publishes_nothing(tmp_path, module):
    def check():
        assert [path.name for path in tmp_path.iterdir()] == [".version-2.a.draft"]
        raise LostError

    with pytest.raises(LostError):
        WeightsPlace(tmp_path, writer=Writer(name="a", check=check)).write(2, module)
    assert not list(tmp_path.iterdir())


def test_a_version_that_was_moved_aside_comes_back(place, module):
    place.write(1, module).rename(place.root / ".version-1.former")
    place.write(2, module)
    assert place.versions() == [2, 1]


def test_weights_that_are_not_finite_are_not_published(place, module):
    with torch.no_grad():
        module.model.norm.weight[1] = float("nan")
    with pytest.raises(EngineError, match=r"version 4 is not published"):
        place.write(4, module)
    assert place.versions() == []


def test_a_disk_that_refuses_leaves_no_version_and_names_the_option(place, module, monkeypatch):
    place.write(1, module)
    write = module.save_pretrained

    def full(directory):
        write(directory)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_pretrained", full)
    with pytest.raises(EngineError, match=r"No space.*weights\.place"):
        place.write(2, module)
    assert [path.name for path in place.root.iterdir()] == ["version-1"]
