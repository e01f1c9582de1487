"""The verdict on an engine's canary: new, old, neither, or not to be told apart, at the precision of the engine."""

import json
import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from agentrl_core.weights.manifest import read_manifest
from agentrl_core.weights.place import WeightsPlace
from agentrl_core.weights.proof import CANARY_FILE, Canary, Judge, Verdict, canary_ids, canary_of, read_canary
from agentrl_testing.policy import toy_policy

K = 32


def canary(version, logprobs):
    return Canary(version=version, ids=tuple(range(K + 1)), logprobs=tuple(logprobs), following={7: -1.0, 8: -2.0})


def vector(seed, scale, size=K):
    source = random.Random(seed)
    return [source.gauss(0.0, scale) for _ in range(size)]


def added(*vectors):
    return [sum(values) for values in zip(*vectors, strict=True)]


def judge_with_noise(noise, start):
    """A judge that has seen the weights `start` with rounding noise of this size."""
    judge = Judge()
    old = canary(0, start)
    judge.accept(old, judge.judge(added(start, vector("calibration", noise)), old))
    return judge


START = [-12.0 + value for value in vector("start", 2.0)]


@pytest.mark.parametrize(
    ("arrived", "verdict"),
    [(1.0, Verdict.PROVEN), (0.0, Verdict.STALE), (0.6, Verdict.WRONG), (0.3, Verdict.WRONG), (2.0, Verdict.WRONG)],
)
@pytest.mark.parametrize(("noise", "change"), [(1e-5, 1e-3), (1e-5, 0.3), (0.05, 2.0)])
def test_the_engine_has_the_new_weights_the_old_ones_or_neither(noise, change, arrived, verdict):
    judge = judge_with_noise(noise, START)
    step = vector("step", change)
    seen = added(START, [arrived * value for value in step], vector("now", noise))
    finding = judge.judge(seen, canary(1, added(START, step)))
    assert finding.verdict is verdict
    assert finding.change == pytest.approx(math.sqrt(sum(value * value for value in step) / K))
    assert finding.gap == pytest.approx(abs(1 - arrived) * finding.change, abs=3 * noise)


@given(st.integers(0, 10**9), st.sampled_from([3e-6, 1e-4, 0.02]), st.floats(20, 1000), st.booleans())
def test_rounding_never_changes_the_verdict(seed, noise, ratio, arrived):
    judge = judge_with_noise(noise, START)
    step = vector(f"step {seed}", min(noise * ratio, 3.0))
    new = added(START, step)
    seen = added(new if arrived else START, vector(f"now {seed}", noise))
    assert judge.judge(seen, canary(1, new)).verdict is (Verdict.PROVEN if arrived else Verdict.STALE)


def test_small_changes_are_not_told_apart_until_they_have_added_up():
    judge, noise = judge_with_noise(0.05, START), 0.05
    step = vector("step", 0.01)
    verdicts = []
    for version in range(1, 30):
        new = added(START, [version * value for value in step])
        finding = judge.judge(added(new, vector(version, noise)), canary(version, new))
        verdicts.append(finding.verdict)
        if finding.verdict is Verdict.PROVEN:
            assert judge.proven.version == 0
            break
    assert verdicts[:3] == [Verdict.SAME] * 3
    assert verdicts[-1] is Verdict.PROVEN
    judge = judge_with_noise(0.05, START)  # and so it is with weights that never arrive
    for version in range(1, 30):
        new = added(START, [version * value for value in step])
        finding = judge.judge(added(START, vector(version, noise)), canary(version, new))
        if finding.verdict is not Verdict.SAME:
            break
    assert finding.verdict is Verdict.STALE


def test_the_first_weights_are_held_to_the_limit_only():
    new = canary(0, START)
    assert Judge().judge(added(START, vector("n", 0.1)), new).verdict is Verdict.PROVEN
    assert Judge().judge(added(START, vector("n", 1.0)), new).verdict is Verdict.WRONG
    assert Judge(max_gap=0.01).judge(added(START, vector("n", 0.1)), new).verdict is Verdict.WRONG


