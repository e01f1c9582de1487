"""Control of SGLang servers, and what its package relies on, against a fake with the released request classes."""

import asyncio
import itertools
import json
import threading

import attrs
import httpx2
import pytest
from tests.servers.forward import forward_logprobs

from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.errors import EngineError, UnservableError
from agentrl_sglang.engine import SGLangEngine
from agentrl_testing.engines import ask, collect, request, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROMPT = [index % 250 for index in range(40)]
GAP = 1e-4
ENDLESS = {"max_new_tokens": 16000, "ignore_eos": True}
"""Sampling of an output that ends only when a test aborts it."""
HANG_S = 300
"""Time after which what a test waits for counts as hung."""


@pytest.fixture(scope="module")
def forward(toys):
    return forward_logprobs(toys)


def gap(forward, version, prompt, ids, logprobs):
    """Largest difference of logprobs to those of a forward pass by transformers."""
    expected = forward(version, tuple(prompt), tuple(ids), 1.0)
    return max(abs(one - other) for one, other in zip(logprobs, expected, strict=True))


def post(fake, path, body=None, *, status=200):
    """Send a body, or an empty one, and return the reply, which must have the status."""
    reply = httpx2.post(f"{fake.url}{path}", json={} if body is None else body, timeout=120)
    assert reply.status_code == status, reply.text
    return reply.json() if reply.headers.get("content-type") == "application/json" else reply.text


def load(fake, folder, version, **more):
    return post(fake, "/update_weights_from_disk", {"model_path": str(folder), "weight_version": version} | more)


def generate(**body):
    return {"input_ids": PROMPT, "return_logprob": True, "sampling_params": {"max_new_tokens": 4}} | body


@pytest.fixture
def engine_of(toys, tmp_path):
    """Start an engine in front of an address."""
    engines = []

    def start(url, **options):
        engines.append(SGLangEngine(url=url, model_dir=toys[0], weights_dir=tmp_path, **options))
        engines[-1].start()
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


# The fake: what it refuses.


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"sampling_params": {"max_new_tokens": "4"}}, 'invalid type: string "4", expected i64'),
        ({"sampling_params": {"max_tokens": 4}}, "unknown field `max_tokens`"),
        ({"sampling_params": {"top_p": 0.0}}, "top_p must be in (0, 1]"),
        ({"sampling_params": {"max_new_tokens": 20000}}, "exceeds the model's maximum context length"),
        ({"input_ids": []}, "input_ids cannot be empty"),
        ({"input_ids": ["a"]}, "input_ids"),
        ({"return_logprobs": True}, "return_logprobs"),
        ({"return_sampling_mask": True}, "return_sampling_mask requires top_k=1"),
        ({"lora_path": "none"}, "not loaded"),
    ],
)
def test_requests_that_sglang_refuses_are_refused_with_its_reply(fake, body, says):
    told = post(fake, "/generate", generate(**body), status=400)
    assert says in json.dumps(told, ensure_ascii=False).replace('\\"', '"')


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/pause_generation", {"mode": "keep"}),
        ("/update_weights_from_disk", {"weight_version": "1"}),
        ("/update_weights_from_disk", {"model_path": 1}),
        ("/update_weights_from_disk", {"model_path": "/nowhere", "version": "1"}),
        ("/abort_request", {"id": "1"}),
        ("/release_memory_occupation", {"tags": "weights"}),
    ],
)
def test_commands_that_sglang_refuses_are_refused(fake, path, body):
    post(fake, path, body, status=400)


# The package's own commands.


def commands():
    """Every command that the package sends."""
    from agentrl_core.api.publishers import TensorInfo, TransferGroup
    from agentrl_sglang.protocol import SGLang

    protocol = SGLang()
    group = TransferGroup(
        name="g", address="127.0.0.1", port=1, first_rank=1, world_size=2, backend="nccl", bucket_bytes=1, packed=True
    )
    tensors = [TensorInfo(name="w", dtype="bfloat16", shape=(2, 3))]
    yield from protocol.pause()
    yield from protocol.resume()
    yield from protocol.load_weights("/weights", "1")
    yield from protocol.abort("1-r")
    yield from protocol.collective.join(group)
    yield from protocol.collective.begin()
    yield from protocol.collective.receive(group, tensors, "1", is_last=False)
    yield from protocol.collective.receive(group, tensors, "1", is_last=True)
    yield from protocol.collective.end("1")
    yield from protocol.collective.leave(group)
    yield from protocol.handles.open([[]], "1")


