"""The engine `vllm`: it passes the conformance suite, and says what a server lacks."""

import asyncio
import runpy
import sys
import types

import attrs
import pytest
from starlette.responses import JSONResponse

from agentrl_core.errors import EngineError, UnavailableError, UnservableError
from agentrl_core.plugins.manager import load_registry
from agentrl_testing.engines import EngineSuite, ask, collect, request, run
from agentrl_vllm.engine import VLLMEngine
from agentrl_vllm.program import FOR_SERVER


class OnVLLM(EngineSuite):
    @pytest.fixture
    def vocab_size(self, servers):
        return servers.VOCAB

    @pytest.fixture
    def reference_logprobs(self, servers):
        return servers.reference_logprobs  # the salt of version 0 is 0, that of version 1 is 1

    @pytest.fixture
    def grammars(self):
        """At temperatures other than 0 and 1, as the suite asks, the logprobs without one cannot be had."""
        return "refused"

    @pytest.fixture
    def engine_factory(self, server, model_dir):
        return lambda: VLLMEngine(url=server.url, model_dir=model_dir)


class TestVLLM(OnVLLM):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("spans", ["new", None])
class TestOtherVersions(OnVLLM):
    """Weight versions in each event of a stream, and none."""

    @pytest.fixture
    def server(self, server, spans):
        server.spans = spans
        return server


PROMPT = [1, 2, 3, 40, 50]


@pytest.fixture
def start(server, model_dir):
    engines = []

    def make():
        engines.append(VLLMEngine(url=server.url, model_dir=model_dir))
        engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


def test_raw_logprobs_serve_temperature_one_only(server, servers, start):
    server.scaled = False
    engine = start()
    with pytest.raises(UnservableError, match="--logprobs-mode processed_logprobs"):
        run(ask(engine, PROMPT, temperature=0.5))
    result = run(ask(engine, PROMPT, top_p=0.9))
    assert result.logprobs == pytest.approx(servers.reference_logprobs(0, PROMPT, result.ids, 1.0), abs=1e-9)


def test_a_server_without_control_routes_samples_and_says_that_it_takes_no_weights(server, start, new_weights):
    server.development = False
    engine = start()
    assert "never gets trained weights" in engine.notice
    assert len(run(ask(engine, PROMPT, max_tokens=3)).ids) == 3
    with pytest.raises(EngineError, match="VLLM_SERVER_DEV_MODE=1"):
        run(engine.load_weights(1, new_weights))


def test_a_server_without_the_route_is_told_how_to_start(server, start):
    server.probe_faults = [JSONResponse({"detail": "Not Found"}, 404)]
    with pytest.raises(
        EngineError, match=r"^http://127.0.0.1:\d+: vLLM has no route /inference/v1/generate; start vLLM 0\.32"
    ):
        start()


def test_new_weights_are_loaded_with_an_empty_cache_and_then_named(server, start, new_weights):
    engine = start()
    server.controls.clear()
    run(engine.load_weights(5, new_weights))
    loading = [item for item in server.controls if item[0] != "pause"]
    rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(new_weights.path)}}
    assert loading == [("load", rpc), ("flush", {}), ("name", {"new_version": "5"}), ("continue", {})]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_that_the_server_does_not_tell_is_found(server, start, decode, stream):
    engine = start()
    free = run(ask(engine, PROMPT, seed=1, max_tokens=100))
    stop = next(text for text in map(decode, ([token] for token in free.ids[5:])) if text.isascii() and text.isalpha())
    asked = request(PROMPT, seed=1, max_tokens=100, stop=("never said", stop), stream=stream)
    stopped = run(collect(engine.generate(asked), PROMPT))
    assert stopped.last.stop_string == stop
    assert stopped.ids == free.ids[: len(stopped.ids)]


def test_as_many_likeliest_tokens_as_the_server_tells(start):
    engine = start()
    told = run(collect(engine.generate(attrs.evolve(request(PROMPT, max_tokens=2), top_logprobs=19))))
    assert [len(top) for top in told.top_logprobs] == [19, 19]
    with pytest.raises(UnservableError, match="at most 19"):
        run(collect(engine.generate(attrs.evolve(request(PROMPT), top_logprobs=20))))