@given(st.integers(0, 10**9), st.sampled_from([3e-6, 1e-4, 0.02, 0.1]), st.floats(0.001, 1000), st.booleans())
def test_an_engine_of_unknown_noise_is_stale_only_where_it_has_the_old_weights(seed, noise, ratio, arrived):
    step = vector(f"step {seed}", min(noise * ratio, 0.2))
    new = canary(1, added(START, step))
    seen = added(new.logprobs if arrived else START, vector(f"now {seed}", noise))
    finding = Judge().judge(seen, new, old=canary(0, START))
    if arrived:
        assert finding.verdict is Verdict.PROVEN
    elif finding.change > max(4 * noise, 1e-4):
        assert finding.verdict is Verdict.STALE


@pytest.mark.parametrize("wrong", [START[:-1], [*START[:-1], math.nan], [*START[:-1], -math.inf]])
def test_logprobs_of_another_shape_are_wrong(wrong):
    assert Judge().judge(wrong, canary(0, START)).verdict is Verdict.WRONG


def test_a_sampled_token_shows_a_cache_of_older_weights():
    judge = judge_with_noise(1e-5, START)
    new = canary(1, added(START, vector("step", 0.1)))
    assert judge.strays(7, -1.0 + 5e-5, new) is None
    assert judge.strays(7, -1.05, new) == pytest.approx(0.05)
    assert judge.strays(99, -0.5, new) == math.inf  # a likely token that the learner finds unlikely
    assert judge.strays(99, -3.0, new) is None  # below the tokens that are known


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return AutoModelForCausalLM.from_pretrained(toy_policy(tmp_path_factory.mktemp("policy"))).eval()


def test_the_canary_is_the_models_own_distribution(model):
    found = canary_of(model, 3)
    logits = model(torch.tensor([found.ids])).logits[0].double().log_softmax(-1)
    assert found.version == 3
    assert found.ids == canary_ids(263)
    assert len(set(found.ids)) > 25
    assert max(found.ids) < 263 * 3 // 4
    assert found.logprobs == pytest.approx([logits[i, token].item() for i, token in enumerate(found.ids[1:])], abs=1e-5)
    token = int(logits[-1].argmax())
    assert next(iter(found.following)) == token
    assert found.following[token] == pytest.approx(logits[-1, token].item(), abs=1e-5)
    assert not model.training


def test_every_weight_moves_the_canary(model):
    """So that no tensor can be left out of a publication without being seen."""
    before = canary_of(model, 0)
    for name, weight in model.named_parameters():
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.add_(torch.randn_like(weight), alpha=1e-3)
        moved = max(abs(a - b) for a, b in zip(canary_of(model, 1).logprobs, before.logprobs, strict=True))
        assert moved > 1e-5, name
        with torch.no_grad():
            weight.copy_(kept)


def test_published_weights_bring_their_canary(model, tmp_path):
    folder = WeightsPlace(tmp_path / "place").write(4, model)
    assert read_canary(folder) == canary_of(model, 4)
    assert read_manifest(folder).version == 4
    assert CANARY_FILE in json.loads((folder / "manifest.json").read_text())["files"]


def test_a_damaged_canary_is_an_error(model, tmp_path):
    assert read_canary(tmp_path) is None
    folder = WeightsPlace(tmp_path / "place").write(4, model)
    kept = json.loads((folder / CANARY_FILE).read_text())
    for broken in ("{", "[]", json.dumps(kept | {"logprobs": kept["logprobs"][1:]}), json.dumps(kept | {"ids": None})):
        (folder / CANARY_FILE).write_text(broken)
        with pytest.raises(ValueError, match=r"canary\.json is damaged"):
            read_canary(folder)


def test_a_tensor_that_never_arrives_is_found_although_each_version_hides_it():
    judge, missing, rest = judge_with_noise(1e-5, START), vector("missing", 6e-5), vector("rest", 1e-2)
    for version in range(1, 9):
        arrived = added(START, [version * value for value in rest])
        new = canary(version, added(arrived, [version * value for value in missing]))
        finding = judge.judge(added(arrived, vector(version, 1e-5)), new)
        if finding.verdict is not Verdict.PROVEN:
            break
        judge.accept(new, finding)
    assert (finding.verdict, version) == (Verdict.WRONG, 2)
