"""Problems that a run's numbers show are told once, in words that name the remedy."""

import pytest

from agentrl_core.config import parse
from agentrl_core.run.step_warnings import StepWarnings, answers_found

TAG, BOX = "<answer>…</answer>", r"\boxed{…}"


LOADED, BUILT = {"path": "policy"}, {"use": "tiny"}


def watching(model=LOADED, earlier=(), **sections):
    """A watch, with what it told in `watch.told`."""
    told = []
    config = parse({"model": model, "trainer": {"lr": 1e-5}, **sections})
    made = StepWarnings(config, told.append, max_tokens=64, pretrained=model == LOADED, earlier=earlier)
    made.told = told
    return made


@pytest.fixture
def watch():
    return watching()


def test_a_schema_that_replies_lack_is_told_once(watch):
    watch.step(1, {}, {f"schema {TAG}": 8})
    assert watch.told == []
    watch.step(2, {}, {f"nowhere {BOX}": 120, f"schema {BOX}": 8})
    watch.step(3, {}, {f"nowhere {BOX}": 128})
    (told,) = watch.told
    assert told.startswith(rf"step 2: 8 of 128 replies have {BOX}, which their tasks name as answer_schema; the others")


def test_whole_replies_that_are_all_wrong_are_told_once(watch):
    watch.step(1, {}, {"reply 0": 100, "reply": 1})
    watch.step(2, {}, {"reply 0": 100, f"schema {TAG}": 1})
    watch.step(3, {}, {"workflow": 4})
    assert watch.told == []
    watch.step(4, {}, {"reply 0": 128})
    watch.step(5, {}, {"reply 0": 128})
    (told,) = watch.told
    assert told.startswith(f"step 4: 0 of 128 replies have {TAG}, so whole replies were scored, and none of them got")


def test_the_share_of_replies_with_an_answer_is_a_metric():
    assert answers_found({f"schema {TAG}": 1, "reply": 1, "reply 0": 1, f"nowhere {BOX}": 1, "workflow": 9}) == {
        "rollout/answers_found": 0.25
    }
    assert answers_found({"workflow": 9}) == {} == answers_found({})


def entropy_at(watch, *values):
    for step, value in enumerate(values, start=1):
        watch.step(step, {"loss/entropy": value}, {})


def test_entropy_that_collapses_is_told_once_with_the_remedy(watch):
    entropy_at(watch, 1.9, 2.0, 0.39, 0.35, 0.02)
    (told,) = watch.told
    assert told.startswith("step 3: the policy's entropy fell from 2 to 0.39 nats per token")
    assert "a lower trainer.lr (now 1e-05)" in told


def test_entropy_that_falls_as_in_runs_that_learn_well_is_no_news(watch):
    entropy_at(watch, 0.132, 0.138, 0.146, 0.118, 0.075, 0.03)
    watch.step(7, {}, {})  # without a signal there is no loss, so no entropy
    assert watch.told == []


def test_a_resumed_run_compares_with_its_first_steps():
    watch = watching(earlier=[{"loss/entropy": 2.0}, {}, {"loss/entropy": 1.0}, {"loss/entropy": 0.5}])
    watch.step(5, {"loss/entropy": 0.3}, {})
    assert watch.told[0].startswith("step 5: the policy's entropy fell from 2 to 0.3")


def test_replies_that_are_cut_are_told_with_the_limit(watch):
    watch.step(1, {"rollout/replies_cut": 0.19}, {})
    assert watch.told == []
    watch.step(2, {"rollout/replies_cut": 0.5}, {})
    watch.step(3, {"rollout/replies_cut": 1.0}, {})
    (told,) = watch.told
    assert told.startswith("step 2: 50% of the replies were cut off at their token limit")
    assert "sampling.max_tokens = 64" in told


@pytest.mark.parametrize(
    ("model", "sections", "told"),
    [(BUILT, {}, 1), (LOADED, {}, 0), (BUILT, {"warm_start": {"data": "demos.jsonl"}}, 0)],
)
def test_a_policy_from_nothing_that_never_gets_a_reward_is_explained(model, sections, told):
    watch = watching(model, **sections)
    watch.step(1, {"reward/mean": 0.0, "reward/std": 0.5}, {})
    assert watch.told == []
    nothing = {"reward/mean": 0.0, "reward/std": 0.0, "rollout/replies_cut": told}
    watch.step(2, nothing, {"reply 0": 16} if told else {})
    watch.step(3, nothing, {})
    assert len(watch.told) == told  # and nothing of what follows from that
    assert all("built from nothing (model.use: tiny) and had no warm_start" in text for text in watch.told)


def test_tools_that_the_policy_never_saw_are_told_once(watch):
    watch.step(1, {"rollout/calls_with_unseen_tools": 0.0}, {})
    watch.step(2, {"rollout/calls_with_unseen_tools": 12.0}, {})
    watch.step(3, {"rollout/calls_with_unseen_tools": 12.0}, {})
    (told,) = watch.told
    assert told.startswith("step 2: 12 calls offered tools, which the chat template dropped: the policy never saw them")


def gaps(mean, p99, kl):
    return {"loss/logprob_gap_mean": mean, "loss/logprob_gap_p99": p99, "loss/logprob_gap_kl": kl}


BF16 = gaps(0.04, 0.2, 2e-3)


def test_rounding_that_the_loss_would_take_for_a_change_names_the_corrections(watch):
    watch.step(1, gaps(5e-6, 2e-5, 3e-11), {})
    watch.step(2, gaps(0.01, 0.1, 2e-4), {})
    assert watch.told == []
    watch.step(3, BF16, {})
    watch.step(4, gaps(0.1, 0.9, 5e-2), {})
    (told,) = watch.told
    assert told.startswith("step 3: engine and learner round differently")
    assert "0.04 on average and 0.2 at the 99th percentile" in told
    assert "loss.corrections: [{use: truncated_is}]" in told
    assert "[{use: masked_is}]" in told
    assert "geometric" not in told


def test_a_large_mismatch_names_the_correction_of_whole_sequences(watch):
    watch.step(1, gaps(0.1, 0.9, 5e-2), {})
    assert "[{use: masked_is, level: geometric, low: 0.9, high: 1.1}]" in watch.told[0]


@pytest.mark.parametrize(
    "loss",
    [
        {"use": "grpo", "corrections": ["truncated_is"]},
        {"use": "grpo", "corrections": [{"use": "masked_is", "level": "geometric", "low": 0.9, "high": 1.1}]},
        {"use": "ppo"},
    ],
)
def test_a_loss_that_weighs_by_the_engine_needs_no_advice(loss):
    watch = watching(loss=loss)
    watch.step(1, BF16, {})
    assert watch.told == []
