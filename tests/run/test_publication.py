"""Ways of weights that a run of one kind or the other does not have, and the places that they are written to."""

import pytest

from agentrl_core import config as configs
from agentrl_core.api.weights import Publication
from agentrl_core.errors import ConfigError
from agentrl_core.run.components import resolve
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.loop import _published
from agentrl_core.run.publication import check_in_process
from agentrl_core.run.roles.joining import weights_place
from agentrl_core.stores.files import UNNAMED


@pytest.fixture
def components(project, tmp_path):
    def make(publish, **weights):
        config = configs.parse(project(name="r", weights={"publish": publish, **weights}))
        return resolve(configs.LoadedConfig(config, tmp_path), role="serve")

    return make


class OfServers:
    publishers = ()


def place(components, tmp_path):
    return weights_place(components, RunDirectory(tmp_path / "r"), "0123456789", writer=UNNAMED)


@pytest.mark.parametrize("use", ["nccl", "ipc"])
def test_ways_from_gpu_to_gpu_are_for_servers_in_one_process(components, tmp_path, use):
    made = components(use)
    check_in_process(made, OfServers())
    with pytest.raises(ConfigError, match=rf"weights\.publish: {use} is for model servers; the engine embedded copies"):
        check_in_process(made, object())
    with pytest.raises(ConfigError, match=rf"weights\.publish: {use} needs learner and engine in one process"):
        place(made, tmp_path)


def test_deltas_are_for_processes_apart(components, tmp_path):
    made = components({"use": "delta", "full_every": 5, "threads": 2}, local="copies")
    with pytest.raises(ConfigError, match=r"weights\.publish: delta is for `agentrl train`"):
        check_in_process(made, OfServers())
    assert place(made, tmp_path)._deltas.place == tmp_path / "copies"


def test_the_disk_is_for_all(components, tmp_path):
    made = components("disk", dtype="bfloat16")
    check_in_process(made, object())
    assert place(made, tmp_path)._dtype == "bfloat16"


@pytest.mark.parametrize("options", [{"full_evry": 5}, {"full_every": 0}, {"full_every": "x"}])
def test_wrong_options_of_deltas_are_named(components, tmp_path, options):
    with pytest.raises(ConfigError, match="full_ev"):
        place(components({"use": "delta", **options}), tmp_path)


def test_a_step_shows_what_was_measured():
    publication = Publication(version=1, path="disk", bytes=10, seconds=2.0, stall_s=0.5)
    assert _published(None) == {}
    assert _published(publication) == {"weights/bytes": 10.0, "weights/seconds": 2.0, "weights/stall_s": 0.5}
