"""The table of faults in cookbook/models.md, row by row: what a fault of a model server or router costs."""

import asyncio
import re
from pathlib import Path

import attrs
import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse

from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.engines.remote.failures import RETRIES
from agentrl_core.errors import EngineError, UnavailableError
from agentrl_sglang.engine import SGLangEngine
from agentrl_testing.engines import ask, collect, request, run

PROMPT = [1, 2, 3, 40, 50]
PAGE = Path(__file__).parents[2] / "cookbook" / "models.md"
ROWS = {}
"""Rows of the table, by their first column → the test."""


def row(name):
    def note(test):
        ROWS[name] = test
        return test

    return note


class ShortWaits:
    """Waits that take no time, with a record of how long the server asked them to be."""

    longest_s = 10.0

    def __init__(self):
        self.asked = []

    def wait_s(self, attempt, asked_s=None):
        self.asked.append(asked_s)
        return asked_s if asked_s is not None and asked_s > self.longest_s else 0.001


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    waits = ShortWaits()
    for module in ("running_calls", "member"):
        monkeypatch.setattr(f"agentrl_core.engines.remote.{module}.BACKOFF", waits)
    monkeypatch.setattr("agentrl_core.engines.remote.fleet.LOOK_S", 0.002)
    return waits


@pytest.fixture(scope="module")
def module_servers(servers, decode):
    pair = [servers.ModelServer(decode, "/policy") for _ in range(3)]
    yield pair
    for server in pair:
        server.close()


@pytest.fixture
def pair(module_servers):
    for server in module_servers:
        server.reset()
    yield module_servers[:2]
    for server in module_servers:
        server.loads.set()


@pytest.fixture
def server(pair):
    return pair[0]


@pytest.fixture
def router(module_servers, pair):
    router = module_servers[2]
    router.workers = [server.url for server in pair]
    return router


@pytest.fixture
def start():
    engines = []

    def make(*servers, **options):
        urls = tuple(server.url for server in servers)
        engines.append(SGLangEngine(**{"url": urls, "model_dir": Path("/policy")} | options))
        engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def version(servers, tmp_path):
    return lambda number: DirectoryWeights(servers.write_weights(tmp_path / f"v{number}", number))


def is_sound(servers, result, *, salt=0, tokens=3):
    """Whether nothing was lost, doubled or made up: the logprobs are those of these tokens in this order."""
    expected = servers.reference_logprobs(salt, PROMPT, result.ids, 1.0)
    return len(result.ids) == tokens and list(result.logprobs) == pytest.approx(expected, abs=1e-9)


def fault(status, said="trouble", **headers):
    return lambda: JSONResponse({"error": {"message": said}}, status, headers)


def cut_off():
    return Response(b"{", 200, {"content-length": "50"})


