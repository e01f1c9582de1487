"""Workflows on token ids: what they sample is recorded like any agent's calls, and what they return is held to it."""

import asyncio
import math

import attrs
import numpy as np
import pytest
import torch

from agentrl_core import Answer, GenerationHyperparameters, ModelRequest, ModelResponse, RolloutWorkflow
from agentrl_core.config.sampling_sections import SamplingConfig
from agentrl_core.errors import ConfigError, RequestError
from agentrl_core.types import Outcome
from agentrl_core.weights.witness import witness


class Retrying(RolloutWorkflow):
    """Asks again, from the exact ids, until the answer is right: as AReaL's multi-turn workflow does."""

    def __init__(self, right="4", max_turns=3):
        self.right, self.max_turns = right, max_turns

    async def arun_episode(self, engine, data):
        tokenizer = engine.tokenizer
        first = tokenizer.apply_chat_template([{"role": "assistant", "content": "a"}])
        more = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "wrong"}]
        feedback = tokenizer.apply_chat_template(more, add_generation_prompt=True)[len(first) :]
        ids = tokenizer.apply_chat_template(data["messages"], tokenize=True, add_generation_prompt=True)
        seq, logprobs, loss_mask, versions = [], [], [], []
        for turn in range(self.max_turns):
            resp = await engine.agenerate(ModelRequest(input_ids=ids, gconfig=GenerationHyperparameters(n_samples=1)))
            new = resp.input_len - len(seq)
            seq += resp.input_tokens[len(seq) :] + resp.output_tokens
            logprobs += [0.0] * new + resp.output_logprobs
            loss_mask += [0] * new + [1] * resp.output_len
            versions += [-1] * new + resp.output_versions
            reward = float(tokenizer.decode(resp.output_tokens, skip_special_tokens=True) == self.right)
            if reward or turn == self.max_turns - 1:
                break
            ids = seq + feedback
        result = {
            "input_ids": torch.tensor(seq, dtype=torch.int32),
            "logprobs": torch.tensor(logprobs, dtype=torch.float32),
            "loss_mask": torch.tensor(loss_mask, dtype=torch.int32),
            "versions": torch.tensor(versions, dtype=torch.int32),
            "attention_mask": torch.ones(len(seq), dtype=torch.bool),
            "rewards": torch.tensor(reward),
        }
        return {name: tensor.unsqueeze(0) for name, tensor in result.items()}


def one_call(then, **request):
    """A workflow that makes one call and returns `then(response)`."""

    class OneCall(RolloutWorkflow):
        async def arun_episode(self, engine, data):
            ids = engine.tokenizer.apply_chat_template(data["messages"], add_generation_prompt=True)
            return then(await engine.agenerate(ModelRequest(input_ids=ids, **request)))

    return OneCall


def rows_of(response, **changes):
    ids = [*response.input_tokens, *response.output_tokens]
    return {"input_ids": np.array([ids]), "rewards": np.array([0.5])} | changes


def test_its_calls_are_recorded_as_the_engine_sampled_them_and_go_on_from_each_other(play, engine):
    engine.replies = ["3", "5", "4"]
    episode = play(Retrying)
    assert (episode.record.outcome, episode.record.reward) == (Outcome.SCORED, 1.0)
    first, second, third = episode.interactions
    assert [item.parent for item in (first, second, third)] == [None, first.id, second.id]
    chain = ""
    for item, said in zip(episode.interactions, engine.log, strict=True):
        assert (*said.request.prompt_ids, *said.ids) == episode.full_ids(item)
        assert (item.output_ids, item.logprobs) == (said.ids, said.logprobs)
        assert tuple(item.output_versions) == said.versions
        chain = witness(chain, item.prompt_ids, item.output_ids)
        assert item.witness == chain
    assert third.api == "completions"


def test_options_are_those_of_its_class_and_an_instance_is_kept(play, engine):
    engine.replies = ["3", "5", "4"]
    assert len(play(Retrying, options={"right": "5"}).interactions) == 2
    engine.replies = ["3", "5", "4"]
    assert len(play(Retrying(max_turns=1)).interactions) == 1
    with pytest.raises(ConfigError, match="takes no options"):
        play(Retrying(), options={"right": "5"})


