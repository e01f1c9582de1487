"""Every publication to model servers is proven: each fault on the way of the weights is found and named."""

import asyncio
import copy
import re
import threading

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl_core.api.weights import DirectoryWeights, ModuleWeights
from agentrl_core.engines.remote.server import Condition
from agentrl_core.errors import EngineError
from agentrl_core.http.backoff import Backoff
from agentrl_core.weights.place import WeightsPlace
from agentrl_sglang.engine import SGLangEngine
from agentrl_testing.engines import ask, run
from agentrl_vllm.engine import VLLMEngine

PROMPT = [1, 2, 3, 40, 50]
ENGINES = {"sglang": SGLangEngine, "vllm": VLLMEngine}
LOADING = threading.Lock()
"""transformers cannot load two models at once in one process: weights come out uninitialized."""


@pytest.fixture(scope="module")
def faulty(servers):
    """The class of a server with a real model, which arrives as its `fault` says."""

    class Faulty(servers.ModelServer):
        fault = ""

        def reset(self):
            super().reset()
            self.fault, self.num_scored = "", 0
            self.salt = self._loaded = self.first = self.read_weights(self.model_path)

        def restart(self, *, label):
            """Serve the weights of the start again, under any name."""
            self.salt = self._loaded = self.first
            self.label = label

        def read_weights(self, directory):
            with LOADING:
                new = AutoModelForCausalLM.from_pretrained(directory).eval()
            if self.fault == "ignores":
                return self.salt
            if self.fault == "half":
                new.model.layers[1] = self.salt.model.layers[1]
            return new

        @torch.no_grad()
        def logits(self, weights, ids):
            stale = self.fault == "cache" and not self.scoring
            return (self.first if stale else weights)(torch.tensor([ids])).logits[0, -1].double().numpy()

        scoring = False

        def _scored(self, ids):
            self.num_scored += 1
            self.scoring = True
            try:
                return super()._scored(ids)
            finally:
                self.scoring = False

    return Faulty


@pytest.fixture(scope="module")
def both(faulty, decode, policies):
    started = [faulty(decode, str(policies("qwen3"))) for _ in range(2)]
    yield started
    for server in started:
        server.close()


@pytest.fixture(params=["sglang", "vllm"])
def kind(request):
    return request.param


@pytest.fixture
def start(both, policies, monkeypatch):
    for name in ("running_calls", "proving", "member"):
        monkeypatch.setattr(f"agentrl_core.engines.remote.{name}.BACKOFF", Backoff(first_s=0.001, longest_s=0.01))
    monkeypatch.setattr("agentrl_core.engines.remote.fleet.LOOK_S", 0.01)
    engines = []

    def make(kind, *, servers=both, **options):
        options = {"url": tuple(s.url for s in servers)} | options
        engine = ENGINES[kind](model_dir=policies("qwen3"), **options)
        engines.append(engine)
        engine.start()
        return engine

    for server in both:
        server.reset()
    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def learner(policies):
    return AutoModelForCausalLM.from_pretrained(policies("qwen3")).eval()


def train(learner, size=1e-3):
    """Move each weight a little, as an optimizer step does."""
    with torch.no_grad():
        for index, weight in enumerate(learner.parameters()):
            noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(index))
            weight.add_(noise.sign(), alpha=size)
    return ModuleWeights(learner)


def test_weights_that_arrive_are_proven_on_every_server(start, both, learner, kind):
    engine = start(kind)
    run(engine.prove(ModuleWeights(learner)))
    assert engine.proof.proven
    assert engine.proof.gap < 1e-5
    assert engine.proof.change is None
    for version in (1, 2):
        before = [server.num_scored for server in both]
        run(engine.load_weights(version, train(learner)))
        assert [server.num_scored for server in both] == [count + 1 for count in before]
        assert engine.proof.proven
        assert engine.proof.gap < 1e-5
        assert engine.proof.change > 1e-3
    assert set(run(ask(engine, PROMPT, max_tokens=2)).versions) == {2}


