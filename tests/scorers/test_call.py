"""Scorers of every accepted form are called in one way, and what they return is checked."""

import asyncio
import functools
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from agentrl_core.api.scoring import Score
from agentrl_core.errors import EpisodeError, PluginError
from agentrl_core.scorers.call import finite_number, normalize_scorer
from agentrl_testing.scorers import score_request


def score(function, answer="4", reference="4", name="mine"):
    return asyncio.run(normalize_scorer(function, name)(score_request(answer, reference)))


def one(request):
    return float(request.answer == request.reference)


async def one_async(request):
    return one(request)


def two(model_answer, ground_truth):
    return float(model_answer == ground_truth)


async def two_async(model_answer, ground_truth):
    return two(model_answer, ground_truth)


class Judge:
    def __call__(self, request):
        return one(request)

    async def judge(self, request):
        return one(request)


class AsyncJudge:
    async def __call__(self, request):
        return one(request)


def with_options(request, /, unused=None, *, scale=1.0):
    return scale * one(request)


FORMS = [
    one, one_async, two, two_async, Judge(), Judge().judge, AsyncJudge(), with_options,
    functools.partial(with_options, scale=1), functools.partial(one_async), lambda *values: two(values[0].answer, "4"),
    lambda request: asyncio.sleep(0, one(request)),
    lambda request=None: two(request.answer, request.reference),
    lambda a, b, c=None: two(a, b),
]  # fmt: skip


@pytest.mark.parametrize("function", FORMS)
def test_every_form_of_scorer_is_called(function):
    assert score(function) == Score(1.0)
    assert score(function, answer="5") == Score(0.0)


def test_a_scorer_of_two_texts_gets_answer_and_reference():
    seen = []
    score(lambda answer, reference: seen.append((answer, reference)), "a", "b")
    assert seen == [("a", "b")]


def test_a_sync_scorer_runs_beside_the_event_loop_and_an_async_one_on_it():
    threads = {}

    def slow(request):
        threads["sync"] = threading.get_ident()

    async def quick(request):
        threads["async"] = threading.get_ident()

    score(slow)
    score(quick)
    assert threads["sync"] != threading.get_ident()
    assert threads["async"] == threading.get_ident()


class Unsuited:
    def __init__(self, request):
        pass


def needs_option(request, *, model):
    return 0.0


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda: 0, r"found <lambda>\(\)"),
        (lambda a, b, c: 0, r"found <lambda>\(a, b, c\)"),
        (lambda **options: 0, r"found <lambda>\(\*\*options\)"),
        (lambda *, request: 0, r"needs the option 'request', which has no default: <lambda>\(\*, request\)"),
        (needs_option, r"needs the option 'model', which has no default: needs_option\(request, \*, model\)"),
        (Unsuited, "found the class Unsuited, not an instance of it"),
        (3, "found int 3"),
        ("exact_match", "found str 'exact_match'"),
        (None, "found NoneType None"),
        (max, "found max without a signature"),
    ],
)
def test_a_wrong_signature_is_refused_with_what_was_found_and_expected(function, found):
    with pytest.raises(PluginError, match=found) as caught:
        normalize_scorer(function, "mine")
    assert str(caught.value).startswith("scorer 'mine'")
    if "option" not in found:
        assert "expected score(request) or score(model_answer, ground_truth)" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0), (0.5, 0.5), (True, 1.0), (False, 0.0), (np.float32(0.5), 0.5), (np.int64(2), 2.0),
        (np.bool_(True), 1.0), (np.array(0.5), 0.5), (Fraction(1, 2), 0.5), (Decimal("0.5"), 0.5),
    ],
)  # fmt: skip
def test_numbers_of_every_kind_are_accepted(value, number):
    result = score(lambda request: value)
    assert result == Score(number)
    assert type(result.value) is float
    assert type(finite_number(value)) is float


@pytest.mark.parametrize("value", [math.nan, -math.inf, np.float32("nan"), np.array(np.inf), 10**400, -1e300])
@pytest.mark.parametrize(
    "wrap", [lambda value: value, Score, lambda value: {"id": value}, lambda v: Score(1.0, {"p": v})]
)
def test_a_value_that_is_not_finite_is_rejected(value, wrap):
    with pytest.raises(EpisodeError, match=r"scorer 'mine': .*expected a finite number.*, found") as caught:
        score(lambda request: wrap(value))
    assert caught.value.reason == "not_finite"


@pytest.mark.parametrize("value", ["1", [1.0], (1, 2), np.array([1.0]), 1j, b"1", object(), {1: 0.5}, {"a": "b"}])
def test_a_value_of_another_type_is_rejected(value):
    with pytest.raises(EpisodeError, match=r"scorer 'mine': .*expected .*, found") as caught:
        score(lambda request: value)
    assert caught.value.reason == "reward_type"


def test_no_score_stays_no_score():
    assert score(lambda request: None) is None


def test_rewards_by_interaction_and_scores_with_parts_come_back_as_floats():
    assert score(lambda request: {"a": True, "b": np.float64(0.5)}) == {"a": 1.0, "b": 0.5}
    assert score(lambda request: {}) == {}
    full = score(lambda request: Score(1, {"format": 1}, {"why": "because"}))
    assert full == Score(1.0, {"format": 1.0}, {"why": "because"})


def test_what_a_scorer_raises_passes_through():
    def broken(request):
        raise KeyError("field")

    with pytest.raises(KeyError, match="field"):
        score(broken)


def test_a_sync_scorer_takes_no_thread_of_the_loops_pool():
    async def alone():
        asyncio.get_running_loop().set_default_executor(closed)
        return await normalize_scorer(one, "mine")(score_request("4", "4"))

    closed = ThreadPoolExecutor(1)
    closed.shutdown()
    assert asyncio.run(alone()) == Score(1.0)


def test_a_scorer_that_needs_the_reference_says_so():
    def declared(request):
        return 1.0

    declared.needs_reference = True
    assert normalize_scorer(functools.partial(declared), "mine").needs_reference
    assert normalize_scorer(two, "mine").needs_reference
    assert not normalize_scorer(one, "mine").needs_reference
    two_without = functools.partial(two_async)
    two_without.needs_reference = False
    assert normalize_scorer(two_without, "mine").needs_reference
    with pytest.raises(
        EpisodeError, match="scorer 'mine' needs the task's `answer`, and task 'example' has none"
    ) as caught:
        score(declared, reference=None)
    assert caught.value.reason == "no_score"
