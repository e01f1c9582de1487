"""Control of a real vLLM on the CPU, and what its package relies on: each fact was once a surprise."""

import asyncio
import contextlib
import itertools
import json

import attrs
import httpx2
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.errors import EngineError
from agentrl_core.types import Grammar
from agentrl_testing.engines import ask, collect, request, run
from agentrl_vllm.engine import VLLMEngine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROMPT = [index % 250 for index in range(40)]
GAP = 1e-4


@pytest.fixture(scope="module")
def models(toys):
    return [AutoModelForCausalLM.from_pretrained(folder).eval() for folder in toys]


def gap(model, prompt, ids, logprobs):
    """Largest difference of logprobs to those of a forward pass by transformers."""
    with torch.no_grad():
        rows = model(torch.tensor([[*prompt, *ids]])).logits[0].double()[len(prompt) - 1 : -1].log_softmax(-1)
    found = rows[range(len(ids)), list(ids)] - torch.tensor(logprobs, dtype=torch.float64)
    return found.abs().max().item()


@pytest.fixture
def engine(toy_server, toys):
    engine = VLLMEngine(url=toy_server, model_dir=toys[0])
    engine.start()
    yield engine
    engine.close()


def post(server, path, body=None):
    reply = httpx2.post(f"{server}{path}", json=body, timeout=120)
    reply.raise_for_status()
    return reply.json() if reply.content else None


def test_the_same_prompt_before_and_after_a_publication_shows_no_cached_keys(engine, models, new_weights):
    """The prompt is in the prefix cache of the old weights.

    The policy shares its output layer with the embedding: without `agentrl_vllm.for_server` that layer would keep its
    first weights.
    """
    assert all(model.config.tie_word_embeddings for model in models)

    long = PROMPT * 8  # a block of the cache has 128 tokens on the CPU

    async def both():
        before = await ask(engine, long, max_tokens=8)
        again = await ask(engine, long, max_tokens=8, seed=1)
        await engine.load_weights(1, new_weights)
        return before, again, await ask(engine, long, max_tokens=8)

    before, again, after = run(both())
    assert again.last.cached_tokens > 0
    assert after.last.cached_tokens == 0
    assert gap(models[0], long, before.ids, before.logprobs) < GAP
    assert gap(models[1], long, after.ids, after.logprobs) < GAP
    assert gap(models[0], long, after.ids, after.logprobs) > 0.1


def test_weights_of_an_earlier_run_are_replaced_at_the_start(engine, toy_server, toys, models, new_weights):
    run(engine.load_weights(7, new_weights))
    engine.close()
    next_run = VLLMEngine(url=toy_server, model_dir=toys[0])
    next_run.start()
    result = run(ask(next_run, PROMPT, max_tokens=8))
    next_run.close()
    assert set(result.versions) == {0}
    assert gap(models[0], PROMPT, result.ids, result.logprobs) < GAP


def test_a_server_that_lost_the_weights_is_not_sampled_from_unnoticed(engine, toy_server, toys, new_weights, models):
    """As after a restart: the old weights, and the old name for them."""

    async def lose():
        await engine.load_weights(2, new_weights)
        post(toy_server, "/pause?mode=abort")
        load = {"method": "reload_weights", "kwargs": {"weights_path": str(toys[0])}}
        post(toy_server, "/collective_rpc", load)
        post(toy_server, "/reset_prefix_cache")
        post(toy_server, "/update_weight_version", {"new_version": "0"})
        post(toy_server, "/resume")
        call = asyncio.create_task(ask(engine, PROMPT, max_tokens=8))
        done, _ = await asyncio.wait([call], timeout=20)
        if not done:  # refused, until the next publication
            await engine.load_weights(3, new_weights)
        return await call

    result = run(lose())
    assert min(result.versions) >= 2
    assert gap(models[1], PROMPT, result.ids, result.logprobs) < GAP


