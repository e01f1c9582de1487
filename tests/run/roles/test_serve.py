"""The serving member: which versions it loads, and which it refuses."""

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl_core import config as configs
from agentrl_core.api.stores import RunRow
from agentrl_core.errors import ConfigError, RunError
from agentrl_core.run.components import resolve
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.roles.agreement import new_member
from agentrl_core.run.roles.frame import Joining
from agentrl_core.run.roles.joining import Commands, RunOver, weights_place
from agentrl_core.run.roles.sample import first_servers, sample
from agentrl_core.run.roles.serve import Server, serve
from agentrl_core.run.threads import LoopThread
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.training.checkpoint import Companions
from agentrl_core.weights.delta_writer import DeltaWriter
from agentrl_core.weights.place import WeightsPlace


class Published:
    """A run with a place for weights, and what a server tells its user."""

    def __init__(self, components, directory, store, module, companions):
        self.components, self.directory, self.store, self.told = components, directory, store, []
        self._module, self._companions = module, companions
        self.end = SimpleNamespace(look=AsyncMock())
        self.place = weights_place(components, directory, "0123456789")

    def publish(self, version, *, announced=True, damaged=False):
        folder = self.place.write(version, self._module, companions=self._companions)
        if damaged:
            path = folder / "model.safetensors"
            path.write_bytes(path.read_bytes()[:-1])
        if announced:
            asyncio.run(self.store.add_version("r", version, step=version))

    def change(self):
        """Take a step so small that few of the weights change."""
        with torch.no_grad():
            next(iter(self._module.parameters())).view(-1)[0] += 1.0

    def joining(self, loop=None):
        return Joining(
            components=self.components,
            directory=self.directory,
            store=self.store,
            member=new_member(self.components, "r", "serve"),
            identity="0123456789",
            loop=loop,
            notice=self.told.append,
            asked_to_stop=lambda: None,
            command=Commands(config="config.yaml", name="r"),
            end=self.end,
        )

    @contextmanager
    def server(self):
        loop = LoopThread("server", workers=1)
        try:
            server = Server(self.joining(loop))
            server.looks = lambda: loop.run(server.look([]))
            try:
                yield server
            finally:
                server.close()
        finally:
            loop.close()


@pytest.fixture
def published(project, tmp_path, policy_dir):
    config = configs.parse(project(name="r", roles={"wait_s": 0.5}))
    components = resolve(configs.LoadedConfig(config, tmp_path), role="serve")
    directory = RunDirectory.create(tmp_path / "runs", "r")
    store = SQLiteStore(path=directory.database)
    asyncio.run(store.create_run(RunRow(id="r", created_at=0.0, status="running", config={}, components={})))
    module = AutoModelForCausalLM.from_pretrained(policy_dir)
    yield Published(components, directory, store, module, Companions.read(policy_dir))
    asyncio.run(store.close())


def test_a_server_begins_with_the_newest_version_and_loads_later_ones(published):
    published.publish(0)
    published.publish(3)
    with published.server() as server:
        assert (server.looks(), server.report()["version"], server.looks()) == (True, 3, False)
        assert not server.report()["takes_images"]
        published.publish(4)
        published.publish(5)
        assert server.looks() is True
        assert server.report()["version"] == 5
        assert server.url.startswith("http://127.0.0.1:")


def test_a_server_that_waits_for_the_first_version_ends_with_its_run(published):
    published.end.look.side_effect = RunOver("r", "finished")
    with pytest.raises(RunOver), published.server():
        pytest.fail("it has begun")


def test_a_sampler_that_waits_for_a_server_ends_with_its_run(published):
    published.end.look.side_effect = RunOver("r", "finished")
    with pytest.raises(RunOver):
        asyncio.run(first_servers(published.joining()))


def test_a_damaged_version_is_refused_and_the_next_one_is_loaded(published):
    published.publish(0)
    with published.server() as server:
        server.looks()
        published.publish(1, damaged=True)
        assert server.looks() is True
        assert server.report()["version"] == 0
        assert server.report()["refused"]["version"] == 1
        assert "model.safetensors is damaged" in server.report()["refused"]["error"]
        assert any("waiting for the next version" in line for line in published.told)
        assert server.looks() is False
        published.publish(2)
        server.looks()
        assert server.report()["version"] == 2


def test_a_version_that_the_trainer_has_not_announced_is_left_alone(published):
    published.publish(0)
    with published.server() as server:
        published.publish(7, announced=False)
        assert (server.looks(), server.looks(), server.report()["version"]) == (True, False, 0)


def test_a_server_names_its_version_only_when_it_has_all_that_may_be_admitted(published):
    """The trainer has published a version while the server loaded an older one, and did not wait for it."""
    published.publish(0)
    with published.server() as server:
        published.publish(1, damaged=True)
        published.publish(2)
        assert "version" not in server.report()
        published.publish(3, damaged=True)
        assert [server.looks() for _ in range(4)] == [True, True, False, False]
        assert "version" not in server.report()  # it lacks version 3, which the others may have
        published.publish(4)
        assert [server.looks() for _ in range(3)] == [True, True, False]
        assert server.report()["version"] == 4


def test_a_server_without_weights_says_where_it_looks_and_gives_up(published):
    with (
        pytest.raises(RunError, match=r"waited 0\.5 s for the trainer's weights in .*runs/r/weights; .*weights\.place"),
        published.server(),
    ):
        pass


def test_servers_of_a_run_share_the_key_that_samplers_read(published):
    published.publish(0)
    with published.server():
        key = published.directory.admin_key.read_text(encoding="ascii")
    with published.server():
        assert published.directory.admin_key.read_text(encoding="ascii") == key


def test_runs_of_the_same_name_have_folders_of_their_own_in_a_shared_place(published, project, tmp_path):
    config = configs.parse(project(weights={"place": "shared"}))
    components = resolve(configs.LoadedConfig(config, tmp_path), role="serve")
    roots = [weights_place(components, published.directory, each).root for each in ("aaaaaaaabb", "ccccccccdd")]
    assert roots == [tmp_path / "shared" / "r-aaaaaaaa", tmp_path / "shared" / "r-cccccccc"]


def test_a_server_puts_deltas_together_and_tells_what_loading_cost(published, tmp_path):
    published.place = WeightsPlace(published.place.root, deltas=DeltaWriter(tmp_path / "trainer"))
    published.publish(0)
    with published.server() as server:
        server.looks()
        for version in (1, 2):
            published.change()
            published.publish(version)
            assert (published.place.root / f"version-{version}" / "delta.json").is_file()
            assert server.looks() is True
            told = server.report()["publication"]
            assert (server.report()["version"], told["version"], told["path"]) == (version, version, "copy")
            assert 0 <= told["stall_s"] <= told["seconds"]
    assert not any("whole" in line for line in published.told)


@pytest.mark.parametrize("role", [serve, sample])
def test_agents_that_run_elsewhere_need_one_process(written, role):
    path = written(rollout={"agent": {"mode": "online"}}, workflow=None)
    with pytest.raises(ConfigError, match=r"rollout\.agent\.mode: online agents .* use `agentrl run`"):
        role(path, name="r")


@pytest.mark.parametrize("role", [serve, sample])
def test_a_member_of_a_run_that_does_not_come_says_what_starts_it(written, role):
    told = []
    path = written()
    with pytest.raises(RunError, match=r"waited 0\.3 s for run 'r', which does not exist yet; start it with .*train"):
        role(path, ["roles.wait_s=0.3"], name="r", notice=told.append)
    (line,) = told
    assert line.startswith("waiting for run 'r', which does not exist yet")
    assert not (path.parent / "runs" / "r").exists()