@pytest.mark.parametrize(("returned", "reward"), [(lambda _: 0.25, 0.25), (lambda response: {response.id: 2.0}, 2.0)])
def test_it_may_return_what_any_workflow_may(play, returned, reward):
    assert play(one_call(returned)).record.reward == reward


def test_none_rejects_the_episode_and_an_answer_leaves_it_to_the_scorer(play):
    record = play(one_call(lambda _: None), scorer=lambda answer, reference: 1.0, answer="4").record
    assert (record.outcome, record.reason) == (Outcome.REJECTED, "by_workflow")
    assert "agentrl_core.Answer" in record.detail
    scored = play(
        one_call(lambda _: Answer("4")), scorer=lambda answer, reference: float(answer == reference), answer="4"
    )
    assert scored.record.reward == 1.0


def test_the_policys_rules_hold(play, engine):
    asked = GenerationHyperparameters(
        temperature=0.2, top_p=0.5, top_k=3, max_new_tokens=2, stop_token_ids=[5], frequency_penalty=0.1
    )
    engine.replies = ["abcdef"]
    sampling = SamplingConfig(temperature=0.8, max_tokens=50)
    (call,) = play(
        one_call(lambda response: len(response.output_tokens), gconfig=asked), sampling=sampling
    ).interactions
    assert (call.sampling.temperature, call.sampling.top_p, call.sampling.top_k) == (0.8, 1.0, 0)
    assert call.sampling.max_tokens == len(call.output_ids) == 2
    assert 5 in call.sampling.stop_token_ids
    assert call.requested == {"temperature": 0.2, "top_p": 0.5, "top_k": 3, "frequency_penalty": 0.1}
    engine.replies = ["abcdef"]
    (free,) = play(one_call(lambda _: 1.0, gconfig=asked.new(greedy=True)), is_eval=True).interactions
    assert (free.sampling.temperature, free.sampling.top_p, free.sampling.top_k) == (0.0, 0.5, 3)


def test_what_ends_a_reply_is_the_workflows_to_choose(play, engine):
    engine.replies = ["abcdef"]
    ends = {}

    def asked(tokenizer):
        ends["eos"] = tokenizer.eos_token_id
        return GenerationHyperparameters(
            min_new_tokens=3, max_new_tokens=20, ignore_eos=True, stop_token_ids=[5, 7], skip_special_tokens=False,
            lora_name="mine",
        ).new_with_stop_and_pad_token_ids(tokenizer)  # fmt: skip

    class OneCall(RolloutWorkflow):
        async def arun_episode(self, engine, data):
            ids = engine.tokenizer.apply_chat_template(data["messages"], add_generation_prompt=True)
            await engine.agenerate(ModelRequest(input_ids=ids, gconfig=asked(engine.tokenizer)))
            return 1.0

    (call,) = play(OneCall).interactions
    assert (call.sampling.min_tokens, call.sampling.ignore_eos) == (3, True)
    assert call.sampling.stop_token_ids == (5, 7)
    assert ends["eos"] not in call.sampling.stop_token_ids
    assert call.requested == {"lora_name": "mine"}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: GenerationHyperparameters(use_beam_search=True), "use_beam_search"),
        (
            lambda: ModelRequest(input_ids=[1], image_data=["aGk="]),
            "image_data: a call in token ids cannot have images",
        ),
        (lambda: ModelRequest(input_ids=[1], vision_msg_vllm=[{}]), "vision_msg_vllm: a call in token ids"),
    ],
)
def test_what_no_engine_does_is_refused_where_it_is_asked_for(make, told):
    with pytest.raises(ValueError, match=told):
        make()


def test_a_least_number_of_tokens_above_the_most_is_refused(play):
    asked = GenerationHyperparameters(min_new_tokens=9, max_new_tokens=8)
    record = play(one_call(lambda _: 1.0, gconfig=asked)).record
    assert "min_tokens is 9, above max_tokens, which is 8" in record.detail


