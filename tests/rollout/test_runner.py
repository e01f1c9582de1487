import asyncio
import logging
import math
import os
from pathlib import Path

import pytest

from agentrl_core import workflow_context
from agentrl_core.api.run_rows import RunControl
from agentrl_core.api.scoring import Answer, Score
from agentrl_core.concurrency import secrecy
from agentrl_core.config.sampling_sections import SamplingConfig
from agentrl_core.errors import EngineError, EnvironmentLostError, EpisodeError, RunError, StoreError
from agentrl_core.scorers.call import normalize_scorer
from agentrl_core.scorers.text import exact_match
from agentrl_core.types import Outcome

EXACT_MATCH = normalize_scorer(exact_match, "exact_match")


@pytest.fixture
def answering(gateway):
    """A workflow of one LLM call that returns, or raises, what it is told."""

    def make(reward):
        async def run(data, *, base_url):
            await gateway.call(base_url)
            if isinstance(reward, BaseException):
                raise reward
            return reward

        return run

    return make


def scorer(verdict):
    """`scorer_for` of a scorer that gives, or raises, `verdict`; keeps what it was asked."""
    requests = []

    async def ask(request):
        requests.append(request)
        if isinstance(verdict, BaseException):
            raise verdict
        return verdict

    def scorer_for(task):
        return normalize_scorer(ask, task.scorer or "default")

    scorer_for.requests = requests
    return scorer_for


def test_a_reward_ends_scored_and_is_stored(run_one, answering, store):
    episode = run_one(answering(0.5))
    record = episode.record
    assert (record.outcome, record.reward, record.reason, record.detail) == (Outcome.SCORED, 0.5, "", "")
    assert (record.run_id, record.task_id, record.group_id, record.sample_index) == ("run", "t0", "g", 3)
    assert (record.started_at, record.finished_at) == (7.0, 7.0)
    assert [item.seq for item in episode.interactions] == [0]
    assert store.records == {record.id: record}


def test_a_reward_per_interaction_is_kept_beside_its_sum(run_one, gateway):
    async def run(data, *, base_url):
        first = await gateway.call(base_url)
        await gateway.call(base_url)
        return {first.id: 0.25, 1: 1}

    record = run_one(run).record
    assert record.reward == 1.25
    assert record.rewards == {"chatcmpl-0-0": 0.25, "chatcmpl-0-1": 1.0}


def test_an_exception_ends_failed_with_its_place(run_one, answering):
    record = run_one(answering(ValueError("no\nanswer"))).record
    assert (record.outcome, record.reason, record.reward) == (Outcome.FAILED, "ValueError", None)
    assert record.detail.startswith("ValueError: no answer (")
    assert Path(__file__).name in record.detail


def test_an_agent_that_exits_ends_its_episode_only(run_one, answering):
    assert run_one(answering(SystemExit(2))).record.reason == "SystemExit"


def test_a_hang_ends_timed_out_after_the_agent_cleaned_up(run_one, gateway):
    cleaned = []

    async def run(data, *, base_url):
        await gateway.call(base_url)
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    episode = run_one(run, timeout_s=0.01)
    assert episode.record.outcome is Outcome.TIMED_OUT
    assert "rollout.timeout_s = 0.01 s (1 LLM calls finished)" in episode.record.detail
    assert len(episode.interactions) == 1
    assert cleaned == [True]


@pytest.mark.parametrize(
    ("reward", "reason", "said"),
    [
        (math.nan, "not_finite", "expected a finite number"),
        ({"chatcmpl-9": 1.0}, "unknown_interaction", "expected chatcmpl-0-0"),
        ("1.0", "reward_type", "expected a number, found str"),
    ],
)
def test_an_unusable_reward_is_rejected_with_the_reason(run_one, answering, reward, reason, said):
    record = run_one(answering(reward)).record
    assert (record.outcome, record.reason, record.reward) == (Outcome.REJECTED, reason, None)
    assert said in record.detail


def test_an_agent_without_an_llm_call_is_rejected(run_one, gateway):
    async def silent(data):
        return 1.0

    async def judge_only(data, *, base_url):
        await gateway.call(base_url, trainable=False)
        return 1.0

    for workflow in (silent, judge_only):
        record = run_one(workflow).record
        assert (record.outcome, record.reason) == (Outcome.REJECTED, "no_llm_call")
        assert "base_url" in record.detail


