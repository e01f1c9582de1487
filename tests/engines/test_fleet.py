"""Servers that join, leave, restart and lag while an engine samples from the others."""

import asyncio
import shutil
import threading
from pathlib import Path

import attrs
import pytest

from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.errors import EngineError
from agentrl_core.http.backoff import Backoff
from agentrl_sglang.engine import SGLangEngine
from agentrl_testing.engines import collect, request, run
from agentrl_vllm.engine import VLLMEngine

PROMPT = [1, 2, 3, 40, 50]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    for module in ("running_calls", "member"):
        monkeypatch.setattr(f"agentrl_core.engines.remote.{module}.BACKOFF", Backoff(first_s=0.001, longest_s=0.01))
    monkeypatch.setattr("agentrl_core.engines.remote.fleet.LOOK_S", 0.002)


@pytest.fixture(scope="module")
def module_fleet(servers, decode):
    fleet = [servers.ModelServer(decode, "/policy") for _ in range(3)]
    yield fleet
    for server in fleet:
        server.close()


@pytest.fixture
def fleet(module_fleet):
    for server in module_fleet:
        server.reset()
    yield module_fleet
    for server in module_fleet:
        server.loads.set()


@pytest.fixture(params=[SGLangEngine, VLLMEngine])
def kind(request):
    return request.param


@pytest.fixture
def start(tmp_path):
    engines = []

    def make(kind, **options):
        engines.append(kind(**{"model_dir": Path("/policy")} | options))
        engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def servers_file(tmp_path):
    """`servers_file(*servers)`: write the list, and return its path."""

    def write(*servers, more=""):
        path = tmp_path / "servers.txt"
        draft = path.with_suffix(".draft")
        draft.write_text("# the fleet\n\n" + "".join(f"{server.url}  # up\n" for server in servers) + more)
        return draft.replace(path)

    return write


@pytest.fixture
def version(servers, tmp_path):
    return lambda number: DirectoryWeights(servers.write_weights(tmp_path / f"v{number}", number))


async def play(engine, groups, **options):
    asked = [attrs.evolve(request(PROMPT, **{"max_tokens": 3} | options), group=group) for group in groups]
    return await asyncio.gather(*[collect(engine.generate(item), PROMPT) for item in asked])


def num_calls(server):
    return sum(len(body.get("input_ids") or body["token_ids"]) >= len(PROMPT) for body in server.asked)


async def sees(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


def in_service(engine):
    return {line.split(": ")[0] for line in engine.servers if line.endswith("ready")}


def test_a_server_joins_with_the_weights_in_use(kind, start, fleet, servers_file, servers, version):
    engine = start(kind, servers_file=servers_file(fleet[0]))

    async def join():
        await engine.load_weights(1, version(1))
        servers_file(fleet[0], fleet[1])
        await sees(lambda: fleet[1].url in in_service(engine))
        return await play(engine, "abcdef")

    results = run(join())
    assert fleet[1].label == "1"
    assert num_calls(fleet[0]) == num_calls(fleet[1]) == 3
    for result in results:
        assert set(result.versions) == {1}
        assert result.logprobs == pytest.approx(servers.reference_logprobs(1, PROMPT, result.ids, 1.0), abs=1e-9)


def test_labels_of_another_run_do_not_count_as_the_weights_in_use(start, fleet, servers_file, version):
    engine = start(SGLangEngine, servers_file=servers_file(fleet[0]))
    fleet[1].label, fleet[1].salt = "1", 99

    async def join():
        await engine.load_weights(1, version(1))
        servers_file(fleet[0], fleet[1])
        await sees(lambda: fleet[1].url in in_service(engine))

    run(join())
    assert fleet[1].salt == 1


def test_a_server_that_leaves_ends_its_calls_and_gets_no_more(kind, start, fleet, servers_file):
    engine = start(kind, servers_file=servers_file(fleet[0], fleet[1]))

    async def leave():
        asked = attrs.evolve(request(PROMPT, stream=True, max_tokens=100), group="g")
        chunks = engine.generate(asked)
        first = await anext(chunks)
        left = next(server for server in fleet if num_calls(server))
        (other,) = {server.url for server in fleet[:2]} - {left.url}
        servers_file(next(server for server in fleet if server.url == other))
        await sees(lambda: len(engine.servers) == 1)
        rest = await collect(chunks, PROMPT, [first])
        await play(engine, ["g"] * 4)
        return left, rest

    left, rest = run(leave())
    assert len(rest.ids) == 100
    assert num_calls(left) == 1


def test_a_server_that_is_listed_before_it_is_up_joins_when_it_answers(start, fleet, servers_file, servers, decode):
    engine = start(SGLangEngine, servers_file=servers_file(fleet[0], more="http://127.0.0.1:9\n"))
    assert in_service(engine) == {fleet[0].url}
    assert engine.servers[1] == "http://127.0.0.1:9: out of service"
    assert len(run(play(engine, "abcd"))) == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no server"),
        ("127.0.0.1:30000\n", r"servers\.txt:1: expected an address such as http://host:port, found '127"),
        ("http://127.0.0.1:9\n", "no answer|none of 1 servers answers"),
        ("http://me:secret@a:1\n", "must not contain a user name"),
    ],
)
def test_a_list_that_cannot_be_used_is_an_error_at_the_start(tmp_path, start, text, says):
    path = tmp_path / "servers.txt"
    path.write_text(text)
    with pytest.raises(EngineError, match=says) as raised:
        start(SGLangEngine, servers_file=path)
    assert "secret" not in str(raised.value)


