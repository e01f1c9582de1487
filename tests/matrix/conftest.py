"""Fixtures of the matrix: a gateway with its store and a logging engine for every cell."""

import asyncio

import attrs
import httpx2
import pytest

from agentrl_core.api.stores import RunRow
from agentrl_core.chat import Chat
from agentrl_core.config.sampling_sections import GatewayConfig, SamplingConfig
from agentrl_core.gateway import Gateway
from agentrl_core.http.tls_context import ssl_context
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Outcome, Record

from .clients.base import Door
from .exactness import assert_one_chain, compare
from .policy import SpellingEngine, write_model
from .proxy import CuttingProxy
from .table import CELL


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def chat(model_dir):
    return Chat.from_directory(model_dir)


@attrs.define
class Stage:
    """What a cell plays on."""

    engine: SpellingEngine
    store: SQLiteStore
    gateway: Gateway
    record: Record
    session: object
    proxy: CuttingProxy
    by_socket: bool
    note: dict

    @property
    def log(self):
        return self.engine.log

    def play(self, client, scenario, *, tools=False, retries=0, proxied=False):
        """Run `scenario(conversation)` of a client that talks by this cell's door."""

        async def playing():
            base_url, socket = f"{self.session.base_url}/v1", httpx2.AsyncClient(verify=ssl_context(), timeout=60)
            if proxied:
                base_url = base_url.replace(self.gateway.url, f"http://127.0.0.1:{self.proxy.port}")
            door = Door(
                base_url=base_url,
                api_key=self.session.api_key,
                http_client=socket if self.by_socket else self.gateway.http_client,
                tools=tools,
                retries=retries,
            )
            conversation = client.talk(door)
            try:
                async with asyncio.timeout(30):
                    return await scenario(conversation)
            finally:
                await conversation.close()
                await socket.aclose()

        return asyncio.run(playing())

    def judge(self, *, calls, one_chain=True):
        """Compare store and samples with the engine's log; exactly so many calls, every trained token as sampled."""

        async def ended():
            interactions = await self.gateway.close_session(self.session)
            await self.store.finish_record(attrs.evolve(self.record, outcome=Outcome.SCORED, reward=1.0))
            return interactions, await self.store.episode(self.record.id)

        interactions, episode = asyncio.run(ended())
        assert [item.id for item in interactions] == [item.id for item in episode.interactions]
        assert len(episode.interactions) == calls
        verdict = compare(episode, self.log)
        self.note["exactness"] = verdict.share
        assert verdict.share == 1.0
        assert verdict.trained == verdict.sampled
        if one_chain:
            assert_one_chain(self.log)
        return episode


@pytest.fixture
def stage(chat, model_dir, tmp_path, request):
    engine, store = SpellingEngine(chat, model_dir), SQLiteStore(path=tmp_path / "run.db")
    gateway = Gateway(
        engine=engine,
        chat=chat,
        store=store,
        run_id="run",
        sampling=SamplingConfig(max_tokens=500),
        config=GatewayConfig(unseen_tools="allow"),  # the replies are written down: the policy need not see tools
        seed=7,
    )
    gateway.start()

    async def announced():
        await store.create_run(RunRow(id="run", created_at=0.0, status="running", config={}, components={}))
        (group,) = await store.add_evaluation("run", "train", ["t"], version=0, claimable=False)
        record = Record(id="r", run_id="run", task_id="t", group_id=group, sample_index=0)
        await store.add_record(record)
        return record

    record = asyncio.run(announced())
    host, port = gateway.url.removeprefix("http://").split(":")
    proxy = CuttingProxy(host, int(port))
    session = asyncio.run(gateway.open_session(record, seed_key=(1,)))
    by_socket = request.node.callspec.params.get("door", "socket") == "socket"
    yield Stage(engine, store, gateway, record, session, proxy, by_socket, request.node.stash.setdefault(NOTE, {}))
    gateway.close()
    engine.close()
    proxy.close()
    asyncio.run(store.close())


NOTE = pytest.StashKey[dict]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    where = getattr(item, "callspec", None)
    if where is None or not {"client", "case"} <= where.params.keys():
        return report
    found = None
    if report.skipped:
        found = {"impossible": report.longrepr[2].removeprefix("Skipped: ")}
    elif report.when == "call" or report.failed:
        found = {"door": where.params["door"], "ok": report.passed, **item.stash.get(NOTE, {})}
    if found is not None:  # tests may run in other processes: what is found travels with the report
        cell = [where.params["client"].name, where.params["case"], found]
        report.user_properties.append((CELL, cell))
    return report