def test_only_upstream_calls_are_an_evaluation_of_that_model_and_nothing_to_train(run_one, gateway, make_task):
    async def ask_provider(data, *, base_url):
        await gateway.call(base_url, trainable=False, upstream="gpt")

    task = make_task(answer="4", scorer="exact_match")
    record = run_one(ask_provider, task=task, is_eval=True, scorer_for=lambda _: EXACT_MATCH).record
    assert (record.outcome, record.reward) == (Outcome.SCORED, 1.0)
    record = run_one(ask_provider, task=task).record
    assert (record.outcome, record.reason) == (Outcome.REJECTED, "only_upstream_calls")
    assert record.detail.startswith("only upstream calls (gpt); nothing to train")


def test_a_client_that_fails_before_any_call_is_told_the_address(run_one, gateway, answering):
    class APIConnectionError(Exception):
        pass

    async def elsewhere(data):
        raise APIConnectionError("Connection error.")

    async def faulty(data):
        raise KeyError("question")

    said = "no LLM call reached the policy: its client must use the injected `base_url`"
    assert said in run_one(elsewhere).record.detail
    assert said not in run_one(faulty).record.detail
    assert said not in run_one(answering(APIConnectionError("later"))).record.detail


def test_without_a_reward_the_scorer_decides(run_one, answering, make_task, gateway):
    gateway.answer = "thinking <answer>4</answer>"
    scorer_for = scorer(Score(1.0, parts={"format": 0.5}))
    task = make_task(answer="4", scorer="exact_match")
    record = run_one(answering(None), task=task, scorer_for=scorer_for).record
    assert (record.outcome, record.reward, record.score, record.score_parts) == (
        Outcome.SCORED, 1.0, None, {"format": 0.5},
    )  # fmt: skip
    (request,) = scorer_for.requests
    assert (request.answer, request.reference, request.task) == ("4", "4", task)
    assert [message["content"] for message in request.messages] == ["turn 0", gateway.answer]


def test_the_scorer_sees_the_last_trainable_call(run_one, gateway, make_task):
    async def run(data, *, base_url):
        gateway.answer = "<answer>a first guess</answer>"
        await gateway.call(base_url)
        gateway.answer = "<answer>the policy's</answer>"
        await gateway.call(base_url)
        gateway.answer = "<answer>a judge's</answer>"
        await gateway.call(base_url, trainable=False)

    scorer_for = scorer(0.5)
    assert run_one(run, task=make_task(scorer="f1"), scorer_for=scorer_for).record.reward == 0.5
    assert scorer_for.requests[0].answer == "the policy's"


@pytest.mark.parametrize(("given", "judged"), [("4", "4"), ("it is <answer>4</answer>", "4"), ("", "")])
def test_a_workflow_may_return_the_answer_to_judge(run_one, answering, make_task, gateway, given, judged):
    gateway.answer = "<answer>another</answer>"
    scorer_for = scorer(0.5)
    record = run_one(answering(Answer(given)), task=make_task(scorer="f1"), scorer_for=scorer_for).record
    assert (record.outcome, record.reward, record.score) == (Outcome.SCORED, 0.5, None)
    assert scorer_for.requests[0].answer == judged


def test_the_answer_is_cut_out_by_the_tasks_own_schema(run_one, answering, make_task, gateway):
    gateway.answer = r"<answer>3</answer>, that is \boxed{4}"
    scorer_for = scorer(0.5)
    run_one(answering(None), task=make_task(scorer="f1", answer_schema="boxed"), scorer_for=scorer_for)
    assert scorer_for.requests[0].answer == "4"


@pytest.mark.parametrize(
    ("reply", "schema", "judged"),
    [
        ("A5", "", ("A5", "reply", "<answer>…</answer>")),
        ("so <answer>A5</answer>", "", ("A5", "schema", "<answer>…</answer>")),
        ("A5", "boxed", ("", "nowhere", r"\boxed{…}")),
    ],
)
def test_the_record_keeps_which_answer_was_judged(run_one, answering, make_task, gateway, reply, schema, judged):
    gateway.answer = reply
    task = make_task(answer="A5", scorer="exact_match", answer_schema=schema)
    record = run_one(answering(None), task=task, scorer_for=lambda _: EXACT_MATCH).record
    assert record.reward == float(judged[0] == "A5")
    assert record.score_details["judged"] == dict(zip(("answer", "from", "looked_for"), judged, strict=True))


