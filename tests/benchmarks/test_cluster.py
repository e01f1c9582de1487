import numpy as np
import pytest
from tests.benchmarks.cluster.generators import Generators
from tests.benchmarks.cluster.published import CELL, SYNCHRONOUS, Decoding, Responses, calibrated
from tests.benchmarks.cluster.simulation import Setting, simulate

SMALL = {
    "groups": 8,
    "group_size": 4,
    "responses": Responses(median=500.0),
    "train_s": 20.0,
    "publish_s": 2.0,
    "store_s": 0.001,
}


def ends_of(generators):
    ends = {}
    while generators.next_end < float("inf"):
        now, response = generators.end_next()
        ends[response] = now
    return ends


def test_responses_of_a_gpu_share_it():
    generators = Generators(1, Decoding(fixed_s=1.0, each_s=0.5))
    generators.add(0.0, 10.0, "short")
    generators.add(0.0, 30.0, "long")
    # two decode for 10 steps of 1 + 2 * 0.5 s, then one for 20 steps of 1 + 0.5 s
    assert ends_of(generators) == pytest.approx({"short": 20.0, "long": 50.0})


def test_an_interruption_costs_the_pause_and_the_tokens_so_far():
    generators = Generators(1, Decoding(fixed_s=1.0, each_s=0.0))
    generators.add(0.0, 30.0, "one")
    generators.add(0.0, 30.0, "two")
    generators.interrupt(10.0, pause_s=5.0, token_s=0.1)
    assert ends_of(generators) == pytest.approx({"one": 30 + 5 + 2 * 10 * 0.1, "two": 30 + 5 + 2 * 10 * 0.1})


def test_a_response_goes_to_the_gpu_with_the_fewest():
    generators = Generators(2, Decoding(fixed_s=1.0, each_s=1.0))
    for name in "abcd":
        generators.add(0.0, 10.0, name)
    assert [len(gpu.running) for gpu in generators.gpus] == [2, 2]


def test_a_synchronous_batch_takes_as_long_as_its_slowest_gpu():
    setting = Setting(eta=0, generators=4, steps=2, warm_up=1, **SMALL)
    decoding, source = setting.responses.decoding, np.random.default_rng(0)
    batches = [[setting.responses.draw(source, 4) for _ in range(8)] for _ in range(2)]
    # responses go to the GPUs in turn, because all are drawn before the first one ends
    second = np.concatenate(batches[1])
    slowest = max(decoding.fixed_s * second[gpu::4].max() + decoding.each_s * second[gpu::4].sum() for gpu in range(4))
    assert simulate(setting).step_s == pytest.approx(slowest + 20.0 + 2.0, rel=0.02)


@pytest.mark.parametrize("eta", [0, 1, 2, 4])
@pytest.mark.parametrize("partial", [True, False])
def test_no_group_is_older_than_eta(eta, partial):
    found = simulate(Setting(eta=eta, generators=2, steps=20, warm_up=5, partial=partial, **SMALL))
    assert found.max_lag <= eta
    assert found.partial == 0 or partial
    assert 0 <= found.generators_idle <= 1
    assert 0 <= found.trainers_idle <= 1


def test_sampling_ahead_is_faster():
    steps = [simulate(Setting(eta=eta, generators=2, steps=20, warm_up=5, **SMALL)).step_s for eta in (0, 1, 2)]
    assert steps[0] > steps[1] > steps[2]


def test_the_published_synchronous_run_is_matched():
    assert calibrated().generation_s(CELL) == pytest.approx(SYNCHRONOUS[CELL].generation_s, rel=0.01)