FAULTS = {
    "ignores": "still serves the weights of version 1, although it answered that it has version 2",
    "half": "serves neither the weights of version 2 nor those of version 1: a part of them arrived",
    "cache": "samples with keys and values of older weights.*prefix cache was not dropped",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_weights_that_one_server_did_not_take_stop_the_run(start, both, learner, kind, fault):
    engine = start(kind)
    run(engine.prove(ModuleWeights(learner)))
    run(engine.load_weights(1, train(learner)))
    both[1].fault = fault
    with pytest.raises(EngineError, match=f"^{both[1].url}: .*{FAULTS[fault]}") as raised:
        run(engine.load_weights(2, train(learner)))
    assert both[0].url not in str(raised.value)
    # Nothing is sampled from weights that nobody knows.
    with pytest.raises(EngineError, match=re.escape(both[1].url)):
        run(ask(engine, PROMPT))


def test_a_router_that_loads_one_server_and_samples_from_another_is_found(start, both, learner, kind):
    front, behind = both
    front.fault = "ignores"  # the load goes to a server that the canary never reaches
    engine = start(kind, servers=[front])
    run(engine.prove(ModuleWeights(learner)))
    with pytest.raises(EngineError, match="router stands in front of several servers, name each server's own address"):
        run(engine.load_weights(1, train(learner)))
    assert behind.num_scored == 0


def test_a_server_that_does_not_answer_at_the_start_is_proven_before_it_gets_calls(start, both, learner, kind):
    engine = start(kind)
    both[1].lost = True
    run(engine.prove(ModuleWeights(learner)))
    assert engine.proof.proven
    assert engine._pool.servers[1].condition is Condition.OUT
    both[1].lost = False
    wait_for_all(engine)
    assert both[1].num_scored == 1


def test_a_server_of_another_model_is_found_at_the_start(start, both, learner, kind):
    both[0].salt = copy.deepcopy(both[0].salt)
    train(both[0].salt, 0.5)
    with pytest.raises(EngineError, match=f"{both[0].url}: serves other weights than the policy's of version 0"):
        run(start(kind).prove(ModuleWeights(learner)))


def test_a_change_too_small_to_be_seen_is_not_called_proven(start, learner, kind):
    engine = start(kind)
    run(engine.prove(ModuleWeights(learner)))
    run(engine.load_weights(1, ModuleWeights(learner)))
    assert not engine.proof.proven
    run(engine.load_weights(2, train(learner)))
    assert engine.proof.proven


@pytest.mark.parametrize("label", ["2", None])
def test_a_server_that_comes_back_with_old_weights_loads_the_new_ones(start, both, learner, kind, label, caplog):
    """Whatever it calls them: the restarted server says that they are the new ones, or has no names for weights."""
    engine = start(kind)
    run(engine.prove(ModuleWeights(learner)))
    for version in (1, 2):
        run(engine.load_weights(version, train(learner, 0.02)))
    both[0].restart(label=label)
    doubt(engine, 0)
    results = [run(ask(engine, [*PROMPT, index], max_tokens=2)) for index in range(4)]
    assert [set(result.versions) for result in results] == [{2}] * 4
    wait_for_all(engine)
    assert both[0].salt is not both[0].first
    if label is not None:
        assert f"{both[0].url}: still serves the weights of version 0" in caplog.text


def test_a_server_that_joins_late_and_takes_no_weights_stops_the_run(start, both, learner, kind, tmp_path):
    """Nothing is known about its rounding, and its first weights are near the new ones."""
    listed = tmp_path / "servers.txt"
    listed.write_text(f"{both[0].url}\n")
    engine = start(kind, url=None, servers_file=listed)
    run(engine.prove(ModuleWeights(learner)))
    run(engine.load_weights(1, train(learner)))
    both[1].fault = "ignores"
    listed.write_text(f"{both[0].url}\n{both[1].url}\n")
    with pytest.raises(EngineError, match=f"{both[1].url}: still serves the weights of version 0"):
        wait_for_all(engine, count=2)


def test_a_server_that_joins_late_with_the_new_weights_is_proven(start, both, learner, kind, tmp_path):
    listed = tmp_path / "servers.txt"
    listed.write_text(f"{both[0].url}\n")
    engine = start(kind, url=None, servers_file=listed)
    run(engine.prove(ModuleWeights(learner)))
    run(engine.load_weights(1, train(learner)))
    listed.write_text(f"{both[0].url}\n{both[1].url}\n")
    wait_for_all(engine, count=2)
    run(engine.load_weights(2, train(learner)))
    assert engine.proof.proven


def test_a_server_that_comes_back_while_the_next_weights_are_prepared_is_proven(start, both, learner, kind, caplog):
    engine = start(kind)
    run(engine.prove(ModuleWeights(learner)))
    run(engine.load_weights(1, train(learner, 0.02)))
    source = train(learner)
    run(engine.prepare_weights(2, source))
    both[0].restart(label="1")
    doubt(engine, 0)

    async def wait():
        async with asyncio.timeout(60):
            while f"{both[0].url}: still serves the weights of version 0" not in caplog.text:
                assert engine._pool.servers[0].condition is Condition.OUT
                await asyncio.sleep(0.01)

    run(wait())
    run(engine.load_weights(2, source))
    wait_for_all(engine)
    assert engine.proof.proven
    assert both[0].label == "2"


def test_a_server_that_comes_back_with_the_new_weights_loads_nothing(start, both, learner, kind):
    engine = start(kind, servers=both[:1])
    run(engine.prove(ModuleWeights(learner)))
    run(engine.load_weights(1, train(learner)))
    both[0].controls.clear()
    doubt(engine, 0)
    assert len(run(ask(engine, PROMPT, max_tokens=2)).ids) == 2
    assert "load" not in {name for name, _ in both[0].controls}
    assert both[0].num_scored == 3


def doubt(engine, index):
    with engine._state.lock:
        engine._fleet.doubt(engine._pool.servers[index])


def wait_for_all(engine, *, count=1):
    """Until every server is in service again, and there are `count`; raises if the engine ends meanwhile."""

    async def wait():
        async with asyncio.timeout(60):
            while (
                any(server.condition is not Condition.READY for server in engine._pool.servers)
                or len(engine.servers) < count
            ):
                engine._state.check_alive()
                await asyncio.sleep(0.01)

    run(wait())


def test_published_directories_are_proven_by_their_canary(start, both, learner, kind, tmp_path):
    place = WeightsPlace(tmp_path)
    engine = start(kind)
    run(engine.prove(DirectoryWeights(place.write(0, learner))))
    assert engine.proof.proven
    run(engine.load_weights(1, DirectoryWeights(place.write(1, train(learner).module))))
    assert engine.proof.proven
    both[0].fault = "ignores"
    with pytest.raises(EngineError, match="still serves the weights of version 1"):
        run(engine.load_weights(2, DirectoryWeights(place.write(2, train(learner).module))))


def test_weights_without_a_canary_are_not_proven_and_that_is_said_once(start, learner, kind, tmp_path, caplog):
    learner.save_pretrained(tmp_path / "weights")
    engine = start(kind)
    run(engine.load_weights(1, DirectoryWeights(tmp_path / "weights")))
    assert engine.proof is None
    for _ in range(2):
        run(ask(engine, PROMPT, max_tokens=2))
    assert caplog.text.count("version 1 of the weights is not proven") == 1


def test_a_damaged_canary_is_an_error(start, both, learner, kind, tmp_path):
    learner.save_pretrained(tmp_path / "weights")
    (tmp_path / "weights" / "canary.json").write_text("{")
    with pytest.raises(EngineError, match=r"version 1 cannot be proven: .*canary\.json is damaged"):
        run(start(kind).load_weights(1, DirectoryWeights(tmp_path / "weights")))
    assert not [name for name, _ in both[0].controls if name == "load"]


def test_a_busy_server_is_asked_for_its_canary_again(start, both, learner, kind):
    from starlette.responses import JSONResponse

    engine = start(kind, servers=both[:1])
    both[0].faults += [JSONResponse({"error": "busy"}, status) for status in (503, 429, 502)]
    run(engine.prove(ModuleWeights(learner)))
    assert engine.proof.proven


def test_a_canary_without_finite_logprobs_is_an_error(start, both, learner, kind):
    engine = start(kind, servers=both[:1])
    with torch.no_grad():
        both[0].first.model.norm.weight.fill_(1e30)
    with pytest.raises(EngineError, match=f"^{both[0].url}: cannot be proven to have version 0"):
        run(engine.prove(ModuleWeights(learner)))


def test_the_limit_is_an_option(start, both, learner, kind):
    both[0].salt = copy.deepcopy(both[0].salt)
    train(both[0].salt, 1e-3)
    run(start(kind, servers=both[:1]).prove(ModuleWeights(learner)))
    strict = start(kind, servers=both[:1], max_canary_gap=1e-4)
    with pytest.raises(EngineError, match=r"raise engine\.max_canary_gap"):
        run(strict.prove(ModuleWeights(learner)))
    with pytest.raises(ValueError, match="'max_canary_gap': expected a number above 0"):
        ENGINES[kind](url="http://127.0.0.1:1", max_canary_gap=0.0)
