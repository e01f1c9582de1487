"""The engine in front of model servers: the same behaviour with SGLang and vLLM, and no wrong data is taken."""

import asyncio
import contextlib
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import pytest
import torch
from starlette.responses import JSONResponse, Response, StreamingResponse
from tokenizers import Tokenizer

from agentrl_core.api.remote import ReplyPart
from agentrl_core.api.weights import DirectoryWeights, ModuleWeights
from agentrl_core.engines.remote.calls import RemoteCall
from agentrl_core.engines.remote.failures import RETRIES
from agentrl_core.errors import EngineError, UnavailableError, UnservableError
from agentrl_core.http.backoff import Backoff
from agentrl_core.types import FinishReason, Grammar
from agentrl_sglang.engine import SGLangEngine
from agentrl_testing.engines import ask, collect, request, run
from agentrl_testing.policy import write_tokenizer
from agentrl_vllm.engine import VLLMEngine

ENGINES = {"sglang": SGLangEngine, "vllm": VLLMEngine}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("policy")
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def decode(model_dir):
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


@pytest.fixture(scope="module")
def one_server(servers, decode, model_dir):
    server = servers.ModelServer(decode, str(model_dir))
    yield server
    server.close()


@pytest.fixture
def server(one_server):
    one_server.reset()
    return one_server


PROMPT = [1, 2, 3, 40, 50]


@pytest.fixture(params=["sglang", "vllm"])
def kind(request):
    return request.param


@pytest.fixture
def start(server, model_dir):
    engines = []

    def make(kind, **options):
        engines.append(ENGINES[kind](**{"url": server.url, "model_dir": model_dir} | options))
        engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def test_the_likeliest_tokens_are_told(server, start, kind):
    asked = attrs.evolve(request(PROMPT, max_tokens=4), top_logprobs=3)
    result = run(collect(start(kind).generate(asked), PROMPT))
    (chunk,) = [result.last]
    assert [len(top) for top in chunk.top_logprobs] == [3] * 4
    for top in chunk.top_logprobs:
        assert [logprob for _, logprob in top] == sorted((logprob for _, logprob in top), reverse=True)
    for token, logprob, top in zip(result.ids, result.logprobs, chunk.top_logprobs, strict=True):
        assert dict(top).get(token, logprob) == logprob
        assert logprob <= top[0][1]
    assert result.last.cached_tokens == 8


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_changes_tokens_not_logprobs(servers, start, kind, temperature):
    grammar = Grammar(kind="regex", value="[a-z]*")
    result = run(ask(start(kind), PROMPT, grammar=grammar, temperature=temperature, max_tokens=12))
    assert max(result.ids) < 100  # the server's own grammar: it allows these only
    assert result.logprobs == pytest.approx(servers.reference_logprobs(0, PROMPT, result.ids, 1.0), abs=1e-9)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_that_min_tokens_bars_are_not_sampled_and_change_no_logprob(server, servers, start, kind, temperature):
    stops = tuple(range(servers.VOCAB - 4))
    asked = {"stop_token_ids": stops, "min_tokens": 3, "max_tokens": 8, "temperature": temperature, "seed": 2}
    result = run(ask(start(kind), [1, 2], **asked))
    assert not set(result.ids[:2]) & set(stops)
    assert result.ids[-1] in stops
    assert len(result.ids) >= asked["min_tokens"]
    assert list(result.logprobs) == pytest.approx(servers.reference_logprobs(0, [1, 2], result.ids, 1.0), abs=1e-6)


def test_the_models_own_ends_are_ignored_as_the_server_takes_it(server, start, kind):
    engine = start(kind)
    run(ask(engine, [1, 2], ignore_eos=True, max_tokens=2))
    asked = server.asked[-1]["sampling_params"]
    assert (asked["ignore_eos"], asked["stop_token_ids"]) == (True, [])
    if kind == "sglang":
        with pytest.raises(UnservableError, match="SGLang then ignores stop_token_ids as well"):
            run(ask(engine, [1, 2], ignore_eos=True, stop_token_ids=(7,)))