def test_an_answer_that_the_workflow_returned_is_judged_as_such(run_one, answering, make_task):
    task = make_task(answer="4", scorer="exact_match", answer_schema="boxed")
    record = run_one(answering(Answer("4")), task=task, scorer_for=lambda _: EXACT_MATCH).record
    assert (record.reward, record.score_details["judged"]["from"]) == (1.0, "workflow")


def test_a_scorer_may_reward_interactions(run_one, answering):
    record = run_one(answering(None), scorer_for=scorer({"chatcmpl-0-0": 0.5})).record
    assert (record.reward, record.rewards) == (0.5, {"chatcmpl-0-0": 0.5})


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (None, "gave no score for the answer '4'"),
        (OSError("judge is down"), "raised OSError: judge is down"),
        (math.nan, "expected a finite number"),
        (Score(1.0, parts={"format": math.inf}), "'format'"),
    ],
)
def test_no_score_is_a_rejection_never_zero(run_one, answering, make_task, verdict, said):
    task = make_task(scorer="judge")
    record = run_one(answering(None), task=task, scorer_for=scorer(verdict)).record
    assert (record.outcome, record.reason, record.reward) == (Outcome.REJECTED, "no_score", None)
    assert record.detail.startswith("scorer 'judge'")
    assert said in record.detail


def test_an_environment_that_a_scorer_finds_lost_is_the_reason(run_one, answering):
    record = run_one(answering(None), scorer_for=scorer(EnvironmentLostError("the sandbox is gone"))).record
    assert (record.outcome, record.reason, record.reward) == (Outcome.REJECTED, "environment_lost", None)
    assert record.detail == "the sandbox is gone"


def test_what_a_scorer_tells_is_in_the_record_whether_it_gave_a_score_or_not(run_one, answering, make_task):
    details = {"said": "because", "cost": 0.5, "odd": {1}}
    judged = {"answer": "4", "from": "schema", "looked_for": "<answer>…</answer>"}
    kept = {"judged": judged, "said": "because", "cost": 0.5, "odd": "{1}"}
    given = scorer(Score(0.5, details=details))
    refused = scorer(EpisodeError("judge_down", "judge_down: nobody answered", details=details))
    assert run_one(answering(None), scorer_for=given).record.score_details == kept
    assert run_one(answering(1.0), task=make_task(scorer="f1"), scorer_for=given).record.score_details == kept
    beside = run_one(answering(1.0), task=make_task(scorer="f1"), scorer_for=refused).record
    assert (beside.outcome, beside.reward, beside.score_details) == (Outcome.SCORED, 1.0, kept)
    without = run_one(answering(None), scorer_for=refused).record
    assert (without.outcome, without.reason, without.score_details) == (Outcome.REJECTED, "no_score", kept)
    assert without.detail == "judge_down: nobody answered"


def test_a_scorer_that_hangs_gives_no_score(run_one, answering):
    async def hang(request):
        await asyncio.Event().wait()

    record = run_one(answering(None), scorer_for=lambda task: normalize_scorer(hang, "judge"), timeout_s=0.05).record
    assert record.reason == "no_score"
    assert "no score within" in record.detail


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_scorer_that_would_end_the_process_gives_no_score(run_one, answering, error):
    record = run_one(answering(None), scorer_for=scorer(error)).record
    assert (record.outcome, record.reason) == (Outcome.REJECTED, "no_score")
    assert type(error).__name__ in record.detail


def test_a_scorers_own_timeout_is_told_as_its_own(run_one, answering):
    record = run_one(answering(None), scorer_for=scorer(TimeoutError("model server"))).record
    assert "raised TimeoutError: model server" in record.detail


def test_the_scorer_of_a_task_is_asked_beside_the_workflows_reward(run_one, answering, make_task):
    verdict = Score(0.25, parts={"exact": 1})
    record = run_one(answering(1.0), task=make_task(scorer="f1"), scorer_for=scorer(verdict)).record
    assert (record.reward, record.score, record.score_parts) == (1.0, 0.25, {"exact": 1.0})


