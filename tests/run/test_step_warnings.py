"""Problems that a run's numbers show are told once, in words that name the remedy."""

import pytest

from agentrl_core.config import parse
from agentrl_core.run.no_signal import Giver
from agentrl_core.run.step_warnings import StepWarnings, answers_found

TAG, BOX = "<answer>…</answer>", r"\boxed{…}"


LOADED, BUILT = {"path": "policy"}, {"use": "tiny"}


EXACT = Giver(scorers=["exact_match"])


def watching(model=LOADED, earlier=(), giver=EXACT, tool_error="", **sections):
    """A watch, with what it told in `watch.told`."""
    told = []
    config = parse({"model": model, "trainer": {"lr": 1e-5}, **sections})
    made = StepWarnings(
        config,
        told.append,
        max_tokens=64,
        pretrained=model == LOADED,
        giver=giver,
        tool_error=lambda _: tool_error,
        earlier=earlier,
    )
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
    assert told.startswith(
        rf"WARNING step 2: 8 of 128 replies have {BOX}, which their tasks name as answer_schema; the others"
    )


def test_whole_replies_that_are_all_wrong_are_told_once(watch):
    watch.step(1, {}, {"reply 0": 100, "reply": 1})
    watch.step(2, {}, {"reply 0": 100, f"schema {TAG}": 1})
    watch.step(3, {}, {"workflow": 4})
    assert watch.told == []
    watch.step(4, {}, {"reply 0": 128})
    watch.step(5, {}, {"reply 0": 128})
    (told,) = watch.told
    assert told.startswith(
        f"WARNING step 4: 0 of 128 replies have {TAG}, so whole replies were scored, and none of them got"
    )


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
    assert told.startswith("WARNING step 3: the policy's entropy fell from 2 to 0.39 nats per token")
    assert "a lower trainer.lr (now 1e-05)" in told


def test_entropy_that_falls_as_in_runs_that_learn_well_is_no_news(watch):
    entropy_at(watch, 0.132, 0.138, 0.146, 0.118, 0.075, 0.03)
    watch.step(7, {}, {})  # without a signal there is no loss, so no entropy
    assert watch.told == []


def test_a_resumed_run_compares_with_its_first_steps():
    watch = watching(earlier=[{"loss/entropy": 2.0}, {}, {"loss/entropy": 1.0}, {"loss/entropy": 0.5}])
    watch.step(5, {"loss/entropy": 0.3}, {})
    assert watch.told[0].startswith("WARNING step 5: the policy's entropy fell from 2 to 0.3")


def test_replies_that_are_cut_are_told_with_the_limit(watch):
    watch.step(1, {"rollout/replies_cut": 0.19}, {})
    assert watch.told == []
    watch.step(2, {"rollout/replies_cut": 0.5}, {})
    watch.step(3, {"rollout/replies_cut": 0.7}, {})
    (told,) = watch.told
    assert told.startswith("WARNING step 2: 50% of the replies were cut off at their token limit")
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
    assert told.startswith(
        "WARNING step 2: 12 calls offered tools, which the chat template dropped: the policy never saw them"
    )


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
    assert told.startswith("WARNING step 3: engine and learner round differently")
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


def flat(mean, std=0.0, **more):
    """Metrics of a step of 16 groups without a signal."""
    return {
        "reward/mean": mean,
        "reward/std": std,
        "rollout/groups": 16.0,
        "rollout/groups_with_signal": 0.0,
        "rollout/groups_dropped/zero_variance": 16.0,
        **more,
    }


def trained(mean, std=0.5, **more):
    return flat(mean, std, **{"rollout/groups_with_signal": 9.0, "loss/grad_norm": 0.1}) | more


AGENT = Giver(scorers=["agentcpm"], workflow="agent.py:Shop")