def test_grammars_are_written_as_the_server_takes_them(server, start, kind):
    engine = start(kind)
    for grammar in (
        Grammar(kind="json_object"),
        Grammar(kind="json_schema", value="{}"),
        Grammar(kind="regex", value="a"),
    ):
        run(ask(engine, PROMPT, grammar=grammar, max_tokens=2))
    asked = [body["sampling_params"] for body in server.asked]
    sent = [sampling.get("structured_outputs") or sampling for sampling in asked if _is_constrained(sampling)]
    if kind == "vllm":
        assert sent[-3:] == [{"json_object": True}, {"json": "{}"}, {"regex": "a"}]
    else:
        assert [item.get("json_schema") for item in sent] == ['{"type": "object"}', "{}", None]
        assert sent[2]["regex"] == "a"


def _is_constrained(sampling):
    return "structured_outputs" in sampling or sampling.get("max_new_tokens")


@pytest.mark.parametrize(
    ("kind", "sampling", "says"),
    [
        ("sglang", {"grammar": Grammar(kind="lark", value="start: A")}, "EBNF"),
        ("sglang", {"grammar": Grammar(kind="json_object"), "temperature": 0.7}, "temperature"),
        ("vllm", {"top_p": 0.5}, "top_p"),
        ("vllm", {"temperature": 0.5, "min_tokens": 1}, "min_tokens needs temperature 0 or 1"),
    ],
)
def test_what_would_get_other_logprobs_is_refused(server, start, kind, sampling, says):
    engine = start(kind)
    before = len(server.asked)
    with pytest.raises(UnservableError, match=says):
        run(ask(engine, PROMPT, **sampling))
    assert len(server.asked) == before


@pytest.fixture
def new_weights(servers, tmp_path):
    return DirectoryWeights(servers.write_weights(tmp_path / "new", 1))


def test_a_server_with_other_weights_loads_the_policys_first(server, servers, start, kind, tmp_path):
    policy = servers.write_weights(tmp_path / "policy", 7)
    engine = start(kind, model_dir=policy)
    loading = {"sglang": ["load"], "vllm": ["load", "flush", "name"]}[kind]
    first = {"sglang": [], "vllm": ["continue"]}[kind]
    assert [name for name, _ in server.controls] == [*first, "pause", *loading, "continue"]
    result = run(ask(engine, PROMPT))
    assert set(result.versions) == {0}
    assert result.logprobs == pytest.approx(servers.reference_logprobs(7, PROMPT, result.ids, 1.0), abs=1e-9)


def test_a_server_that_an_earlier_run_left_paused_is_resumed(server, start, kind):
    left = start(kind)
    run(left.pause())
    assert server.label == "default"
    assert len(run(ask(start(kind), PROMPT, max_tokens=3)).ids) == 3


def test_a_restarted_server_loads_the_weights_again(server, servers, start, kind, new_weights, caplog):
    engine = start(kind)
    run(engine.load_weights(1, new_weights))
    server.reset()
    result = run(ask(engine, PROMPT))
    assert set(result.versions) == {1}
    assert result.logprobs == pytest.approx(servers.reference_logprobs(1, PROMPT, result.ids, 1.0), abs=1e-9)
    assert "weights of version 0, after version 1 was loaded; was the server restarted?" in caplog.text


def test_a_restarted_server_that_cannot_load_ends_the_run(server, start, kind, new_weights):
    engine = start(kind, patience_s=0.2)
    run(engine.load_weights(1, new_weights))
    server.reset()
    server.broken = True
    with pytest.raises(EngineError, match=r"away for .* than engine\.patience_s = 0\.2 allows.*cannot load"):
        run(ask(engine, PROMPT))


def test_a_live_module_travels_over_a_directory_that_goes_away(server, servers, start, kind):
    class Module(torch.nn.Module):
        def save_pretrained(self, directory):
            servers.write_weights(directory, 3)

    engine = start(kind)
    run(engine.load_weights(2, ModuleWeights(Module())))
    (path,) = [
        body.get("model_path") or body["kwargs"]["weights_path"] for name, body in server.controls if name == "load"
    ]
    assert server.salt == 3
    assert Path(path).is_dir()
    engine.close()
    assert not Path(path).exists()


