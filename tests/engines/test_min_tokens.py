"""No stop token before `min_tokens`: of the embedded engine, whichever way it computes."""

import asyncio

import pytest

from agentrl_core.engines.embedded import EmbeddedEngine
from agentrl_core.errors import UnservableError
from agentrl_core.types import FinishReason, Grammar
from agentrl_testing.engines import ask, run

PROMPT = list(range(10, 40))
STOPS = tuple(range(3, 250))
"""Nearly all that the policy can sample, so that it would stop at once."""


@pytest.fixture(params=["loop", "generate"])
def engine(request, policies):
    engine = EmbeddedEngine(model_dir=policies("qwen3"), implementation=request.param)
    engine.start()
    yield engine
    engine.close()


def test_no_stop_token_comes_before_it_and_logprobs_stay_those_of_all_tokens(engine, policies, load, full_forward):
    free = run(ask(engine, PROMPT, stop_token_ids=STOPS, max_tokens=20))
    assert (len(free.ids), free.last.finish_reason) == (1, FinishReason.STOP)
    held = run(ask(engine, PROMPT, stop_token_ids=STOPS, max_tokens=20, min_tokens=6))
    assert not set(held.ids[:5]) & set(STOPS)
    assert held.ids[5] in STOPS
    assert (len(held.ids), held.last.finish_reason) == (6, FinishReason.STOP)
    reference = full_forward(load(policies("qwen3")), PROMPT, held.ids)
    assert list(held.logprobs) == pytest.approx(reference, abs=1e-4)


def test_temperature_zero_takes_the_likeliest_of_the_others(engine):
    asked = {"temperature": 0.0, "max_tokens": 8}
    free = run(ask(engine, PROMPT, **asked))
    held = run(ask(engine, PROMPT, stop_token_ids=(free.ids[0],), min_tokens=1, **asked))
    assert held.ids == free.ids[:1]  # as the only token it may be the first
    held = run(ask(engine, PROMPT, stop_token_ids=(free.ids[0],), min_tokens=2, **asked))
    assert held.ids[0] != free.ids[0]


def test_a_row_that_is_held_changes_no_bit_of_those_beside_it(engine):

    others = [{"seed": seed, "max_tokens": 12} for seed in range(3)]
    held = {"seed": 9, "max_tokens": 12, "stop_token_ids": STOPS, "min_tokens": 9}

    async def beside():
        return await asyncio.gather(*(ask(engine, PROMPT, **asked) for asked in [*others, held]))

    alone = [run(ask(engine, PROMPT, **asked)) for asked in others]
    assert [result.ids for result in run(beside())[:3]] == [result.ids for result in alone]


def test_its_length_ends_an_output_all_the_same(engine):
    result = run(ask(engine, PROMPT, stop_token_ids=STOPS, max_tokens=4, min_tokens=9))
    assert (len(result.ids), result.last.finish_reason) == (4, FinishReason.LENGTH)


def test_a_grammar_that_is_complete_before_is_an_error(engine):
    asked = {"grammar": Grammar(kind="regex", value="[a-c]{2}"), "stop_token_ids": (2,), "max_tokens": 9}
    assert len(run(ask(engine, PROMPT, min_tokens=3, **asked)).ids) == 3
    with pytest.raises(UnservableError, match="only a stop token may follow, and min_tokens is 6"):
        run(ask(engine, PROMPT, min_tokens=6, **asked))


@pytest.mark.parametrize("wrong", [{"min_tokens": -1}, {"min_tokens": 3, "stop": ("a",)}])
def test_what_cannot_be_held_to_is_refused(engine, wrong):
    with pytest.raises(UnservableError, match="min_tokens"):
        run(ask(engine, PROMPT, **wrong))
