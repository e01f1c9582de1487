"""What the embedded engine does beyond the suite: prefix reuse, its limits, and how it fails."""

import asyncio
import copy
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl_core.api.weights import DirectoryWeights, ModuleWeights
from agentrl_core.engines import batch as batch_module
from agentrl_core.engines.embedded import EmbeddedEngine
from agentrl_core.errors import EngineError
from agentrl_core.types import FinishReason
from agentrl_testing.engines import ask, collect, request, run
from agentrl_testing.policy import toy_policy

PROMPT = list(range(10, 74))


def cached(results):
    return [result.last.cached_tokens for result in results]


def test_a_second_turn_computes_only_what_is_new(start):
    engine = start()

    async def two_turns():
        first = await ask(engine, PROMPT, max_tokens=17)
        return first, await ask(engine, [*PROMPT, *first.ids, 1, 2, 3])

    first, second = run(two_turns())
    # 64 + 17 - 1 tokens have keys and values: ten blocks of eight.
    assert cached([first, second]) == [0, 80]


def test_a_group_that_arrives_together_computes_its_prompt_once(start):
    engine = start()

    async def group():
        await engine.pause()
        members = [asyncio.create_task(ask(engine, PROMPT, seed=seed)) for seed in range(8)]
        await asyncio.sleep(0)
        await engine.resume()
        return await asyncio.gather(*members)

    # The last prompt token is always computed: its logits are needed.
    assert cached(run(group())) == [0] + [len(PROMPT) - 1] * 7


def test_a_group_computes_a_few_new_tokens_of_a_known_prompt_once(start):
    engine = start()

    async def groups():
        first = await ask(engine, PROMPT)
        await engine.pause()
        members = [asyncio.create_task(ask(engine, [*PROMPT, 1, 2, 3], seed=seed)) for seed in range(4)]
        await asyncio.sleep(0)
        await engine.resume()
        return [first, *await asyncio.gather(*members)]

    assert cached(run(groups())) == [0, 64, 66, 66, 66]


def test_a_long_shared_prompt_is_waited_for_while_it_is_computed_in_pieces(start):
    engine = start(prefill_tokens=24)

    async def group():
        await engine.pause()
        members = [asyncio.create_task(ask(engine, PROMPT, seed=seed)) for seed in range(3)]
        await asyncio.sleep(0)
        await engine.resume()
        return await asyncio.gather(*members)

    assert cached(run(group())) == [0, 63, 63]


def test_no_prefix_outlives_its_weights(start, policies):
    engine = start()

    async def around_update():
        before = await ask(engine, PROMPT)
        again = await ask(engine, PROMPT)
        await engine.load_weights(1, DirectoryWeights(policies("qwen3", seed=1)))
        return before, again, await ask(engine, PROMPT)

    assert cached(run(around_update())) == [0, 63, 0]


@pytest.mark.parametrize("implementation", ["loop", "generate"])
def test_a_stop_string_in_the_prompt_ends_nothing(start, decode, implementation):
    engine = start(implementation=implementation)
    result = run(ask(engine, PROMPT, stop=(decode(PROMPT[-3:]),), max_tokens=3))
    assert len(result.ids) == 3
    assert result.last.finish_reason is FinishReason.LENGTH


def test_a_live_module_is_copied_when_it_is_loaded(start, policies, load, full_forward):
    engine = start()
    module = copy.deepcopy(load(policies("qwen3")))

    async def update_then_change():
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.01)
        await engine.load_weights(1, ModuleWeights(module))
        frozen = copy.deepcopy(module)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        return frozen, await ask(engine, PROMPT)

    frozen, result = run(update_then_change())
    assert result.logprobs == pytest.approx(full_forward(frozen, PROMPT, result.ids), abs=1e-4)


def test_buffers_are_loaded_into_generate_too(start, policies, load, full_forward):
    engine = start(implementation="generate")
    module = copy.deepcopy(load(policies("qwen3")))
    for buffer in module.buffers():
        buffer.mul_(0.5)

    async def update():
        await engine.load_weights(1, ModuleWeights(module))
        return await ask(engine, PROMPT)

    result = run(update())
    assert result.logprobs == pytest.approx(full_forward(module, PROMPT, result.ids), abs=1e-4)