def test_weights_are_written_before_the_servers_pause(server, servers, start, kind):
    class Module(torch.nn.Module):
        def save_pretrained(self, directory):
            assert "pause" not in [name for name, _ in server.controls]
            servers.write_weights(directory, 3)

    engine, source = start(kind), ModuleWeights(Module())
    server.controls.clear()

    async def publish():
        await engine.prepare_weights(2, source)
        assert server.controls == []
        return await engine.load_weights(2, source)

    publication = run(publish())
    assert (publication.version, publication.path) == (2, "disk")
    assert publication.bytes > 0
    assert 0 < publication.stall_s <= publication.seconds


def test_weights_that_cannot_be_read_leave_the_old_ones(server, start, kind, tmp_path):
    engine = start(kind)

    async def fail_then_ask():
        with pytest.raises(EngineError, match="Failed to load"):
            await engine.load_weights(1, DirectoryWeights(tmp_path / "nothing"))
        return await ask(engine, PROMPT)

    assert set(run(fail_then_ask()).versions) == {0}


def test_weights_of_somebody_else_are_refused(server, start, kind):
    engine = start(kind)
    server.label = "experiment-b"
    with pytest.raises(EngineError, match="'experiment-b'"):
        run(ask(engine, PROMPT))


def test_weights_that_another_process_has_loaded_are_followed(server, start, kind):
    engine = start(kind)
    server.label = "4"
    assert set(run(ask(engine, PROMPT)).versions) == {4}
    assert engine.version == 4


def test_an_interrupted_request_asks_for_the_rest(server, start, kind, new_weights):
    engine = start(kind)
    prompt, limit, seed = {
        "sglang": ("input_ids", "max_new_tokens", "sampling_seed"),
        "vllm": ("token_ids", "max_tokens", "seed"),
    }[kind]
    server.asked.clear()

    async def update_in_flight():
        asked = request(PROMPT, stream=True, max_tokens=300)
        chunks = engine.generate(asked)
        first = await anext(chunks)
        await engine.load_weights(1, new_weights)
        return await collect(chunks, PROMPT, [first])

    result = run(update_in_flight())
    first, second = server.asked
    num_before = len(second[prompt]) - len(PROMPT)
    assert second[prompt] == [*PROMPT, *result.ids[:num_before]]
    assert second["sampling_params"][limit] == 300 - num_before
    assert first["sampling_params"][seed] != second["sampling_params"][seed]
    assert result.versions == (0,) * num_before + (1,) * (300 - num_before)


def test_a_stop_string_across_an_interruption_ends_the_output():
    """The server sees the first half of it in the prompt, and goes on."""
    asked = request(PROMPT, max_tokens=10, stop=("never said", "cd"))
    call = RemoteCall(request=asked, mailbox=None, limit=15, decode=lambda ids: bytes(ids).decode(), seed=0)
    call.next_request("policy")
    call.accept(ReplyPart(ids=tuple(b"abc"), logprobs=(-1.0,) * 3, finish_reason=FinishReason.ABORT), [0] * 3)
    call.next_request("policy")
    call.accept(ReplyPart(ids=tuple(b"defg"), logprobs=(-2.0,) * 4), [1] * 4)
    assert (bytes(call.ids), call.reason, call.stop_string) == (b"abcd", FinishReason.STOP, "cd")
    assert (call.logprobs, call.versions) == ([-1.0, -1.0, -1.0, -2.0], [0, 0, 0, 1])


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [({"stop_token_ids": (99,)}, FinishReason.STOP), ({"max_tokens": 3}, FinishReason.LENGTH), ({}, None)],
)
def test_an_abort_after_the_last_token_leaves_nothing_to_ask(sampling, reason):
    asked = request(PROMPT, **{"max_tokens": 10} | sampling)
    limit = len(PROMPT) + asked.sampling.max_tokens
    call = RemoteCall(request=asked, mailbox=None, limit=limit, decode=None, seed=0)
    call.next_request("policy")
    call.accept(ReplyPart(ids=tuple(b"abc"), logprobs=(-1.0,) * 3, finish_reason=FinishReason.ABORT), [0] * 3)
    assert call.reason is reason