@pytest.mark.parametrize(
    ("giver", "answers", "metrics", "parts"),
    [
        (Giver(scorers=["mine"]), {"reply": 128}, flat(1.0), ["is 1 (from the scorer 'mine')", "tasks are solved"]),
        (AGENT, {}, flat(1.0), ["is 1 (returned by agent.py:Shop)", "check that a wrong answer gets less"]),
        (Giver(scorers=["mine"]), {"reply 0": 9}, flat(0.0), ["is 0 (from the scorer 'mine')", "no answer is right"]),
        (Giver(scorers=["a", "b"]), {"reply": 9}, flat(0.5), ["is 0.5 (from the scorers 'a', 'b')", "Give better"]),
        (AGENT, {}, flat(0.5, 0.5), ["all answers to each of 16 tasks got the same reward (mean 0.5, returned by"]),
        (
            AGENT,
            {},
            flat(0.5, 0.5) | {"rollout/groups_dropped/overlong": 3.0},
            ["of 16 groups none was left to train (dropped: overlong 3, zero_variance 16). Look at `filters`"],
        ),
    ],
)
def test_a_step_without_signal_says_which_rewards_came_from_whom(giver, answers, metrics, parts):
    watch = watching(giver=giver)
    watch.step(1, metrics, answers)
    watch.step(2, metrics, answers)
    (told,) = watch.told
    assert all(part in told for part in parts), told
    assert told.endswith("10 such steps in a row end the run (trainer.max_steps_without_signal)")
    assert watch.no_signal in told


def test_a_step_without_signal_is_told_again_when_the_rewards_are_others(watch):
    watch.step(1, flat(0.0), {"reply 0": 9, "reply": 1})
    watch.step(2, trained(0.5), {"reply": 1})
    assert watch.no_signal == ""
    watch.step(3, flat(1.0), {"reply": 9})
    assert [text[:15] for text in watch.told] == ["WARNING step 1:", "WARNING step 3:"]


def test_a_tool_that_fails_is_named_with_its_error_before_all_that_follows_from_it():
    watch = watching(tool_error="database is down")
    calls = {"called stock": 20, "failed stock": 18, "called price": 7, "failed price": 7}
    watch.step(1, flat(0.0), {"reply 0": 9}, calls)
    assert not any("tool" in text for text in watch.told)  # 90 %, and too few calls
    watch = watching(tool_error="database is down")
    watch.step(1, flat(0.0), {"reply 0": 9}, {**calls, "failed stock": 19})
    watch.step(2, flat(0.0), {"reply 0": 9}, {**calls, "failed stock": 20})
    (told,) = watch.told
    assert told.startswith("WARNING step 1: 95% of the 20 calls of the tool stock failed: database is down. If")


def test_a_reward_that_collapses_names_the_update_and_the_learning_rate(watch):
    watch.step(1, trained(0.5), {"reply": 64, "reply 0": 64})
    watch.step(2, flat(0.0), {"reply 0": 128})
    watch.step(3, flat(0.0), {"reply 0": 128})
    (told,) = watch.told
    assert told.startswith(
        "WARNING step 2: the reward fell from 0.50 to 0.00 after update 1: the updates are too large"
    )
    assert told.endswith("a lower trainer.lr (now 1e-05)")


def test_a_reward_that_collapses_over_several_steps_is_compared_with_the_best_of_them(watch):
    for step, mean in enumerate((0.5, 0.4, 0.1), start=1):
        watch.step(step, trained(mean), {})
    assert "step 3: the reward fell from 0.50 to 0.10 after updates 1 to 2" in watch.told[0]


@pytest.mark.parametrize(
    "steps",
    [
        [trained(0.5), trained(0.3)],  # half of it is noise of the tasks
        [flat(0.5, 0.5), trained(0.0)],  # nothing was changed in between
        [trained(0.5, **{"rollout/groups": 1.0}), trained(0.1)],  # four episodes
    ],
)
def test_a_reward_that_falls_by_chance_is_no_news(steps):
    watch = watching(rollout={"group_size": 4})
    for step, metrics in enumerate(steps, start=1):
        watch.step(step, metrics, {})
    assert not any("fell" in text for text in watch.told)


def test_cut_replies_explain_answers_that_are_missing(watch):
    watch.step(1, trained(0.0, **{"rollout/replies_cut": 1.0}), {"reply 0": 128})
    (told,) = watch.told
    assert "100% of the replies were cut off" in told


@pytest.mark.parametrize(("share", "count"), [(0.3, 2), (1.0, 1)])
def test_only_if_nearly_all_replies_are_cut_does_that_explain_why_every_reward_is_0(watch, share, count):
    watch.step(1, flat(0.0, **{"rollout/replies_cut": share}), {"reply 0": 128})
    assert len(watch.told) == count


@pytest.mark.parametrize("scorers", [["mine.py:score"], ["numeric"], ["exact_match", "f1"]])
def test_the_tags_are_recommended_only_where_the_scorer_compares_whole_answers(scorers):
    watch = watching(giver=Giver(scorers=scorers))
    watch.step(1, {}, {"reply 0": 128})
    assert watch.told == []