def test_a_scorer_that_fails_beside_a_reward_changes_nothing(run_one, answering, make_task):
    record = run_one(answering(1.0), task=make_task(scorer="f1"), scorer_for=scorer(ValueError())).record
    assert (record.outcome, record.reward, record.score) == (Outcome.SCORED, 1.0, None)


def test_a_default_scorer_is_not_asked_beside_a_reward(run_one, answering):
    assert run_one(answering(1.0)).record.score is None  # the fixture's scorer_for raises when asked


def test_a_missing_scorer_stops_the_run_and_leaves_no_record_running(run_one, answering, store):
    def scorer_for(task):
        raise RunError("pip install agentrl-judge")

    with pytest.raises(RunError, match="agentrl-judge"):
        run_one(answering(None), scorer_for=scorer_for)
    assert [record.outcome for record in store.records.values()] == [Outcome.CANCELLED]


def test_cancelling_reaches_the_agent_and_is_recorded(make_runner, make_task, gateway, store):
    cleaned = []

    async def scenario():
        running = asyncio.Event()

        async def run(data, *, base_url):
            await gateway.call(base_url)
            try:
                running.set()
                await asyncio.Event().wait()
            finally:
                cleaned.append(True)

        runner = make_runner(run)
        episode = asyncio.create_task(runner.run_episode(make_task(), group_id="g", sample_index=0, seed_key=(1,)))
        await running.wait()
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode

    asyncio.run(scenario())
    assert cleaned == [True]
    assert [record.outcome for record in store.records.values()] == [Outcome.CANCELLED]
    assert gateway.sessions[0].closed


def test_a_record_that_a_person_cancels_ends_alone(make_runner, make_task, gateway, store):
    async def scenario():
        waiting, running = [], asyncio.Event()

        async def run(data, *, base_url):
            await gateway.call(base_url)
            waiting.append(base_url)
            if len(waiting) == 2:
                running.set()
            await asyncio.Event().wait()

        runner = make_runner(run)
        async with asyncio.TaskGroup() as group:  # a cancelled child would not cancel it, an error would
            episodes = [
                group.create_task(runner.run_episode(make_task(), group_id="g", sample_index=slot, seed_key=(1,)))
                for slot in range(2)
            ]
            await running.wait()
            first, second = store.records
            for _ in range(2):  # the control stays as it is while the record ends
                runner.obey(RunControl(cancel=(first, "unknown")))
            done = (await episodes[0]).record
            assert (done.id, done.outcome, done.reason) == (first, Outcome.CANCELLED, "by_user")
            assert not episodes[1].done()
            runner.obey(RunControl(cancel=(first, second)))
            runner.obey(RunControl(cancel=(first,)))

    asyncio.run(scenario())
    assert [record.reason for record in store.records.values()] == ["by_user", "by_user"]
    assert all(session.closed for session in gateway.sessions)


def test_a_new_time_limit_holds_for_the_next_episode(make_runner, make_task):
    async def run(data, *, base_url):
        await asyncio.Event().wait()

    runner = make_runner(run)
    runner.obey(RunControl(limits={"rollout.timeout_s": 0.01, "rollout.group_size": 3}))
    episode = asyncio.run(runner.run_episode(make_task(), group_id="g", sample_index=0, seed_key=(1,)))
    assert (episode.record.outcome, "rollout.timeout_s = 0.01 s" in episode.record.detail) == (Outcome.TIMED_OUT, True)


def test_a_dead_engine_stops_the_run_in_place_of_blaming_the_agent(make_runner, make_task, gateway, store):
    async def run(data, *, base_url):
        await gateway.call(base_url)
        gateway.fatal = EngineError("out of memory")
        raise ConnectionError("500")

    runner = make_runner(run)
    for _ in range(2):  # the second time nothing is begun
        with pytest.raises(EngineError, match="out of memory"):
            asyncio.run(runner.run_episode(make_task(), group_id="g", sample_index=0, seed_key=()))
    assert [record.outcome for record in store.records.values()] == [Outcome.CANCELLED]


def test_a_store_that_fails_stops_the_run(run_one, answering, store):
    async def full(record):
        raise StoreError("disk full")

    store.finish_record = full
    with pytest.raises(StoreError, match="disk full"):
        run_one(answering(1.0))