def test_a_config_names_the_engine():
    registry = load_registry(environ={})
    assert registry.load("engines", "vllm") is VLLMEngine


def test_a_stop_string_that_the_server_tells_is_taken(server, start, decode):
    engine = start()
    free = run(ask(engine, PROMPT, seed=1, max_tokens=100))
    stop = next(text for text in map(decode, ([token] for token in free.ids[5:])) if text.isascii() and text.isalpha())
    server.spoil = lambda body: _with_choice(body, stop_reason="from the server")
    stopped = run(ask(engine, PROMPT, seed=1, max_tokens=100, stop=(stop,)))
    assert stopped.last.stop_string == "from the server"


def test_a_kept_prefix_cache_is_an_error_although_the_status_is_200(server, start, new_weights):
    engine = start()
    server.holds_cache = True
    with pytest.raises(EngineError, match=r"/reset_prefix_cache: expected success: True, found .*false"):
        run(engine.load_weights(1, new_weights))


def test_a_logprob_of_another_token_is_refused(server, start):
    engine = start()

    def other(body):
        body["choices"][0]["logprobs"]["content"][1]["token_id"] = 262
        return body

    server.spoil = other
    with pytest.raises(UnavailableError, match="vLLM sent the logprob of token 262 for token"):
        run(ask(engine, PROMPT, seed=1, max_tokens=3))


def test_streamed_tokens_whose_weights_turn_out_to_be_others_fail_the_call(server, start, new_weights):
    """The server tells the versions at the end of a stream; by then its tokens have been passed on."""
    engine = start()
    run(engine.load_weights(3, new_weights))
    server.label = "default"  # as after a restart
    with pytest.raises(UnavailableError, match="sampled from weights of version 0, not 3"):
        run(collect(engine.generate(request(PROMPT, stream=True)), PROMPT))


def test_a_call_that_nobody_waits_for_is_aborted_by_its_name_at_the_server(server, start):
    engine = start()

    async def leave():
        stream = engine.generate(request(PROMPT, stream=True, max_tokens=400))
        await anext(stream)
        await stream.aclose()
        while not (aborts := [body["request_ids"] for name, body in server.controls if name == "abort"]):
            await asyncio.sleep(0.01)  # `run` limits the time
        return aborts[0]

    (name,) = run(leave())
    assert name == f"generate-tokens-{server.asked[-1]['request_id']}"


def _with_choice(body, **fields):
    if "usage" in body:
        body["choices"][0] |= fields
    return body


@pytest.fixture
def vllm_modules(monkeypatch):
    """Stand-ins for the modules of vLLM that the plugin inside a server touches."""

    def module(name, **content):
        made = types.ModuleType(name)
        vars(made).update(content)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    packed = []
    platform = types.SimpleNamespace(is_cpu=lambda: True)
    module("vllm.platforms", current_platform=platform)
    layers = module(
        "vllm.model_executor.layers.utils", dispatch_cpu_unquantized_gemm=lambda *given: packed.append(given)
    )
    return types.SimpleNamespace(platform=platform, layers=layers, packed=packed)


def test_inside_the_server_only_output_layers_use_their_weight_itself(vllm_modules):
    torch = pytest.importorskip("torch")
    plugin = runpy.run_path(str(FOR_SERVER / "agentrl_vllm_cpu.py"))
    plugin["register"]()
    dispatch = vllm_modules.layers.dispatch_cpu_unquantized_gemm
    inner, output = types.SimpleNamespace(), types.SimpleNamespace()
    dispatch(inner, remove_weight=True)
    dispatch(output, remove_weight=False)
    assert vllm_modules.packed == [(inner, True)]
    assert output.cpu_linear is torch.nn.functional.linear


def test_inside_a_server_on_a_gpu_nothing_is_changed(vllm_modules):
    vllm_modules.platform.is_cpu = lambda: False
    before = vllm_modules.layers.dispatch_cpu_unquantized_gemm
    runpy.run_path(str(FOR_SERVER / "agentrl_vllm_cpu.py"))["register"]()
    assert vllm_modules.layers.dispatch_cpu_unquantized_gemm is before
