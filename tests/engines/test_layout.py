"""The embedded engine's memory layouts, data types and devices."""

import asyncio
import copy
import statistics
import threading

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from agentrl_core.api.weights import DirectoryWeights, ModuleWeights
from agentrl_core.engines import layout
from agentrl_core.engines.batch import ContinuousBatch, _padding, compiled
from agentrl_core.engines.embedded import EmbeddedEngine
from agentrl_core.engines.fused import fused_decoder
from agentrl_core.engines.jobs import Job, Mailbox
from agentrl_core.errors import ConfigError, EngineError
from agentrl_testing.engines import ask, request, run

PROMPT = list(range(10, 74))
STOP = {"stop_token_ids": (1,)}
ARCHITECTURES = ["qwen3", "qwen2", "llama"]


@pytest.fixture
def packed(monkeypatch):
    """Store even tiny matrices in oneDNN's layout."""
    monkeypatch.setattr(layout, "PACKED_SIZE", 0)


async def several(engine, count=4):
    asked = [ask(engine, PROMPT[: 20 + 9 * index], seed=index, max_tokens=12) for index in range(count)]
    return await asyncio.gather(*asked)


@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed_weights_are_computed_with_before_and_after_an_update(start, policies, load, full_forward, architecture):
    old, new = policies(architecture), policies(architecture, seed=1)
    engine = start(model_dir=old)

    async def around_update():
        before = await several(engine)
        await engine.load_weights(1, DirectoryWeights(new))
        return before, await several(engine)

    for directory, results in zip((old, new), run(around_update()), strict=True):
        for result in results:
            expected = full_forward(load(directory), result.prompt_ids, result.ids)
            assert result.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 2**40])
def test_the_step_is_one_compiled_program(policies, load, monkeypatch, dtype, size):
    monkeypatch.setattr(layout, "PACKED_SIZE", size)
    decoder = fused_decoder(load(policies("qwen3")), 64, device=torch.device("cpu"), dtype=dtype)
    assert decoder.packed == (size == 0)
    assert isinstance(compiled(decoder), torch.jit.ScriptModule)


@pytest.mark.parametrize("size", [0, 2**40])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bfloat16_is_as_close_to_the_models_own_as_bfloat16_can_be(
    start, policies, full_forward, monkeypatch, architecture, size
):
    """Two ways to compute the same in bfloat16 differ by roundings; the gap of float32 to it is the yardstick."""
    monkeypatch.setattr(layout, "PACKED_SIZE", size)
    directories = [policies(architecture, seed=seed) for seed in (0, 1)]
    engine = start(model_dir=directories[0], dtype="bfloat16")
    assert (engine.implementation, engine.notice) == ("loop", "")

    async def around_update():
        before = await several(engine)
        await engine.load_weights(1, DirectoryWeights(directories[1]))
        return before, await several(engine)

    for directory, results in zip(directories, run(around_update()), strict=True):
        narrow = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()
        wide = copy.deepcopy(narrow).float()
        ours, theirs = [], []
        for result in results:
            own = full_forward(narrow, result.prompt_ids, result.ids)
            exact = full_forward(wide, result.prompt_ids, result.ids)
            ours += [abs(a - b) for a, b in zip(result.logprobs, exact, strict=True)]
            theirs += [abs(a - b) for a, b in zip(own, exact, strict=True)]
        assert 0 < statistics.mean(ours) < 1.5 * statistics.mean(theirs)


def test_float32_weights_are_rounded_once_for_a_bfloat16_engine(start, policies, load):
    """The engine's dtype may differ from the learner's, which then hands over float32 modules."""
    new = policies("qwen3", seed=1)

    async def sampled(engine, source):
        await engine.load_weights(1, source)
        return await ask(engine, PROMPT)

    wide = run(sampled(start(dtype="bfloat16"), ModuleWeights(load(new))))
    narrow = run(sampled(start(dtype="bfloat16"), DirectoryWeights(new)))
    assert (wide.ids, wide.logprobs) == (narrow.ids, narrow.logprobs)


@given(st.integers(1, 10_000))
def test_padding_leaves_eight_sizes_per_power_of_two(count):
    padded = count + _padding(count)
    assert count <= padded <= count * 1.125
    top = 1 << (padded.bit_length() - 1)
    assert padded * 8 % top == 0


