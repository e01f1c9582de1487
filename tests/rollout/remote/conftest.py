"""Fixtures for sampling from serving members: real gateways on real sockets, and the sampler's side of them."""

import asyncio
from contextlib import ExitStack
from types import SimpleNamespace

import attrs
import pytest
from tests.gateway import conftest as parts
from tests.matrix.proxy import CuttingProxy

from agentrl_core.api.members import Member
from agentrl_core.config.sampling_sections import RolloutConfig
from agentrl_core.http.backoff import Backoff
from agentrl_core.http.borrowed_clients import close_borrowed
from agentrl_core.plugins.registry import Registry
from agentrl_core.rollout.remote import RemoteGateway
from agentrl_core.rollout.runner import Runner
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.scorers.call import normalize_scorer
from agentrl_core.types import Task


class KeepingStore(parts.MemoryStore):
    """Keeps records and interactions, as both sides of a run see them."""

    def __init__(self):
        super().__init__()
        self.records = {}

    async def add_record(self, record, **_):
        self.records[record.id] = record

    async def finish_record(self, record):
        self.records[record.id] = record
        return True


@attrs.frozen(eq=False)
class Serving:
    """One serving member: its gateway, its engine, and how others see it."""

    gateway: object
    engine: object
    member: Member


@pytest.fixture
def store():
    return KeepingStore()


@pytest.fixture
def serve(chat, model_dir, store):
    """Start a serving member."""
    with ExitStack() as stack:

        def start(*, key=parts.ADMIN, **config):
            engine = parts.TalkingEngine(chat, model_dir)
            gateway = stack.enter_context(parts.running_gateway(chat, engine, store, admin_key=key, **config))
            return Serving(gateway, engine, Member(run_id="run", role="serve", host="gpu1", pid=1, url=gateway.url))

        yield start


@pytest.fixture
def serving(serve):
    return serve()


@pytest.fixture
def proxied(serving):
    """A serving member behind a proxy that can break connections, and the proxy."""
    host, port = serving.gateway.url.removeprefix("http://").split(":")
    proxy = CuttingProxy(host, int(port))
    yield attrs.evolve(serving, member=attrs.evolve(serving.member, url=f"http://127.0.0.1:{proxy.port}")), proxy
    proxy.close()


@pytest.fixture
def make_remote():
    def make(*servers, **options):
        options = {
            "run_id": "run",
            "member_id": "sampler",
            "admin_key": parts.ADMIN,
            "patience_s": 20.0,
            "backoff": Backoff(first_s=0.05, longest_s=0.05),
        } | options
        remote = RemoteGateway(**options)
        remote.update([server.member for server in servers])
        return remote

    return make


@pytest.fixture
def sample(make_remote):
    """Run `scenario(remote)` with the sampler's side of some servers."""

    def run(scenario, *servers, **options):
        async def sampling():
            remote = make_remote(*servers, **options)
            try:
                return await scenario(remote)
            finally:
                await remote.close()
                await close_borrowed()

        return asyncio.run(sampling())

    return run


@pytest.fixture
def make_runner(store, tmp_path):
    registry = Registry((), SimpleNamespace(adapt_agent=lambda **_: None))

    def make(workflow, gateway, *, scorer=None, **config):
        return Runner(
            source=resolve_workflow(workflow, registry=registry, base_dir=tmp_path),
            gateway=gateway,
            store=store,
            scorer_for=lambda _: normalize_scorer(scorer, "scorer"),
            config=RolloutConfig(**config),
            run_id="run",
            grace_s=0.5,
        )

    return make


TASK = Task(id="t", data={"id": "t", "messages": [{"role": "user", "content": "2+2?"}]})


@pytest.fixture
def episode(make_runner):
    """Run one episode of a workflow over a gateway."""

    async def run(workflow, gateway, *, slot=0, group_id="g", **options):
        runner = make_runner(workflow, gateway, **options)
        return await runner.run_episode(TASK, group_id=group_id, sample_index=slot, seed_key=(1, slot))

    return run
