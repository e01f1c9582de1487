"""Several model servers behind one engine: which of them gets a call, and that all of them get new weights."""

import asyncio
import time
from types import SimpleNamespace

import attrs
import pytest

from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.engines.remote.failures import Absence
from agentrl_core.engines.remote.pool import ServerPool
from agentrl_core.engines.remote.server import Condition
from agentrl_core.errors import EngineError
from agentrl_core.http.backoff import Backoff
from agentrl_sglang.engine import SGLangEngine
from agentrl_testing.engines import ask, collect, request, run
from agentrl_vllm.engine import VLLMEngine

PROMPT = [1, 2, 3, 40, 50]


def of_group(group, **options):
    return attrs.evolve(request(PROMPT, **{"max_tokens": 3} | options), group=group)


@pytest.fixture(scope="module")
def two_servers(servers, decode):
    both = [servers.ModelServer(decode, "/policy") for _ in range(2)]
    yield both
    for server in both:
        server.close()


@pytest.fixture(params=[SGLangEngine, VLLMEngine])
def start(request, two_servers, monkeypatch):
    for module in ("running_calls", "member"):
        backoff = Backoff(first_s=0.001, longest_s=0.01)
        monkeypatch.setattr(f"agentrl_core.engines.remote.{module}.BACKOFF", backoff)
    engines = []

    def make(**options):
        engine = request.param(url=tuple(server.url for server in two_servers), **options)
        engines.append(engine)
        engine.start()
        return engine

    for server in two_servers:
        server.reset()
    yield make
    for engine in engines:
        engine.close()


async def play(engine, groups):
    return await asyncio.gather(*[collect(engine.generate(of_group(group)), PROMPT) for group in groups])