class Ends:
    eos_token_id, pad_token_id = 7, None


@pytest.mark.parametrize(
    ("tokens", "reason", "kept", "ended"),
    [
        ([1, 7], "stop", [1], True),
        ([1, 7, 7], "stop", [1], True),
        ([7, 1, 7], "stop", [7, 1], True),
        ([1, 2], "length", [1, 2], False),
        ([1, 7], "length", [1, 7], True),
        ([], "stop", [], False),
        ([7], "stop", "consists of end", True),
        ([1, 2], "stop", "not with the tokenizer's end", False),
    ],
)
def test_a_reply_without_the_tokens_that_ended_it(tokens, reason, kept, ended):
    response = ModelResponse(output_tokens=tokens, stop_reason=reason, tokenizer=Ends())
    assert response.end_with_stop is ended
    if isinstance(kept, str):
        with pytest.raises(ValueError, match=kept):
            _ = response.output_tokens_without_stop
    else:
        assert response.output_tokens_without_stop == kept
        assert response.output_tokens == tokens


def test_a_reply_without_a_tokenizer_has_no_known_end():
    with pytest.raises(ValueError, match="needs a tokenizer"):
        _ = ModelResponse(output_tokens=[1]).output_tokens_without_stop


def test_a_response_has_the_tokenizer_of_its_request(play, engine):
    engine.replies = ["ab"]
    seen = []
    assert play(one_call(lambda response: seen.append(response) or 1.0, tokenizer=Ends)).record.reward == 1.0
    assert seen[0].tokenizer is Ends


def test_a_response_says_how_it_ended(play, engine):
    seen = []

    def note(response):
        seen.append((response.stop_reason, response.output_len, response.latency >= 0))
        return 1.0

    engine.replies = ["abcdef", "a"]
    for limit in (2, 9):
        play(one_call(note, gconfig=GenerationHyperparameters(max_new_tokens=limit)))
    assert seen == [("length", 2, True), ("stop", 2, True)]


@pytest.mark.parametrize(
    ("request_", "raised"),
    [
        ({"gconfig": GenerationHyperparameters(n_samples=2)}, "ValueError: gconfig.n_samples is 2"),
        ({"input_ids": []}, "ValueError: input_ids is empty"),
        ({"input_ids": [-1]}, "ValueError: input_ids has the token id -1"),
        ({"input_ids": [10**6]}, "RequestError: prompt has the token id 1000000"),
        ({"input_ids": [7] * 200_000}, "ContextLengthError: This model's maximum context length is 100000"),
        ({"gconfig": GenerationHyperparameters(max_tokens=1)}, "gconfig.max_tokens is 1"),
    ],
)
def test_a_call_that_cannot_be_made_is_refused_where_it_is_made(play, request_, raised):
    class Wrong(RolloutWorkflow):
        async def arun_episode(self, engine, data):
            await engine.agenerate(ModelRequest(**{"input_ids": [7]} | request_))

    assert raised in play(Wrong).record.detail


def test_an_episode_at_its_limit_aborts_its_generation(play, engine):
    policy = engine

    class Hanging(RolloutWorkflow):
        async def arun_episode(self, engine, data):
            await policy.pause()
            await engine.agenerate(ModelRequest(input_ids=[7]))

    episode = play(Hanging, timeout_s=0.3)
    asyncio.run(policy.resume())
    assert (episode.record.outcome, episode.interactions) == (Outcome.TIMED_OUT, ())
    assert engine.log[0].finish_reason == "abort"


def test_a_call_after_the_end_is_refused(play):
    kept = []

    class Keeping(RolloutWorkflow):
        async def arun_episode(self, engine, data):
            kept.append(engine)
            await engine.agenerate(ModelRequest(input_ids=[7]))
            return 1.0

    play(Keeping)
    with pytest.raises(RequestError, match="this episode has ended"):
        asyncio.run(kept[0].agenerate(ModelRequest(input_ids=[7])))