async def sees(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


def in_service(engine):
    return {line.split(": ")[0] for line in engine.servers if line.endswith("ready")}


def passes_and_stays(engine, server, servers, make, *, status, says, more=0):
    """A fault that passes costs nothing; one that stays costs one call, and the agent is told."""
    server.faults = [make() for _ in range(RETRIES)]
    assert is_sound(servers, run(ask(engine, PROMPT, max_tokens=3)))
    server.faults = [make() for _ in range(RETRIES + 1 + more)]
    with pytest.raises(UnavailableError, match=says) as raised:
        run(ask(engine, PROMPT, max_tokens=3))
    assert raised.value.status == status
    server.faults = []
    assert is_sound(servers, run(ask(engine, PROMPT, max_tokens=3)))


@row("429")
def test_an_overloaded_server_is_asked_again_when_it_says(start, server, servers, waits):
    engine = start(server)
    passes_and_stays(engine, server, servers, fault(429), status=429, says=r"lower engine\.max_connections")
    waits.asked.clear()
    server.faults = [fault(429, **{"retry-after": "3"})()]
    assert is_sound(servers, run(ask(engine, PROMPT, max_tokens=3)))
    assert waits.asked == [3.0]
    server.faults = [fault(429, **{"retry-after": "60"})()]
    with pytest.raises(UnavailableError) as raised:
        run(ask(engine, PROMPT, max_tokens=3))
    assert (raised.value.status, raised.value.retry_after_s) == (429, 60.0)


@row("500")
def test_an_internal_error_is_asked_again(start, server, servers):
    passes_and_stays(start(server), server, servers, fault(500, "out of memory"), status=502, says="out of memory")


@row("503")
def test_a_server_that_is_not_ready_is_asked_again(start, server, servers):
    passes_and_stays(start(server), server, servers, fault(503), status=503, says="status 503: trouble")


@row("refused connection")
def test_calls_of_a_server_that_is_gone_go_on_elsewhere_or_wait(start, server, servers, decode):
    gone = servers.ModelServer(decode, "/policy")
    both, alone = start(server, gone), start(gone, patience_s=0.1)
    gone.close()
    assert all(is_sound(servers, result) for result in run(many(both)))
    with pytest.raises(EngineError, match=r"away for .*patience_s = 0\.1 allows; start it, then resume the run"):
        run(ask(alone, PROMPT))


async def many(engine, groups="abcdef"):
    asked = [attrs.evolve(request(PROMPT, max_tokens=3), group=group) for group in groups]
    return await asyncio.gather(*[collect(engine.generate(item), PROMPT) for item in asked])


@row("half a reply")
def test_half_a_reply_is_asked_for_again(start, server, servers):
    engine = start(server)
    passes_and_stays(engine, server, servers, cut_off, status=502, says="ended before the reply was complete")


@row("half a stream")
def test_after_half_a_stream_only_the_rest_is_asked_for(start, server, servers):
    engine = start(server)

    def three_tokens():
        """The beginning of a real stream."""
        result = run(ask(engine, PROMPT, max_tokens=3, seed=5))
        entries = [[value, token, None] for value, token in zip(result.logprobs, result.ids, strict=True)]
        meta = {"completion_tokens": 3, "weight_version": "default", "output_token_logprobs": entries}

        async def events():
            yield servers._event({"text": "", "output_ids": list(result.ids), "meta_info": meta})

        return StreamingResponse(events(), media_type="text/event-stream")

    server.faults = [three_tokens()]
    server.asked.clear()
    result = run(collect(engine.generate(request(PROMPT, stream=True, max_tokens=20)), PROMPT))
    assert is_sound(servers, result, tokens=20)
    (rest,) = server.asked
    assert rest["input_ids"] == [*PROMPT, *result.ids[:3]]
    assert rest["sampling_params"]["max_new_tokens"] == 17


@row("silence")
def test_a_server_that_says_nothing_costs_one_call(start, server, servers, monkeypatch):
    engine = start(server)
    client = engine._pool.servers[0]._client

    async def silent():
        yield b""
        await asyncio.Event().wait()

    server.faults = [StreamingResponse(silent())]
    # For this call only: on a busy machine, other answers may take longer.
    with monkeypatch.context() as briefly:
        briefly.setattr(client, "_silence_s", 0.2)
        with pytest.raises(UnavailableError, match=r"nothing arrived for 0\.2 s") as raised:
            run(ask(engine, PROMPT))
    assert raised.value.status == 504
    assert is_sound(servers, run(ask(engine, PROMPT, max_tokens=3)))


def spoilt(change):
    def spoil(body):
        change(body, body["meta_info"]["output_token_logprobs"])
        return body

    return spoil


@row("wrong ids")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda body, entries: (entries[1].__setitem__(1, 263), body["output_ids"].__setitem__(1, 263)), "sent 263 as"),
        (lambda body, entries: (entries[1].__setitem__(1, -1), body["output_ids"].__setitem__(1, -1)), "sent -1 as"),
        (lambda body, _: body["output_ids"].__setitem__(1, (body["output_ids"][1] + 1) % 263), "output_ids"),
        (lambda _, entries: entries.pop(), "3 tokens"),
        (lambda _, entries: entries[1].__setitem__(0, None), "None as the logprob"),
    ],
)
def test_a_reply_with_wrong_ids_or_logprobs_is_refused(start, server, policies, servers, change, says):
    model_dir = policies("qwen3")
    server.model_path = str(model_dir)
    try:
        engine = start(server, model_dir=model_dir)
        server.spoil = spoilt(change)
        with pytest.raises(UnavailableError, match=says) as raised:
            run(ask(engine, PROMPT, max_tokens=3))
        assert raised.value.status == 502
        server.spoil = None
        assert is_sound(servers, run(ask(engine, PROMPT, max_tokens=3)))
    finally:
        server.model_path = "/policy"


@row("weights of another run")
def test_weights_of_another_run_stop_the_run(start, server):
    engine = start(server)
    server.label = "experiment-b"
    with pytest.raises(
        EngineError, match="calls 'experiment-b', which this run did not load; let no other run"
    ) as raised:
        run(ask(engine, PROMPT))
    assert not isinstance(raised.value, UnavailableError)


@row("restarted server")
def test_a_restarted_server_loads_the_weights_in_use_before_it_samples(start, server, servers, version, caplog):
    engine = start(server)
    run(engine.load_weights(1, version(1)))
    server.reset()
    result = run(ask(engine, PROMPT, max_tokens=3))
    assert is_sound(servers, result, salt=1)
    assert set(result.versions) == {1}
    assert "was the server restarted?" in caplog.text


@row("slow to load")
def test_a_server_that_is_slow_to_load_does_not_hold_up_the_others(start, pair, servers, version, caplog):
    engine = start(*pair, straggler_s=0.05)

    async def publish():
        pair[1].loads.clear()
        await engine.load_weights(1, version(1))
        found = await many(engine)
        pair[1].loads.set()
        await sees(lambda: len(in_service(engine)) == 2)
        return found

    assert all(is_sound(servers, result, salt=1) for result in run(publish()))
    assert "within engine.straggler_s = 0.05 after the first server" in caplog.text


@row("refuses weights")
def test_a_server_that_refuses_weights_stops_the_run(start, pair, servers, version):
    engine = start(*pair)
    pair[1].broken = True
    with pytest.raises(EngineError, match=f"{pair[1].url}/update_weights_from_disk: status 400: cannot load"):
        run(engine.load_weights(1, version(1)))


@row("router gone")
def test_a_router_that_is_gone_and_back_costs_nothing(start, router, pair, servers, version, caplog):
    engine = start(router)

    async def gone_and_back():
        router.workers = None  # now 404, as from whatever else is at that address
        await sees(lambda: "the servers stay as they are" in caplog.text)
        await engine.load_weights(1, version(1))
        without = await many(engine)
        router.workers = [pair[0].url]
        await sees(lambda: in_service(engine) == {pair[0].url})
        return without

    assert all(is_sound(servers, result, salt=1) for result in run(gone_and_back()))


def test_every_row_of_the_page_has_a_test():
    section = PAGE.read_text(encoding="utf-8").partition("| fault |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)) - {"---"} == set(ROWS)