CLASSES = {
    "/pause_generation": "PauseGenerationReqInput",
    "/continue_generation": "ContinueGenerationReqInput",
    "/update_weights_from_disk": "UpdateWeightFromDiskReqInput",
    "/abort_request": "AbortReq",
    "/init_weights_update_group": "InitWeightsUpdateGroupReqInput",
    "/destroy_weights_update_group": "DestroyWeightsUpdateGroupReqInput",
    "/begin_weight_update": "BeginWeightUpdateReqInput",
    "/end_weight_update": "EndWeightUpdateReqInput",
    "/update_weights_from_distributed": "UpdateWeightsFromDistributedReqInput",
    "/update_weights_from_tensor": "UpdateWeightsFromTensorReqInput",
}


def test_every_command_is_one_that_the_released_classes_accept(sglang_classes):
    """Also those of transfers without a disk, which the fake does not carry out."""
    import pydantic
    from tests.servers.sglang_schemas import fields_of

    sent = list(commands())
    assert {command.path for command in sent} == CLASSES.keys()
    for command in sent:
        kind = getattr(sglang_classes, CLASSES[command.path])
        pydantic.TypeAdapter(kind).validate_python(dict(command.body))
        assert command.body.keys() <= fields_of(kind)


# Pauses.


class Endless:
    """An endless output that has begun, read on a thread."""

    def __init__(self, fake, rid):
        self._fake, self._rid = fake, rid
        self._metas = []
        """Each event's `meta_info`."""
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.wait(lambda _: True)

    def _read(self):
        body = generate(rid=self._rid, sampling_params=ENDLESS | {"sampling_seed": 1}, stream=True)
        with httpx2.stream("POST", f"{self._fake.url}/generate", json=body, timeout=120) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    with self._news:
                        self._metas.append(json.loads(line.removeprefix("data: "))["meta_info"])
                        self._news.notify_all()

    def wait(self, condition):
        """Return the first `meta_info` that meets a condition."""
        with self._news:
            assert self._news.wait_for(lambda: any(map(condition, self._metas)), HANG_S)
            return next(filter(condition, self._metas))

    def abort(self):
        post(self._fake, "/abort_request", {"rid": self._rid})

    def end(self):
        """Wait for the end, and return the last `meta_info`."""
        self._thread.join(HANG_S)
        assert not self._thread.is_alive()
        return self._metas[-1]