def test_a_call_may_be_left_out_of_training(play):
    record = play(one_call(lambda _: 1.0, metadata={"trainable": False})).record
    assert record.reason == "no_llm_call"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda r: {"input_ids": np.array([[*r.input_tokens, *r.output_tokens, 7]])},
            "not the prompt and output of any",
        ),
        (lambda r: {"input_ids": np.array([r.output_tokens])}, "not the prompt and output of any"),
        (lambda r: {"input_ids": np.array(r.output_tokens)}, r"'input_ids' must be of shape \[B, L\]"),
        (lambda r: {"loss_mask": np.ones((1, r.input_len + r.output_len))}, "does not mark exactly the tokens"),
        (lambda r: {"loss_mask": np.ones((1, 2))}, "'loss_mask' must have the shape"),
        (lambda r: {"logprobs": np.full((1, r.input_len + r.output_len), 0.5)}, "has logprob 0.5 at"),
        (lambda r: {"versions": np.full((1, r.input_len + r.output_len), 9)}, "has version 9 at"),
        (lambda r: {"rewards": np.array([1.0, 2.0])}, r"'rewards' must be of shape \[1\]"),
        (lambda r: {"rewards": None}, r"'rewards' must be of shape \[1\]"),
    ],
)
def test_tensors_that_are_not_what_was_sampled_are_refused(play, change, problem):
    record = play(one_call(lambda response: rows_of(response, **change(response)))).record
    assert (record.outcome, record.reason) == (Outcome.REJECTED, "tensor_rows")
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(record.detail)


def test_a_reward_in_tensors_must_be_finite(play):
    record = play(one_call(lambda response: rows_of(response, rewards=np.array([math.nan])))).record
    assert record.reason == "not_finite"


def test_rows_of_several_branches_give_each_its_reward(play, engine):
    class TwoAnswers(RolloutWorkflow):
        async def arun_episode(self, engine, data):
            ids = engine.tokenizer.apply_chat_template(data["messages"], add_generation_prompt=True)
            replies = [await engine.agenerate(ModelRequest(input_ids=ids)) for _ in range(2)]
            rows = [[*ids, *reply.output_tokens] for reply in replies]
            longest = max(map(len, rows))
            return {
                "input_ids": [row + [0] * (longest - len(row)) for row in rows],
                "attention_mask": [[1] * len(row) + [0] * (longest - len(row)) for row in rows],
                "rewards": [1.0, 0.5],
            }

    for replies in (["abc", "d"], ["a", "a"]):
        engine.replies = replies
        episode = play(TwoAnswers)
        assert episode.record.rewards == {episode.interactions[0].id: 1.0, episode.interactions[1].id: 0.5}


def test_two_rows_of_one_call_are_refused(play):
    def twice(response):
        return {name: np.concatenate([value, value]) for name, value in rows_of(response).items()}

    assert "as an earlier row does" in play(one_call(twice)).record.detail


def test_a_wrong_signature_is_refused_before_anything_starts(play):
    class NoEngine:
        async def arun_episode(self, data):
            """Lacks the engine."""

    class Sync:
        def arun_episode(self, engine, data):
            """Is not async."""

    with pytest.raises(ConfigError, match=r"cannot be called with \(engine, data\)"):
        play(NoEngine)
    with pytest.raises(ConfigError, match="is not async"):
        play(Sync)


def test_requests_and_settings_are_copied_with_changes(chat):
    request = ModelRequest(input_ids=[1], metadata={"a": 1})
    copy = request.copy()
    copy.input_ids.append(2)
    copy.metadata["a"] = 2
    assert (request.input_ids, request.metadata, copy.rid) == ([1], {"a": 1}, request.rid)
    settings = GenerationHyperparameters(stop_token_ids=[9]).new_with_stop_and_pad_token_ids(
        attrs.make_class("Tokenizer", ["eos_token_id", "pad_token_id"])(3, None)
    )
    assert settings.stop_token_ids == [9, 3]