def test_the_cache_grows_in_the_middle_of_generations(start, policies, load, full_forward):
    """From 8 rows of 256 tokens to more of both, while rows are in use."""
    engine = start()

    async def growing():
        asked = [request(PROMPT[: 5 + index], stream=True, max_tokens=300) for index in range(6)]
        streams = [engine.generate(one) for one in asked]
        begun = [await anext(stream) for stream in streams]
        first = [
            collect(stream, one.prompt_ids, [chunk]) for stream, one, chunk in zip(streams, asked, begun, strict=True)
        ]
        more = [ask(engine, PROMPT[: 20 + index], max_tokens=40) for index in range(6)]
        return await asyncio.gather(*first, *more)

    for result in run(growing()):
        expected = full_forward(load(policies("qwen3")), result.prompt_ids, result.ids)
        assert result.logprobs == pytest.approx(expected, abs=1e-4)


def test_the_engine_s_seed_changes_what_is_sampled(start):
    first, second = (run(ask(start(seed=seed), PROMPT, seed=5)) for seed in (0, 1))
    assert first.ids != second.ids


def test_top_p_and_top_k_reach_the_sampler(start):
    engine = start()

    async def three():
        greedy = await ask(engine, PROMPT, temperature=0.0)
        return greedy, await ask(engine, PROMPT, top_k=1, seed=3), await ask(engine, PROMPT, top_p=1e-6, seed=4)

    greedy, top_k, top_p = run(three())
    assert greedy.ids == top_k.ids == top_p.ids


def test_weights_are_loaded_while_agents_hold_every_thread_of_the_loops_pool(start, policies, load):
    engine = start()

    async def update():
        asyncio.get_running_loop().set_default_executor(closed)
        await engine.load_weights(1, ModuleWeights(load(policies("qwen3"))))
        await engine.load_weights(2, DirectoryWeights(policies("qwen3", seed=1)))

    closed = ThreadPoolExecutor(1)
    closed.shutdown()
    run(update())
    assert engine.version == 2


def test_weights_of_another_shape_are_refused_and_the_old_ones_stay(start, policies, tmp_path):
    engine = start()
    other = toy_policy(tmp_path, num_layers=1)

    async def refused():
        before = await ask(engine, PROMPT, temperature=0.0)
        with pytest.raises(EngineError, match=r"another model: model\.layers\.1\..* is missing, expected \("):
            await engine.load_weights(1, DirectoryWeights(other))
        return before, await ask(engine, PROMPT, temperature=0.0)

    before, after = run(refused())
    assert (after.ids, after.versions) == (before.ids, before.versions)


def test_weights_that_do_not_exist_are_named(start, tmp_path):
    with pytest.raises(EngineError, match=r"nowhere: no model directory \(config\.json is missing\)"):
        run(start().load_weights(1, DirectoryWeights(tmp_path / "nowhere")))


def test_a_broken_model_directory_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(EngineError, match="the model cannot be loaded"):
        EmbeddedEngine(model_dir=tmp_path)


def test_the_context_may_be_shorter_than_the_model_s_but_not_longer(policies):
    assert EmbeddedEngine(model_dir=policies("qwen3"), context_length=100).context_length == 100
    assert EmbeddedEngine(model_dir=policies("qwen3")).context_length == 1024
    with pytest.raises(EngineError, match="context_length is 2000, but the model has 1024 positions only"):
        EmbeddedEngine(model_dir=policies("qwen3"), context_length=2000)


def test_a_failure_in_the_thread_reaches_everyone_who_waits_and_who_comes(start, monkeypatch, caplog):
    engine = start()

    def fail(*_):
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(batch_module.ContinuousBatch, "step", fail)

    async def waiting_and_coming():
        tasks = [asyncio.create_task(ask(engine, PROMPT)) for _ in range(3)]
        for task in tasks:
            with pytest.raises(EngineError, match="the engine failed: ZeroDivisionError: boom") as caught:
                await task
            assert isinstance(caught.value.__cause__, ZeroDivisionError)
        for late in (ask(engine, PROMPT), engine.pause()):
            with pytest.raises(EngineError, match="boom"):
                await late

    run(waiting_and_coming())
    assert "the engine failed" in caplog.text


def test_a_weight_change_that_breaks_half_way_ends_the_engine(start, policies, monkeypatch):
    """Half-written weights must not sample."""
    engine = start()

    def fail(*_):
        raise RuntimeError("half written")

    monkeypatch.setattr(batch_module, "refresh", fail)

    async def update():
        with pytest.raises(EngineError, match="half written"):
            await engine.load_weights(1, DirectoryWeights(policies("qwen3", seed=1)))
        with pytest.raises(EngineError, match="half written"):
            await ask(engine, PROMPT)

    run(update())