def test_half_a_secret_at_the_end_of_a_long_message_is_not_stored(run_one, gateway):
    async def run(data, *, base_url, api_key):
        await gateway.call(base_url)
        raise ValueError("x" * 391 + api_key)

    detail = run_one(run).record.detail
    assert "x<api_key>…" in detail
    assert "sk-" not in detail


def test_secrets_of_the_environment_are_not_stored(run_one, gateway, caplog, monkeypatch):
    monkeypatch.setenv("ADMIN_OF_THIS_RUN", "admin-key-of-the-run")
    monkeypatch.setenv("KEY_OF_A_PROVIDER", "provider-key-1234")
    monkeypatch.setattr(secrecy, "_withheld", set())
    monkeypatch.setattr(secrecy, "_masked", set())
    secrecy.withhold("ADMIN_OF_THIS_RUN")
    secrecy.mask("KEY_OF_A_PROVIDER")

    async def run(data, *, base_url):
        await gateway.call(base_url)
        raise ValueError(f"{os.environ['ADMIN_OF_THIS_RUN']} and {os.environ['KEY_OF_A_PROVIDER']}")

    with caplog.at_level(logging.INFO):
        record = run_one(run).record
    assert "<ADMIN_OF_THIS_RUN> and <KEY_OF_A_PROVIDER>" in record.detail
    assert "admin-key" not in caplog.text
    assert "provider-key" not in caplog.text


def test_no_secret_is_stored_or_logged(run_one, gateway, caplog):
    async def run(data, *, base_url, api_key):
        await gateway.call(base_url)
        raise ValueError(f"cannot reach {base_url} with {api_key}")

    with caplog.at_level(logging.INFO):
        record = run_one(run).record
    assert "cannot reach http://gateway/s/<session> with <api_key>" in record.detail
    assert "Traceback" in caplog.text
    for text in (record.detail, caplog.text):
        assert "token-0" not in text


def test_every_episode_gets_its_own_copy_of_the_data(run_one, gateway, make_task):
    task = make_task()

    async def run(data, *, base_url):
        await gateway.call(base_url)
        data["messages"].append("mine")
        return 1.0

    run_one(run, task=task)
    assert len(task.data["messages"]) == 1


def test_the_workflow_finds_its_episode_in_the_context(run_one, gateway, make_task):
    seen = []

    async def run(data):
        here = workflow_context.get()
        seen.append(here)
        await gateway.call(here.base_url)
        return 1.0

    record = run_one(run).record
    (here,) = seen
    assert (here.record_id, here.task_id, here.sample_index, here.is_eval) == (record.id, "t0", 3, False)
    assert (here.base_url, here.api_key, here.http_client) == (
        "http://gateway/s/token-0", "sk-token-0", gateway.http_client,
    )  # fmt: skip


def test_concurrent_episodes_keep_to_their_own_session(make_runner, make_task, gateway):
    async def run(data):
        first = workflow_context.get().base_url
        await gateway.call(first)
        await asyncio.sleep(0)
        await gateway.call(workflow_context.get().base_url)
        return float(data["id"][1:])

    async def scenario():
        runner = make_runner(run)
        episodes = (
            runner.run_episode(make_task(f"t{number}"), group_id="g", sample_index=number, seed_key=(number,))
            for number in range(8)
        )
        return await asyncio.gather(*episodes)

    episodes = asyncio.run(scenario())
    assert [episode.record.reward for episode in episodes] == [float(number) for number in range(8)]
    for episode in episodes:
        assert [item.record_id for item in episode.interactions] == [episode.record.id] * 2


def test_sampling_and_seed_reach_the_session(make_runner, make_task, gateway, answering):
    sampling = SamplingConfig(temperature=0.5)
    runner = make_runner(answering(1.0))
    episode = asyncio.run(
        runner.run_episode(
            make_task(), group_id="g", sample_index=0, attempt=1, is_eval=True, seed_key=(4, 2), sampling=sampling
        )
    )
    (session,) = gateway.sessions
    assert (session.seed_key, session.sampling) == ((4, 2), sampling)
    assert (episode.record.is_eval, episode.record.attempt) == (True, 1)