def until(condition, limit_s=20.0):
    """Wait for another thread."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def prompts_of(server):
    return [body for body in server.asked if len(body.get("input_ids") or body["token_ids"]) >= len(PROMPT)]


def test_a_group_stays_on_its_server_and_groups_are_shared_out(start, two_servers):
    engine = start()
    run(play(engine, [f"g{index % 4}" for index in range(16)]))
    assert [len(prompts_of(server)) for server in two_servers] == [8, 8]
    run(play(engine, ["g0"] * 3))
    assert sorted(len(prompts_of(server)) for server in two_servers) == [8, 11]


def test_all_servers_load_new_weights(start, two_servers, servers, tmp_path):
    engine = start()
    run(engine.load_weights(1, DirectoryWeights(servers.write_weights(tmp_path / "new", 1))))
    assert [(server.salt, server.label) for server in two_servers] == [(1, "1"), (1, "1")]
    for result in run(play(engine, ["a", "b", "c", "d"])):
        assert set(result.versions) == {1}
        assert result.logprobs == pytest.approx(servers.reference_logprobs(1, PROMPT, result.ids, 1.0), abs=1e-9)


def test_weights_that_one_server_cannot_load_are_an_error(start, two_servers, servers, tmp_path):
    engine = start()
    new = DirectoryWeights(servers.write_weights(tmp_path / "new", 1))
    two_servers[1].broken = True
    with pytest.raises(EngineError, match=f"{two_servers[1].url}.*cannot load"):
        run(engine.load_weights(1, new))
    versions = {version for result in run(play(engine, ["a", "b", "c", "d"])) for version in result.versions}
    assert versions == {0, 1}


@pytest.mark.parametrize("resumes", [True, False])
def test_no_server_stays_paused_when_one_cannot_be_paused(start, two_servers, servers, tmp_path, resumes, caplog):
    engine = start()
    new = DirectoryWeights(servers.write_weights(tmp_path / "new", 1))
    for server in two_servers:
        server.controls.clear()
    two_servers[1].refused = {"pause"} if resumes else {"pause", "continue"}
    with pytest.raises(EngineError, match=f"{two_servers[1].url}.*cannot pause"):
        run(engine.load_weights(1, new))
    assert [[name for name, _ in server.controls][-1:] for server in two_servers] == [
        ["continue"],
        ["continue"] if resumes else [],
    ]
    assert (f"{two_servers[1].url}: not resumed" in caplog.text) is not resumes
    assert [len(result.ids) for result in run(play(engine, ["a", "b", "c", "d"]))] == [3] * 4


def test_a_restarted_server_gets_calls_again_when_it_has_the_weights(start, two_servers, servers, tmp_path, caplog):
    engine = start()
    run(engine.load_weights(1, DirectoryWeights(servers.write_weights(tmp_path / "1", 1))))
    two_servers[0].reset()
    two_servers[0].broken = True
    for result in run(play(engine, [f"g{index}" for index in range(6)])):
        assert set(result.versions) == {1}
    assert f"{two_servers[0].url}" in caplog.text
    assert "was the server restarted?" in caplog.text
    two_servers[0].broken = False
    run(engine.load_weights(2, DirectoryWeights(servers.write_weights(tmp_path / "2", 2))))
    until(lambda: all(line.endswith("ready") for line in engine.servers))
    two_servers[0].asked.clear()
    for result in run(play(engine, [f"h{index}" for index in range(6)])):
        assert set(result.versions) == {2}
    assert len(prompts_of(two_servers[0])) == 3


def test_calls_go_to_the_other_server_while_one_is_away(start, two_servers):
    engine = start()
    two_servers[0].lost = True  # it accepts connections, and closes them
    results = run(play(engine, [f"g{index}" for index in range(6)]))
    assert [len(result.ids) for result in results] == [3] * 6
    assert len(prompts_of(two_servers[1])) == 6


def test_servers_of_different_models_are_refused(start, two_servers):
    two_servers[1].cards = [{"id": "other", "max_model_len": 512}]
    with pytest.raises(EngineError, match="different models: policy, other"):
        start()


def test_the_smallest_context_counts(start, two_servers):
    two_servers[1].context_length = 300
    engine = start()
    assert engine.context_length == 300
    assert len(run(ask(engine, PROMPT, max_tokens=2)).ids) == 2


class TestChoice:
    @pytest.fixture
    def clock(self):
        return SimpleNamespace(now=0.0)

    @pytest.fixture
    def pool(self, clock):
        pool = ServerPool(None)
        for name in "ab":
            absence = Absence(name, patience_s=1e9, clock=lambda: clock.now)
            pool.add(
                SimpleNamespace(
                    num_placed=0, num_kept=0, version=0, condition=Condition.READY, absence=absence, name=name
                )
            )
        return pool

    def place(self, pool, asked=None, versions=()):
        call = SimpleNamespace(request=asked or request(PROMPT), server=None, versions=list(versions))
        pool.place(call)
        return call

    def test_a_new_group_goes_to_the_less_busy_server(self, pool):
        first, second = pool.servers
        first.num_placed = 1
        assert self.place(pool, of_group("g")).server is second
        second.num_placed = 5
        assert self.place(pool, of_group("g")).server is second
        assert self.place(pool, of_group("h")).server is first

    def test_a_session_without_a_group_stays_as_well(self, pool):
        first, second = pool.servers
        asked = attrs.evolve(request(PROMPT), session="s")
        assert self.place(pool, asked).server is first
        first.num_placed = 1
        assert self.place(pool, asked).server is first
        assert self.place(pool).server is second

    def test_a_server_that_fails_gets_a_call_again_after_a_while(self, pool, clock):
        first, second = pool.servers
        first.absence.begin("broken")
        assert self.place(pool, of_group("g")).server is second
        clock.now = 31.0
        assert self.place(pool, of_group("h")).server is first
        first.absence.begin("still broken")
        assert self.place(pool, of_group("h")).server is second

    def test_when_all_fail_the_last_to_go_is_tried(self, pool, clock):
        first, second = pool.servers
        second.absence.begin("broken")
        clock.now = 1.0
        first.absence.begin("broken")
        assert self.place(pool, of_group("g")).server is first

    def test_a_server_out_of_service_gets_no_calls_and_its_groups_do_not_come_back(self, pool):
        first, second = pool.servers
        assert self.place(pool, of_group("g")).server is first
        first.condition = Condition.OUT
        moved = self.place(pool, of_group("g"))
        assert moved.server is second
        second.condition = Condition.OUT
        assert pool.place(moved) is None
        assert [server.num_placed for server in pool.servers] == [1, 0]
        first.condition = second.condition = Condition.READY
        assert self.place(pool, of_group("g")).server is second

    def test_groups_wait_for_their_server_while_it_loads_weights(self, pool):
        first, _ = pool.servers
        assert self.place(pool, of_group("g")).server is first
        first.condition = Condition.UPDATING
        assert self.place(pool, of_group("g")).server is first

    def test_tokens_of_new_weights_are_not_continued_by_old_ones(self, pool):
        first, second = pool.servers
        assert self.place(pool, of_group("g")).server is first
        second.version = 1
        first.condition = Condition.UPDATING  # it has version 1 when it gets the call
        assert self.place(pool, of_group("g"), versions=[0, 1]).server is first
        first.condition = Condition.READY
        assert self.place(pool, of_group("g"), versions=[0, 1]).server is second

    def test_servers_that_return_share_what_is_new_and_no_more(self, pool):
        """No herd: the groups that moved stay, and new ones go there until both are as busy."""
        first, second = pool.servers
        first.condition = Condition.OUT
        moved = [self.place(pool, of_group(f"g{index}")) for index in range(6)]
        assert [call.server for call in moved] == [second] * 6
        first.condition = Condition.READY
        assert [pool.place(call) for call in moved] == [second] * 6
        new = [self.place(pool, of_group(f"h{index}")) for index in range(8)]
        assert [call.server for call in new].count(first) == 7

    def test_forgotten_groups_are_no_longer_counted(self, pool, monkeypatch):
        monkeypatch.setattr("agentrl_core.engines.remote.pool._MOST_KEPT", 4)
        for index in range(20):
            pool.release(self.place(pool, of_group(f"g{index}")))
        assert [(server.num_placed, server.num_kept) for server in pool.servers] == [(0, 2), (0, 2)]

    def test_patience_ends_when_no_server_is_up(self, pool, clock):
        first, second = pool.servers
        assert pool.has_other_up(first)
        second.absence.begin("broken")
        assert not pool.has_other_up(first)
        clock.now = 2e9
        second.absence.begin("broken", others_are_up=True)
        with pytest.raises(EngineError, match="b: the model server has been away"):
            second.absence.begin("broken")