def test_an_output_holds_to_a_grammar_with_the_logprobs_of_the_free_distribution(engine, models, decode):
    grammar = Grammar(kind="regex", value="[a-f]{6,9}")
    result = run(ask(engine, PROMPT, grammar=grammar, temperature=1.0, max_tokens=20, stop_token_ids=(2,)))
    said = decode([token for token in result.ids if token != 2])
    assert 6 <= len(said) <= 9
    assert set(said) <= set("abcdef")
    assert gap(models[0], PROMPT, result.ids, result.logprobs) < GAP


@contextlib.contextmanager
def streamed(server, name):
    """Yield the events of an endless output that has begun."""
    sampling = {"max_tokens": 16000, "temperature": 1.0, "logprobs": 0, "ignore_eos": True}
    body = {"request_id": name, "token_ids": PROMPT, "sampling_params": sampling, "stream": True}
    with httpx2.stream("POST", f"{server}/inference/v1/generate", json=body, timeout=120) as reply:
        lines = (line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: {"))
        events = (choice for line in lines for choice in json.loads(line)["choices"])
        yield itertools.chain([next(events)], events)


@pytest.mark.parametrize(("clears", "is_exact"), [("true", True), ("false", False)])
def test_kept_requests_are_exact_only_if_the_pause_clears_the_cache(toy_server, toys, models, clears, is_exact):
    """vLLM's documentation says that `mode=keep` ignores `clear_cache`; the server drops keys and values all the same.

    That is why the package aborts: an exact `keep` computes as much anew, and rests on an undocumented behaviour.
    """

    def load(version):
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(toys[version])}}
        post(toy_server, "/collective_rpc", body)
        post(toy_server, "/update_weight_version", {"new_version": "ab"[version]})
        post(toy_server, "/resume")

    post(toy_server, "/pause?mode=abort")
    load(0)
    with streamed(toy_server, f"kept-{clears}") as events:
        post(toy_server, f"/pause?mode=keep&clear_cache={clears}")
        load(1)
        # A request that comes later ends after as many steps: the kept one has sampled with the new weights, too.
        sampling = {"max_tokens": 64, "ignore_eos": True}
        post(toy_server, "/inference/v1/generate", {"token_ids": PROMPT, "sampling_params": sampling})
        post(toy_server, "/inference/v1/abort_requests", {"request_ids": [f"generate-tokens-kept-{clears}"]})
        seen = list(events)
    first, second = seen[-1]["weight_versions"]
    cut, ids = first["end"], [token for event in seen for token in event["token_ids"]]
    assert (first["version"], second["version"], second["end"]) == ("a", "b", len(ids))
    assert len(ids) >= cut + 16
    logprobs = [entry["logprob"] for event in seen for entry in event["logprobs"]["content"]]
    assert gap(models[0], PROMPT, ids[:cut], logprobs[:cut]) < GAP
    found = gap(models[1], [*PROMPT, *ids[:cut]], ids[cut:], logprobs[cut:])
    assert found < GAP if is_exact else found > 0.1


def test_a_stream_tells_the_versions_of_all_its_tokens_at_its_end(engine):
    asked = request(PROMPT, stream=True, max_tokens=6)
    result = run(collect(engine.generate(asked), PROMPT))
    assert result.versions == (0,) * 6


def test_many_likeliest_tokens_are_told(engine):
    told = run(collect(engine.generate(attrs.evolve(request(PROMPT, max_tokens=2), top_logprobs=19))))
    assert [len(top) for top in told.top_logprobs] == [19, 19]


def test_a_server_without_control_routes_is_refused_before_anything_is_sampled(serve_vllm, toys):
    """Last in this file: it replaces the server."""
    url = serve_vllm(toys[0], env={"OMP_NUM_THREADS": "1", "VLLM_SERVER_DEV_MODE": "0"})
    engine = VLLMEngine(url=url, model_dir=toys[0])
    engine.start()
    assert not engine.takes_weights
    with pytest.raises(EngineError, match="VLLM_SERVER_DEV_MODE=1"):
        run(engine.load_weights(1, DirectoryWeights(toys[1])))
    engine.close()