def test_a_missing_list_is_named(tmp_path, start):
    with pytest.raises(EngineError, match=r"engine\.servers_file .*nothing\.txt: cannot be read"):
        start(SGLangEngine, servers_file=tmp_path / "nothing.txt")


def test_a_list_that_breaks_while_the_engine_runs_changes_nothing(start, fleet, servers_file, caplog):
    path = servers_file(fleet[0])
    engine = start(SGLangEngine, servers_file=path)

    async def broken():
        path.write_text("what is this\n")
        await sees(lambda: "the servers stay as they are" in caplog.text)
        return await play(engine, "ab")

    assert len(run(broken())) == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"context_length": 300}, "a context of 300 tokens, the others have 4096"),
        ({"cards": [{"id": "other"}]}, "the server serves other, not 'policy'"),
        ({"broken": True}, "cannot load"),
    ],
)
def test_a_server_that_does_not_fit_stays_out_and_is_named(start, fleet, servers_file, version, change, says, caplog):
    engine = start(SGLangEngine, servers_file=servers_file(fleet[0]))
    for name, value in change.items():
        setattr(fleet[1], name, value)

    async def join():
        await engine.load_weights(1, version(1))
        servers_file(fleet[0], fleet[1])
        await sees(lambda: says in caplog.text)
        return await play(engine, "abcd")

    assert len(run(join())) == 4
    assert in_service(engine) == {fleet[0].url}
    assert num_calls(fleet[1]) == 0


def test_each_server_samples_as_soon_as_it_has_the_weights(kind, start, fleet, version):
    engine = start(kind, url=tuple(server.url for server in fleet))

    async def publish():
        fleet[2].loads.clear()
        loading = asyncio.ensure_future(engine.load_weights(1, version(1)))
        await sees(lambda: len(in_service(engine)) == 2)
        early = await play(engine, "abcd")
        assert not loading.done()
        fleet[2].loads.set()
        await loading
        return early

    for result in run(publish()):
        assert set(result.versions) <= {1}
    assert engine.version == 1
    assert len(in_service(engine)) == 3


def test_a_slow_server_is_left_behind_and_catches_up(kind, start, fleet, version, caplog):
    engine = start(kind, url=tuple(server.url for server in fleet), straggler_s=0.05)

    async def publish():
        await play(engine, "abcdef")
        fleet[2].loads.clear()
        await engine.load_weights(1, version(1))
        assert "has not loaded version 1 within engine.straggler_s" in caplog.text
        assert in_service(engine) == {fleet[0].url, fleet[1].url}
        without = await play(engine, "abcdef")  # some of these groups were on the slow server
        fleet[2].loads.set()
        await sees(lambda: fleet[2].url in in_service(engine))
        return without

    for result in run(publish()):
        assert set(result.versions) == {1}
    assert fleet[2].label == "1"


def test_a_slow_server_that_misses_two_versions_loads_the_last_one(start, fleet, version):
    engine = start(SGLangEngine, url=tuple(server.url for server in fleet), straggler_s=0.05)

    async def publish():
        fleet[2].loads.clear()
        await engine.load_weights(1, version(1))
        await engine.load_weights(2, version(2))
        fleet[2].loads.set()
        await sees(lambda: len(in_service(engine)) == 3)
        return await play(engine, "abcdef")

    for result in run(publish()):
        assert set(result.versions) == {2}
    assert {server.label for server in fleet} == {"2"}


def test_a_slow_server_whose_version_is_gone_when_it_loads_gets_the_next_one(kind, start, fleet, version):
    """The next version replaces the last one on the disk, which a server that was left behind may still have to read.

    That it cannot is no refusal: it neither ends the run, nor gets the server calls with older weights.
    """
    engine = start(kind, url=tuple(server.url for server in fleet), straggler_s=0.05)

    async def publish():
        fleet[2].loads.clear()
        await engine.load_weights(1, gone := version(1))
        shutil.rmtree(gone.path)
        fleet[2].loads.set()
        await sees(
            lambda: [name for name, _ in fleet[2].controls].count("load") > 1
        )  # it has failed, and is tried again
        assert fleet[2].url not in in_service(engine)
        result = await play(engine, "abcdef")
        await engine.load_weights(2, version(2))
        await sees(lambda: len(in_service(engine)) == 3)
        return result

    for result in run(publish()):
        assert set(result.versions) == {1}
    assert {server.label for server in fleet} == {"2"}