def test_a_cancelled_command_leaves_the_engine_alone(start):
    engine = start()

    async def cancel():
        commands = [asyncio.create_task(engine.pause()) for _ in range(50)]
        await asyncio.sleep(0)
        for command in commands:
            command.cancel()
        await asyncio.gather(*commands, return_exceptions=True)
        await engine.resume()
        return await ask(engine, PROMPT)

    assert len(run(cancel()).ids) == 16


def test_a_consumer_whose_loop_has_ended_harms_nobody(start):
    engine = start()
    loop = asyncio.new_event_loop()
    chunks = engine.generate(request(PROMPT, max_tokens=200))
    task = loop.create_task(anext(chunks))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.call_later(0, loop.stop)
    loop.run_forever()
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    assert len(run(ask(engine, PROMPT)).ids) == 16


def test_the_switch_interval_is_shorter_while_any_engine_serves(start):
    before = sys.getswitchinterval()
    first, second = start(), start()
    first.close()
    assert sys.getswitchinterval() < before
    second.close()
    second.close()
    assert sys.getswitchinterval() == before


def test_close_ends_the_thread(start):
    engine = start()
    names = [thread.name for thread in threading.enumerate()]
    engine.close()
    assert names.count("engine") == 1
    assert "engine" not in [thread.name for thread in threading.enumerate()]


def test_start_is_called_once(start):
    engine = start()
    with pytest.raises(EngineError, match="already been started"):
        engine.start()


def test_the_engine_works_without_torchscript(start, monkeypatch):
    """The compiled step and the plain one are the same function."""
    compiled = run(ask(start(), PROMPT, seed=1))
    monkeypatch.setattr(batch_module, "compiled", lambda decoder: decoder)
    plain = run(ask(start(), PROMPT, seed=1))
    assert plain.ids == compiled.ids
    assert plain.logprobs == pytest.approx(compiled.logprobs, abs=1e-5)


@pytest.mark.parametrize(
    ("architecture", "options", "reason"),
    [
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
            "sliding-window attention",
        ),
        ("qwen3", {"hidden_act": "gelu"}, "activation gelu"),
        ("llama", {"mlp_bias": True}, "biases beside those of queries, keys and values"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rotary embedding"),
    ],
)
def test_what_the_loop_cannot_serve_goes_through_generate(tmp_path, architecture, options, reason):
    directory = toy_policy(tmp_path, architecture=architecture, **options)
    engine = EmbeddedEngine(model_dir=directory)
    assert engine.implementation == "generate"
    assert reason in engine.notice
    with pytest.raises(EngineError, match=f"loop does not serve {reason}"):
        EmbeddedEngine(model_dir=directory, implementation="loop")


def test_bfloat16_is_served_by_generate_too(start):
    engine = start(dtype="bfloat16", implementation="generate")
    assert len(run(ask(engine, PROMPT, max_tokens=3)).ids) == 3


def test_generate_on_demand_samples_like_the_loop(start):
    """Same random numbers, same distribution: the same tokens."""
    loop, generate = start(), start(implementation="generate")
    assert (loop.notice, loop.implementation) == ("", "loop")
    assert "as configured" in generate.notice

    async def same(engine):
        return await asyncio.gather(*[ask(engine, PROMPT[: 10 + 7 * index], seed=index) for index in range(6)])

    for one, other in zip(run(same(loop)), run(same(generate)), strict=True):
        assert one.ids == other.ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_an_architecture_without_a_longest_input_needs_one(tmp_path):
    config = AutoConfig.for_model("bloom", vocab_size=64, hidden_size=32, n_layer=1, n_head=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="states no maximum length; set context_length"):
        EmbeddedEngine(model_dir=tmp_path)
    engine = EmbeddedEngine(model_dir=tmp_path, context_length=128)
    engine.start()
    result = run(collect(engine.generate(request([1, 2, 3]))))
    engine.close()
    assert len(result.ids) == 16


def test_a_long_prompt_beside_a_long_answer_stays_inside_learned_positions(tmp_path, full_forward, load):
    """GPT-2 has a table of positions: a row that has ended must not push the batch beyond it."""
    torch.manual_seed(0)
    config = AutoConfig.for_model("gpt2", vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=64)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    engine = EmbeddedEngine(model_dir=tmp_path)
    engine.start()

    async def both():
        await engine.pause()
        tasks = [asyncio.create_task(ask(engine, list(range(n)), max_tokens=None)) for n in (60, 5)]
        await asyncio.sleep(0)
        await engine.resume()
        return await asyncio.gather(*tasks)

    results = run(both())
    engine.close()
    assert [len(result.ids) for result in results] == [4, 59]
    for result in results:
        assert result.logprobs == pytest.approx(full_forward(load(tmp_path), result.prompt_ids, result.ids), abs=1e-4)