def test_stop_strings_are_found_after_the_models_directory_has_gone(server, start, kind, tmp_path, monkeypatch):
    """A server of `agentrl serve` starts with a published version, which later ones replace."""
    write_tokenizer(tmp_path / "version-0")
    monkeypatch.setattr(server, "model_path", str(tmp_path / "version-0"))
    engine = start(kind, model_dir=tmp_path / "version-0")
    text = server.decode(run(ask(engine, PROMPT, max_tokens=6)).ids)
    shutil.rmtree(tmp_path / "version-0")
    result = run(ask(engine, PROMPT, max_tokens=6, stop=(text[2:4],)))
    assert result.last.stop_string == text[2:4]


def test_leaving_stops_the_server(server, start, kind):
    engine = start(kind)

    async def leave():
        chunks = engine.generate(request(PROMPT, max_tokens=400, stream=True))
        await anext(chunks)
        await chunks.aclose()
        await asyncio.to_thread(server.stopped.wait, 10)

    run(leave())
    assert server.stopped.is_set()
    if kind == "sglang":  # it would notice by itself seconds later
        assert [name for name, _ in server.controls if name != "continue"] == ["abort"]


def stream_of(*bodies):
    async def pieces():
        for body in bodies:
            yield body

    return StreamingResponse(pieces(), media_type="text/event-stream")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Waits that take no time worth speaking of; one entry for each."""
    waits = []

    def count(_least, most):
        waits.append(most)
        return most

    for module in ("running_calls", "member"):
        backoff = Backoff(first_s=0.001, longest_s=0.01, uniform=count)
        monkeypatch.setattr(f"agentrl_core.engines.remote.{module}.BACKOFF", backoff)
    return waits


def full(after=None):
    return JSONResponse({"error": {"message": "full"}}, 429, {"retry-after": after} if after else {})


FAULTS = [
    (lambda: JSONResponse({"error": "out of memory"}, 500), 502, "out of memory"),
    (lambda: Response(b"<h1>Bad Gateway</h1>", 502), 502, "Bad Gateway"),
    (lambda: Response(b"", 503), 503, "status 503"),
    (lambda: Response(b"", 504), 504, "status 504"),
    (full, 429, "overloaded"),
    (lambda: Response(b"<html>", 200), 502, "not JSON"),
    (lambda: Response(b"[1]", 200), 502, "not a JSON object"),
    (lambda: Response(b"{", 200, {"content-length": "50"}), 502, "ended before|heard"),
]
"""Faults that may pass, what an agent is told if they do not, and how."""


@pytest.mark.parametrize(("fault", "status", "says"), FAULTS)
def test_a_fault_that_passes_costs_a_call_nothing(server, start, kind, fault, status, says):
    engine = start(kind)
    server.faults = [fault() for _ in range(RETRIES)]
    assert len(run(ask(engine, PROMPT, max_tokens=3)).ids) == 3
    assert server.faults == []


@pytest.mark.parametrize(("fault", "status", "says"), FAULTS)
def test_a_fault_that_stays_fails_the_call_and_not_the_run(server, start, kind, fault, status, says):
    engine = start(kind)
    server.faults = [fault() for _ in range(RETRIES + 1)]
    with pytest.raises(UnavailableError, match=says) as raised:
        run(ask(engine, PROMPT))
    assert raised.value.status == status
    assert len(run(ask(engine, PROMPT, max_tokens=3)).ids) == 3


def test_a_server_that_wants_more_time_than_is_waited_is_not_asked_again(server, start, kind):
    engine = start(kind)
    server.faults = [full("7")]
    with pytest.raises(UnavailableError) as raised:
        run(ask(engine, PROMPT))
    assert (raised.value.status, raised.value.retry_after_s) == (429, 7.0)


@pytest.mark.parametrize("status", [301, 402, 404, 405, 418, 505])
def test_a_status_that_will_not_pass_fails_one_call_at_once(server, start, kind, status):
    engine = start(kind)
    server.faults = [Response(b"", status, {"location": "http://elsewhere/"})]
    with pytest.raises(UnavailableError, match=f"status {status}") as raised:
        run(ask(engine, PROMPT))
    assert raised.value.status == 502
    assert len(run(ask(engine, PROMPT, max_tokens=3)).ids) == 3


@pytest.mark.parametrize(
    ("fault", "kind_of_error", "says"),
    [
        (lambda: JSONResponse({"error": {"message": "too long"}}, 400), UnservableError, "too long"),
        (lambda: JSONResponse({"error": {"message": "too long"}}, 413), UnservableError, "too long"),
        (lambda: JSONResponse({"detail": "no"}, 401), EngineError, "api_key_env"),
        (lambda: JSONResponse({"ok": True}), UnavailableError, "is not what"),
    ],
)
def test_what_asking_again_would_not_change_is_told_at_once(server, start, kind, fault, kind_of_error, says):
    engine = start(kind)
    server.faults = [fault()]
    with pytest.raises(EngineError, match=says) as raised:
        run(ask(engine, PROMPT))
    assert type(raised.value) is kind_of_error
    assert len(run(ask(engine, PROMPT, max_tokens=3)).ids) == 3


@pytest.mark.parametrize(
    "events",
    [
        (b'data: {"error": {"message": "out of memory", "code": 500}}\n\n',),
        (b"data: {\n\n",),
        (b"data: [DONE]\n\n",),
        (b"data: " + b"x" * 2000,),
    ],
)
def test_a_stream_that_breaks_off_is_asked_again_then_an_error(server, start, kind, events, monkeypatch):
    monkeypatch.setattr("agentrl_core.engines.remote.server._MOST_REPLY_BYTES", 1000)
    engine = start(kind)
    server.faults = [stream_of(*events)]
    assert len(run(collect(engine.generate(request(PROMPT, stream=True, max_tokens=3)), PROMPT)).ids) == 3
    server.faults = [stream_of(*events) for _ in range(RETRIES + 1)]
    with pytest.raises(UnavailableError, match=r"out of memory|not JSON|finish reason|more than 1000 bytes"):
        run(collect(engine.generate(request(PROMPT, stream=True))))


def test_silence_fails_the_call(server, start, kind, monkeypatch):
    engine = start(kind)
    # From now on only: on a busy machine, the answers to the engine's own questions may take longer.
    monkeypatch.setattr(engine._pool.servers[0]._client, "_silence_s", 0.2)

    async def silent():
        yield b""
        await asyncio.Event().wait()

    server.faults = [StreamingResponse(silent())]
    with pytest.raises(UnavailableError, match=r"nothing arrived for 0\.2 s") as raised:
        run(ask(engine, PROMPT))
    assert raised.value.status == 504


# A server that goes away.


class Relay:
    """Leads to the model server, until it is told to cut all connections, and to take none for a while."""

    def __init__(self, url):
        self._address = urlsplit(url)
        self._port = 0
        self._writers = set()

    async def open(self):
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    def cut(self):
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _talk(self, reader, writer):
        there, back = await asyncio.open_connection(self._address.hostname, self._address.port)
        ends = {writer, back}
        self._writers |= ends
        with contextlib.suppress(asyncio.CancelledError):  # at the end of the test
            await asyncio.gather(self._pipe(reader, back), self._pipe(there, writer))
        self._writers -= ends
        for end in ends:
            end.transport.abort()

    async def _pipe(self, source, target):
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        target.close()


@contextlib.asynccontextmanager
async def behind_relay(server, kind, model_dir, **options):
    """An engine whose way to its server can be cut; started on a thread, as `start` runs an event loop."""
    relay = Relay(server.url)
    await relay.open()
    try:
        engine = ENGINES[kind](url=relay.url, model_dir=model_dir, **options)
        await asyncio.to_thread(engine.start)
        try:
            yield engine, relay
        finally:
            engine.close()
    finally:
        relay.cut()


async def until_waited(waits, count):
    """Let the engine wait `count` more times before it asks again."""
    wanted = len(waits) + count
    while len(waits) < wanted:
        await asyncio.sleep(0.001)


def test_a_reply_goes_on_where_its_connection_was_cut(server, servers, model_dir, kind, short_waits):
    async def cut_in_the_middle():
        async with behind_relay(server, kind, model_dir) as (engine, relay):
            chunks = engine.generate(request(PROMPT, stream=True, max_tokens=60))
            first = await anext(chunks)
            relay.cut()
            await until_waited(short_waits, 2)
            await relay.open()
            return await collect(chunks, PROMPT, [first])

    result = run(cut_in_the_middle())
    assert len(result.ids) == 60
    expected = servers.reference_logprobs(0, PROMPT, result.ids, 1.0)
    assert list(result.logprobs) == pytest.approx(expected, abs=1e-6)


def test_calls_wait_for_a_server_that_is_away_and_can_be_aborted_meanwhile(server, model_dir, kind, short_waits):
    async def away_and_back():
        async with behind_relay(server, kind, model_dir) as (engine, relay):
            relay.cut()
            asked = [request(PROMPT, max_tokens=3) for _ in range(4)]
            waiting = [asyncio.ensure_future(collect(engine.generate(item), PROMPT)) for item in asked]
            await until_waited(short_waits, 4 * 3 * RETRIES)
            assert not any(task.done() for task in waiting)
            await engine.abort(asked[0].request_id)
            aborted = await waiting[0]
            await relay.open()
            return aborted, [await task for task in waiting[1:]]

    aborted, replies = run(away_and_back())
    assert aborted.last.finish_reason is FinishReason.ABORT
    assert [len(reply.ids) for reply in replies] == [3, 3, 3]


def test_a_server_that_stays_away_ends_the_run_in_the_end(server, model_dir, kind):
    async def away():
        async with behind_relay(server, kind, model_dir, patience_s=0.2) as (engine, relay):
            relay.cut()
            await ask(engine, PROMPT)

    with pytest.raises(EngineError, match=r"away for .* than engine\.patience_s = 0\.2 allows") as raised:
        run(away())
    assert not isinstance(raised.value, UnservableError)


def test_new_weights_reach_a_server_that_was_away(server, servers, model_dir, kind, new_weights, short_waits):
    async def load():
        async with behind_relay(server, kind, model_dir) as (engine, relay):
            relay.cut()
            loading = asyncio.ensure_future(engine.load_weights(1, new_weights))
            await until_waited(short_waits, 3)
            await relay.open()
            await loading
            return await ask(engine, PROMPT)

    result = run(load())
    assert set(result.versions) == {1}
    assert list(result.logprobs) == pytest.approx(servers.reference_logprobs(1, PROMPT, result.ids, 1.0), abs=1e-6)


def test_an_output_whose_end_was_lost_behind_its_last_token_is_whole():
    def broken_off(text, **sampling):
        asked = request(PROMPT, **{"max_tokens": 5} | sampling)
        call = RemoteCall(request=asked, mailbox=None, limit=10, decode=lambda ids: bytes(ids).decode(), seed=0)
        call.next_request("policy")
        call.accept(ReplyPart(ids=tuple(text), logprobs=(-1.0,) * len(text)), [0] * len(text))
        call.end_where_due()
        return call.reason, call.stop_string

    stop = {"stop": ("bc",)}
    assert broken_off(b"abxde", **stop) == (FinishReason.LENGTH, None)
    assert broken_off(b"abc", **stop) == (FinishReason.STOP, "bc")
    assert broken_off(b"abc", stop_token_ids=(99,), stop=("x",)) == (FinishReason.STOP, None)
    assert broken_off(b"ab", **stop) == (None, None)


def in_sglang(change):
    def spoil(body):
        change(body["meta_info"], body)
        return body

    return spoil


def in_vllm(change):
    def spoil(body):
        change(body["choices"][0], body)
        return body

    return spoil


@pytest.mark.parametrize(
    ("kind", "spoil", "says"),
    [
        ("sglang", in_sglang(lambda meta, _: meta.pop("output_token_logprobs")), "upstream"),
        ("sglang", in_sglang(lambda meta, _: meta["output_token_logprobs"].pop()), "3 tokens|4 tokens"),
        ("sglang", in_sglang(lambda meta, body: body.update(output_ids=[9, 9, 9, 9])), "output_ids"),
        ("sglang", in_sglang(lambda meta, _: meta["output_token_logprobs"][0].__setitem__(0, None)), "logprob"),
        ("sglang", in_sglang(lambda meta, _: meta["output_token_logprobs"][0].__setitem__(1, "a")), "output_ids|id"),
        ("sglang", in_sglang(lambda meta, _: meta.update(finish_reason=None)), "finish reason"),
        (
            "sglang",
            in_sglang(lambda meta, _: meta.update(weight_versions=[{"version": "1", "start": 0, "end": 9}])),
            "request .*: the server reports the weight versions .* for an output of 4 tokens",
        ),
        ("vllm", in_vllm(lambda choice, _: choice.pop("token_ids")), "upstream"),
        ("vllm", in_vllm(lambda choice, _: choice.pop("logprobs")), "upstream"),
        ("vllm", in_vllm(lambda choice, _: choice["logprobs"]["content"].pop()), "4 token ids and 3 logprobs"),
        ("vllm", in_vllm(lambda choice, _: choice["token_ids"].append(5)), "4 tokens, but sent 5"),
        ("vllm", in_vllm(lambda _, body: body["usage"].update(prompt_tokens=7)), "a prompt of 7 tokens"),
        ("vllm", in_vllm(lambda choice, _: choice["logprobs"]["content"][0].update(logprob=-9999.0)), "logprob"),
        ("vllm", in_vllm(lambda choice, _: choice["weight_versions"][0].update(end=9)), "reports the weight versions"),
        ("vllm", in_vllm(lambda choice, _: choice.update(finish_reason=None)), "finish reason"),
    ],
)
def test_data_that_does_not_fit_together_is_refused(server, start, kind, spoil, says):
    engine = start(kind)
    server.spoil = spoil
    with pytest.raises(EngineError, match=says):
        run(ask(engine, PROMPT, max_tokens=4))


def test_more_tokens_than_asked_for_are_refused(server, start):
    engine = start("sglang")

    def spoil(body):
        meta = body["meta_info"]
        meta["output_token_logprobs"].append([-1.0, 5, None])
        meta["completion_tokens"] += 1
        body["output_ids"].append(5)
        return body

    server.spoil = spoil
    with pytest.raises(EngineError, match="sent 5 tokens, expected at most 4"):
        run(ask(engine, PROMPT, max_tokens=4))


def test_a_server_that_gives_up_again_and_again_is_an_error(server, start):
    engine = start("sglang")
    meta = {"completion_tokens": 0, "output_token_logprobs": [], "finish_reason": {"type": "abort", "message": "x"}}
    server.faults = [JSONResponse({"output_ids": [], "meta_info": meta}) for _ in range(3)]
    with pytest.raises(EngineError, match="aborted it 3 times"):
        run(ask(engine, PROMPT))


def test_the_key_comes_from_the_environment(server, start, kind, monkeypatch):
    server.key = "sk-0123456789"
    with pytest.raises(EngineError, match="401"):
        start(kind)
    with pytest.raises(EngineError, match="SERVER_KEY is empty or not set"):
        start(kind, api_key_env="SERVER_KEY")
    monkeypatch.setenv("SERVER_KEY", server.key)
    assert len(run(ask(start(kind, api_key_env="SERVER_KEY"), PROMPT, max_tokens=2)).ids) == 2


def test_a_server_that_does_not_run_is_named(start):
    with pytest.raises(EngineError, match="Is the server running"):
        start("sglang", url="http://127.0.0.1:1")


def test_a_model_that_is_not_served_is_refused(start, kind):
    with pytest.raises(EngineError, match="serves policy, not 'other'"):
        start(kind, model="other")


@pytest.mark.parametrize("model", [None, "policy"])
def test_a_server_without_a_model_is_refused(server, start, kind, model):
    server.cards = []
    with pytest.raises(EngineError, match=r"http://.*: the server serves no model; start it with one"):
        start(kind, model=model)