@pytest.mark.parametrize("implementation", ["loop", "generate"])
@pytest.mark.parametrize("paused", [False, True])
def test_released_memory_is_reclaimed_and_running_requests_go_on(
    start, policies, load, full_forward, implementation, paused
):
    engine = start(implementation=implementation)
    new = policies("qwen3", seed=1)

    async def take_turns():
        streamed = engine.generate(request(PROMPT, stream=True, max_tokens=24))
        chunks = [await anext(streamed)]
        if paused:
            await engine.pause()
        await engine.release()
        with pytest.raises(EngineError, match="already been released"):
            await engine.release()
        await engine.load_weights(1, DirectoryWeights(new))
        held = 0 if implementation == "generate" else engine._batch._cache.rows.numel()
        if paused:
            await engine.resume()
        await engine.reclaim()
        with pytest.raises(EngineError, match="has not been released"):
            await engine.reclaim()
        chunks += [chunk async for chunk in streamed]
        return held, chunks

    held, chunks = run(take_turns())
    assert held == 0
    ids = [token for chunk in chunks for token in chunk.ids]
    assert len(ids) == 24
    assert {chunk.version for chunk in chunks} == {0, 1}
    late = [logprob for chunk in chunks if chunk.version == 1 for logprob in chunk.logprobs]
    expected = full_forward(load(new), PROMPT, ids)[-len(late) :]
    assert late == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("reclaims_first", [False, True])
def test_an_engine_outlives_a_release_whose_caller_is_cancelled(start, reclaims_first):
    engine = start()

    async def cancel_release():
        begin, free = threading.Event(), threading.Event()
        engine._ask(begin.wait)
        releasing = asyncio.create_task(engine.release())
        await asyncio.sleep(0)  # the command is queued
        engine._ask(free.wait)
        begin.set()
        while engine._freed is None:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)  # the caller now waits for the memory
        releasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await releasing
        if not reclaims_first:
            free.set()
            await engine.abort("nobody")  # returns after the memory was freed
        reclaiming = asyncio.create_task(engine.reclaim())
        await asyncio.sleep(0)
        free.set()
        await reclaiming
        return await ask(engine, PROMPT)

    assert run(cancel_release()).ids


def test_closing_a_released_engine_ends_its_requests(start):
    engine = start()

    async def close_released():
        await engine.release()
        waiting = asyncio.create_task(ask(engine, PROMPT))
        await engine.abort("nobody")  # returns after the request was queued
        await asyncio.to_thread(engine.close)
        with pytest.raises(EngineError, match="closed"):
            await waiting

    run(close_released())


def test_a_device_that_is_not_there_is_refused(policies):
    with pytest.raises(ConfigError, match=r"engine\.device: cuda:99"):
        EmbeddedEngine(model_dir=policies("qwen3"), device="cuda:99")


class OnMeta(TorchDispatchMode):
    """Refuse every operation that takes or makes a tensor elsewhere; the meta device itself lets some pass."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, made)):
            assert not isinstance(tensor, torch.Tensor) or tensor.device.type == "meta", f"{func}: {tensor.device}"
        return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_tensor_of_a_step_is_made_on_the_models_device(policies, load, architecture, dtype):
    """All but top-p and top-k, which read values, and the meta device has none."""
    model = copy.deepcopy(load(policies(architecture))).to(dtype)
    sizes = {"slots": 4, "context_length": 512, "prefix_tokens": 160, "prefill_tokens": 512}

    async def steps():
        batch = ContinuousBatch(model, **sizes, device=torch.device("meta"), dtype=dtype)
        for step, options in enumerate([{}, {"temperature": 0.0}, {"min_tokens": 9, "stop_token_ids": (1,)}]):
            asked = attrs.evolve(request(PROMPT, **options), top_logprobs=2 * step)
            batch.add(Job(request=asked, mailbox=Mailbox(), limit=100, decode=None, vocab_size=263))
            batch._admit()
            plan, _ = batch._plan()
            with OnMeta():
                sampled, *_ = batch._decoder(batch._cache.rows, batch._cache.store, plan)
            assert sampled.shape[1] == step + 1
            for row, job in enumerate(batch._rows):
                batch._save(row, job.ids[: job.filled])
                job.ids.append(1)
        batch.refresh(model.to("meta"))

    with torch.no_grad():
        asyncio.run(steps())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gpu_samples_like_the_cpu(start, policies, architecture, dtype):
    async def both(engine):
        greedy = await ask(engine, PROMPT, temperature=0.0, max_tokens=16)
        return [greedy, *await several(engine)]

    cpu, gpu = (
        run(both(start(model_dir=policies(architecture), device=device, dtype=dtype))) for device in ("cpu", "cuda")
    )
    tolerance = 1e-3 if dtype == "float32" else 0.1
    assert cpu[0].ids[:1] == gpu[0].ids[:1]
    for one, other in zip(cpu, gpu, strict=True):
        if one.ids == other.ids or dtype == "float32":
            assert one.ids == other.ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=tolerance)