def test_an_unforeseen_error_of_one_server_ends_the_engine_instead_of_waiting_for_ever(start, fleet, version):
    engine = start(SGLangEngine, url=fleet[0].url)

    def fail(*_):
        raise ZeroDivisionError("a package's mistake")

    async def publish():
        with pytest.raises(EngineError, match=f"{fleet[0].url}: ZeroDivisionError: a package's mistake"):
            async with asyncio.timeout(20):
                await engine._fleet.publish(1, fail)

    run(publish())


def test_a_wrong_address_in_a_list_that_changes_does_not_end_its_following(start, fleet, servers_file, caplog):
    engine = start(SGLangEngine, servers_file=servers_file(fleet[0]))

    async def change():
        servers_file(fleet[0], more="http://host:99999\n")
        await sees(lambda: "Port out of range" in caplog.text)
        servers_file(fleet[0], fleet[1])
        await sees(lambda: fleet[1].url in in_service(engine))

    run(change())
    assert caplog.text.count("Port out of range") == 1


def test_calls_go_on_through_publications_with_versions_that_rise(kind, start, fleet, servers, version):
    engine = start(kind, url=tuple(server.url for server in fleet))

    async def publish():
        calls = [asyncio.ensure_future(play(engine, [group] * 2, stream=True, max_tokens=150)) for group in "abcdef"]
        for number in (1, 2, 3):
            await engine.load_weights(number, version(number))
        return [result for both in [await call for call in calls] for result in both]

    for result in run(publish()):
        assert len(result.ids) == 150
        assert list(result.versions) == sorted(result.versions)
        last = result.versions.index(result.versions[-1])
        expected = servers.reference_logprobs(
            result.versions[-1], [*PROMPT, *result.ids[:last]], result.ids[last:], 1.0
        )
        assert list(result.logprobs[last:]) == pytest.approx(expected, abs=1e-9)


def test_a_server_without_names_for_weights_loads_them_again_after_a_broken_connection(start, fleet, servers, version):
    """It may have been restarted, and nothing else would tell."""
    engine = start(SGLangEngine, url=fleet[0].url)

    async def restarted():
        fleet[0].label = None
        await engine.load_weights(1, version(1))
        fleet[0].reset()
        fleet[0].label = None
        fleet[0].faults = [cut()]
        return await play(engine, "a")

    def cut():
        return servers.Response(b"{", 200, {"content-length": "50"})

    (result,) = run(restarted())
    assert fleet[0].salt == 1
    assert result.logprobs == pytest.approx(servers.reference_logprobs(1, PROMPT, result.ids, 1.0), abs=1e-9)


def test_the_engine_ends_while_a_server_loads(start, fleet, version):
    engine = start(SGLangEngine, url=fleet[0].url)

    async def end():
        fleet[0].loads.clear()
        loading = asyncio.ensure_future(engine.load_weights(1, version(1)))
        await sees(lambda: any(name == "load" for name, _ in fleet[0].controls))
        await asyncio.to_thread(engine.close)
        with pytest.raises(EngineError, match="closed"):
            await loading

    run(end())
    assert "fleet" not in {thread.name for thread in threading.enumerate()}


def test_a_closed_engine_says_so(start, fleet):
    engine = start(SGLangEngine, url=fleet[0].url)
    engine.close()
    for told in (engine.pause, engine.resume):
        with pytest.raises(EngineError, match="closed"):
            run(told())


class TestRouter:
    """A router stands for its workers, which are called directly."""

    def test_its_workers_get_the_calls_and_the_weights(self, start, fleet, version):
        router, *workers = fleet
        router.workers = [worker.url for worker in workers]
        engine = start(SGLangEngine, url=router.url)
        run(engine.load_weights(1, version(1)))
        run(play(engine, "abcd"))
        assert [worker.label for worker in workers] == ["1", "1"]
        assert [num_calls(worker) for worker in workers] == [2, 2]
        assert router.asked == []
        assert router.controls == []

    def test_a_worker_that_is_added_joins(self, start, fleet):
        router, *workers = fleet
        router.workers = [workers[0].url]
        engine = start(SGLangEngine, url=router.url)

        async def add():
            router.workers = [worker.url for worker in workers]
            await sees(lambda: len(in_service(engine)) == 2)

        run(add())

    @pytest.mark.parametrize(
        ("workers", "kind", "says"),
        [([], "regular", "the router has no workers"), (["http://a:1"], "prefill", "split into prefill")],
    )
    def test_a_router_without_usable_workers_is_an_error(self, start, fleet, workers, kind, says):
        fleet[0].workers, fleet[0].worker_type = workers, kind
        with pytest.raises(EngineError, match=f"{fleet[0].url}.*{says}"):
            start(SGLangEngine, url=fleet[0].url)