def test_an_abort_keeps_the_tokens_so_far_and_says_why(fake):
    output = Endless(fake, "x-1")
    post(fake, "/pause_generation")
    meta = output.end()
    post(fake, "/continue_generation")
    assert meta["finish_reason"] == {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert 0 < meta["completion_tokens"] == len(meta["output_token_logprobs"]) < ENDLESS["max_new_tokens"]


def test_retracted_requests_go_on_exactly_with_the_new_weights(fake, toys, forward):
    load(fake, toys[0], "a")
    output = Endless(fake, "x-2")
    post(fake, "/pause_generation", {"mode": "retract"})
    load(fake, toys[1], "b")
    post(fake, "/continue_generation")
    resumed = output.wait(lambda meta: meta["weight_version"] == "b")["completion_tokens"]
    output.wait(lambda meta: meta["completion_tokens"] >= resumed + 16)
    output.abort()
    meta = output.end()
    entries = meta["output_token_logprobs"]
    ids, logprobs = [entry[1] for entry in entries], [entry[0] for entry in entries]
    first, second = meta["weight_versions"]
    cut = first["end"]
    assert (first["version"], second["version"], second["end"]) == ("a", "b", len(ids))
    assert len(ids) >= cut + 16
    assert gap(forward, 0, PROMPT, ids[:cut], logprobs[:cut]) < GAP
    assert gap(forward, 1, [*PROMPT, *ids[:cut]], ids[cut:], logprobs[cut:]) < GAP


def test_requests_paused_in_place_make_a_load_that_flushes_fail(fake, toys):
    output = Endless(fake, "x-3")
    post(fake, "/pause_generation", {"mode": "in_place"})
    body = {"model_path": str(toys[1]), "weight_version": "c"}
    told = post(fake, "/update_weights_from_disk", body, status=400)
    assert "the cache was not flushed" in told["message"]
    assert "Flush cache failed" in post(fake, "/flush_cache", status=400)
    post(fake, "/continue_generation")
    output.abort()
    output.end()


# Weights and memory.


def test_the_checksum_follows_the_weights_and_a_broken_directory_changes_nothing(fake, toys, tmp_path):
    load(fake, toys[0], "a")
    first = post(fake, "/weights_checker")
    load(fake, toys[1], "b")
    second = post(fake, "/weights_checker", {"action": "checksum"})
    assert first["per_engine_checksum"] != second["per_engine_checksum"]
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    told = post(fake, "/update_weights_from_disk", {"model_path": str(tmp_path)}, status=400)
    assert "Rolling back to original weights" in told["message"]
    assert post(fake, "/weights_checker") == second


def test_memory_is_released_by_an_idle_server_only_and_taken_again(serve_fake, toys):
    fake = serve_fake(toys[0], "--enable-memory-saver")
    output = Endless(fake, "x-4")
    post(fake, "/release_memory_occupation", status=500)
    output.abort()
    assert output.end()["finish_reason"]["type"] == "abort"
    post(fake, "/release_memory_occupation", {"tags": ["weights", "kv_cache"]})
    post(fake, "/generate", generate(), status=500)
    post(fake, "/resume_memory_occupation", {"tags": ["weights"]})
    load(fake, toys[1], "b")
    post(fake, "/resume_memory_occupation", {"tags": ["kv_cache"]})
    assert post(fake, "/generate", generate())["meta_info"]["weight_version"] == "b"
    fake.close()


def test_an_adapter_is_loaded_from_its_directory_only(fake, tmp_path):
    body = {"lora_name": "one", "lora_path": str(tmp_path)}
    assert "adapter_config.json" in post(fake, "/load_lora_adapter", body, status=400)["error_message"]
    (tmp_path / "adapter_config.json").write_text("{}")
    assert post(fake, "/load_lora_adapter", body)["loaded_adapters"] == {"one": str(tmp_path)}
    assert "already exists" in post(fake, "/load_lora_adapter", body, status=400)["error_message"]
    post(fake, "/unload_lora_adapter", {"lora_name": "one"})


# The engine.


def test_sampling_masks_that_the_server_refuses_are_refused_before(fake, engine_of):
    engine = engine_of(fake.url)
    too_much = attrs.evolve(request(PROMPT, top_p=0.9), return_kept=True)
    with pytest.raises(UnservableError, match=r"set sampling.top_k"):
        run(collect(engine.generate(too_much), PROMPT))
    assert len(run(ask(engine, PROMPT, max_tokens=4)).ids) == 4


def test_outputs_without_stop_tokens_go_past_the_models_end_token(fake, engine_of, toys):
    engine = engine_of(fake.url)
    end = json.loads((toys[0] / "config.json").read_text())["eos_token_id"]
    results = [run(ask(engine, PROMPT, max_tokens=400, seed=seed)) for seed in range(3)]
    assert any(end in result.ids[:-1] for result in results)
    assert all(len(result.ids) == 400 for result in results)


@pytest.fixture
def behind(serve_fake, serve_router, toys):
    """Two fakes behind the real router."""
    fakes = [serve_fake(toys[0]) for _ in range(2)]
    yield fakes, serve_router([fake.url for fake in fakes])
    for fake in fakes:
        fake.close()


def test_servers_behind_the_real_router_are_restarted_removed_and_outlive_it(
    behind, serve_fake, serve_router, toys, engine_of, forward
):
    (first, second), router = behind
    engine = engine_of(router.url, patience_s=120.0)
    seeds = itertools.count()

    async def sampled(num):
        return await asyncio.gather(*[ask(engine, PROMPT, max_tokens=8, seed=next(seeds)) for _ in range(num)])

    async def until(condition):
        """Sample until something is so; a test's time limit ends this."""
        while not condition():
            assert all(result.versions[0] >= 1 for result in await sampled(2))

    async def story():
        await engine.load_weights(1, DirectoryWeights(toys[1]))
        results = await sampled(8)
        assert all(result.versions == (1,) * 8 for result in results)
        # One server is killed, and comes back with the weights that it was started with.
        first.close()
        again = await asyncio.to_thread(serve_fake, toys[0], port=first.port)
        await until(lambda: again.count('POST /update_weights_from_disk HTTP/1.1" 200 OK'))
        results += await sampled(8)
        for result in results:
            assert gap(forward, 1, PROMPT, result.ids, result.logprobs) < GAP
        # It is taken out of the router.
        await asyncio.to_thread(router.remove, again.url)
        await until(lambda: len(engine.servers) == 1)
        # The router ends, and is started again without workers; the engine keeps the server that it knows.
        router.close()
        await sampled(4)
        empty = await asyncio.to_thread(serve_router, [], port=router.port)
        await sampled(4)
        await asyncio.to_thread(empty.add, second.url)
        await asyncio.to_thread(empty.add, again.url)
        await until(lambda: sum("ready" in line for line in engine.servers) == 2)
        again.close()

    run(story())


def test_a_router_without_workers_is_an_error(serve_router, engine_of):
    router = serve_router([])
    with pytest.raises(EngineError, match="the router has no workers; start servers behind it"):
        engine_of(router.url)
