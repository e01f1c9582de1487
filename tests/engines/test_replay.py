"""The replay engine: each recorded output once, for the prompt that it was sampled from."""

import asyncio

import pytest

from agentrl_core.data.comparison import shared_tokens
from agentrl_core.engines.replay import ReplayEngine
from agentrl_core.errors import EngineError
from agentrl_core.types import Episode, FinishReason, GenerateRequest, Interaction, Record, Sampling

RECORD = Record(id="r", run_id="run", task_id="t", group_id="g", sample_index=0)


def call(seq, parent, prompt, output, **fields):
    given = {"versions": ((0, len(output)),), "logprobs": tuple(-float(token) for token in output), **fields}
    return Interaction(
        id=f"call-{seq}", record_id="r", seq=seq, parent=parent, prompt_ids=prompt, output_ids=output, messages=(),
        output={"role": "assistant"}, **given,
    )  # fmt: skip


CALLS = (
    call(0, None, (1, 2), (3, 4), versions=((5, 1), (6, 1)), cached_tokens=1, started_at=1.0),
    call(1, None, (1, 2), (9,), started_at=2.0, finish_reason=FinishReason.LENGTH),
    call(2, "call-0", (7,), (8,), started_at=3.0, sampling=Sampling(stop=("y", "x"))),
    call(3, None, (), (), upstream="judge", versions=()),
)


def engine():
    made = ReplayEngine(
        Episode(record=RECORD, interactions=CALLS), context_length=99, decode=lambda ids: "axy" * len(ids)
    )
    made.start()
    return made


def ask(engine, prompt, **fields):
    async def collect():
        request = GenerateRequest(request_id="q", prompt_ids=prompt, sampling=Sampling(), **fields)
        return [chunk async for chunk in engine.generate(request)]

    return asyncio.run(collect())


def test_outputs_have_their_logprobs_versions_and_finish_reasons():
    first, second, last = ask(engine(), (1, 2), top_logprobs=3)
    assert [(item.ids, item.logprobs, item.version) for item in (first, second)] == [
        ((3,), (-3.0,), 5),
        ((4,), (-4.0,), 6),
    ]
    assert first.top_logprobs == (((3, -3.0),),)
    assert (last.ids, last.finish_reason, last.cached_tokens, last.stop_string) == ((), FinishReason.STOP, 1, None)


def test_calls_with_equal_prompts_get_their_outputs_in_the_order_in_which_they_began():
    replay = engine()
    assert [ask(replay, prompt)[0].ids for prompt in ((1, 2, 3, 4, 7), (1, 2), (1, 2))] == [(8,), (3,), (9,)]
    assert replay.left == []
    assert [item.id for item, _ in replay.answered] == ["call-2", "call-0", "call-1"]
    assert not replay.diverged.done()


def test_the_stop_string_that_comes_first_in_the_text_is_named():
    replay = engine()
    assert ask(replay, (1, 2, 3, 4, 7))[-1].stop_string == "x"


def test_the_first_other_prompt_is_compared_with_the_nearest_recorded_one():
    replay = engine()
    ask(replay, (1, 2))
    with pytest.raises(EngineError, match="does not contain"):
        ask(replay, (1, 2, 3, 5))
    with pytest.raises(EngineError):
        ask(replay, (6,))
    found = replay.diverged.result()
    assert (found.call, found.expected.id, found.token) == (2, "call-2", 3)
    assert (found.expected_ids, found.actual_ids) == ((1, 2, 3, 4, 7), (1, 2, 3, 5))


def test_weights_are_refused():
    with pytest.raises(EngineError, match="version 3"):
        asyncio.run(engine().load_weights(3, None))


@pytest.mark.parametrize(("one", "other", "count"), [((), (1,), 0), ((1, 2), (1, 2), 2), ((1, 2), (1, 3, 2), 1)])
def test_shared_tokens_are_counted(one, other, count):
    assert shared_tokens(one, other) == shared_tokens(other, one) == count
