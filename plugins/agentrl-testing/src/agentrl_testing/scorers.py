"""Conformance tests of scorers: `ScorerSuite` for pytest, `check_scorer` for scripts."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import pytest

from agentrl_core.api.scoring import Score, ScoreRequest
from agentrl_core.errors import EpisodeError
from agentrl_core.scorers.call import NormalizedScorer, normalize_scorer
from agentrl_core.types import Record, Task
from agentrl_testing.base import ConformanceSuite

Example: TypeAlias = "tuple[Mapping[str, Any], float | None]"
"""Arguments of `score_request`, and the value that the scorer must return; None means no score."""


def score_request(answer: str, reference: str | None = None, **data: Any) -> ScoreRequest:
    """Make a request as in a run, for a task with one question that is answered in one turn.

    `data` adds fields to the task's row.
    """
    messages = [{"role": "user", "content": "question"}]
    row = {"id": "example", "query": "question", **data, "messages": messages}
    return ScoreRequest(
        answer=answer,
        reference=reference,
        task=Task(id="example", data=row, answer=reference),
        messages=[*messages, {"role": "assistant", "content": f"<answer>{answer}</answer>"}],
        record=Record(id="example-0", run_id="run", task_id="example", group_id="group", sample_index=0),
    )


class ScorerSuite(ConformanceSuite):
    """Conformance tests of scorers; define the fixtures `scorer` and `examples` (a list of `Example`)."""

    @pytest.fixture
    def scorer(self) -> Any:
        """Return the scorer under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `scorer`")

    @pytest.fixture
    def examples(self) -> Sequence[Example]:
        """Return requests with their expected values."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `examples`")

    def test_the_signature_is_one_that_scorers_have(self, scorer: Any) -> None:
        """The scorer takes a request, or an answer and a reference."""
        normalize_scorer(scorer, "scorer")

    def test_every_example_gets_its_value(self, scorer: Any, examples: Sequence[Example]) -> None:
        """There is at least one example, and each gets its expected value."""
        assert examples, "give at least one example"
        _check_values(scorer, examples)

    def test_the_same_request_gets_the_same_value_in_any_order(self, scorer: Any, examples: Sequence[Example]) -> None:
        """The scorer keeps no state between requests and does not mix up concurrent requests."""
        _check_repeatable(scorer, examples)

    def test_the_request_is_left_as_it_is(self, scorer: Any, examples: Sequence[Example]) -> None:
        """The scorer does not change the task and the messages, which belong to the run."""
        _check_untouched(scorer, examples)

    def test_an_empty_answer_is_judged(self, scorer: Any, examples: Sequence[Example]) -> None:
        """An empty answer is a wrong answer, not an error."""
        _check_empty_answer(scorer, examples)

    def test_a_missing_reference_is_no_score_where_one_is_needed(
        self, scorer: Any, examples: Sequence[Example]
    ) -> None:
        """A scorer that declares `needs_reference` returns no value without a reference."""
        _check_missing_reference(scorer, examples)

    def test_odd_answers_are_judged_in_time(self, scorer: Any, examples: Sequence[Example]) -> None:
        """No text of a model makes the scorer hang or raise; only `EpisodeError` may say that there is no score."""
        _check_odd_answers(scorer, examples)


def check_scorer(scorer: Any, examples: Sequence[Example] = ()) -> None:
    """Raise PluginError, EpisodeError or AssertionError if `scorer` breaks its contract; print nothing.

    check_scorer(my_scorer, [({"answer": "4", "reference": "4"}, 1.0)])
    """
    _check_values(scorer, examples)
    for check in (
        _check_repeatable,
        _check_untouched,
        _check_empty_answer,
        _check_missing_reference,
        _check_odd_answers,
    ):
        check(scorer, examples)


def _run(scorer: NormalizedScorer, *requests: ScoreRequest) -> list[Any]:
    """Score requests concurrently; return the value of each Score."""

    async def score_all() -> list[Any]:
        return await asyncio.gather(*(scorer(request) for request in requests))

    return [result.value if isinstance(result, Score) else result for result in asyncio.run(score_all())]


def _check_values(scorer: Any, examples: Sequence[Example]) -> None:
    normalized = normalize_scorer(scorer, "scorer")
    for arguments, expected in examples:
        (found,) = _run(normalized, score_request(**arguments))
        assert found == pytest.approx(expected), f"{arguments}: expected {expected}, found {found}"


def _check_repeatable(scorer: Any, examples: Sequence[Example]) -> None:
    normalized = normalize_scorer(scorer, "scorer")
    requests = [score_request(**arguments) for arguments, _ in examples]
    once = [_run(normalized, request)[0] for request in requests]
    again = _run(normalized, *requests, *reversed(requests))
    assert again == [*once, *reversed(once)], f"the same requests got {once} first and then {again}"


def _check_untouched(scorer: Any, examples: Sequence[Example]) -> None:
    normalized = normalize_scorer(scorer, "scorer")
    for arguments, _ in examples:
        request = score_request(**arguments)
        before = copy.deepcopy(request)
        _run(normalized, request)
        assert request == before, f"{arguments}: the scorer changed its request"


def _check_empty_answer(scorer: Any, examples: Sequence[Example]) -> None:
    normalized = normalize_scorer(scorer, "scorer")
    for arguments, _ in examples or [({"answer": "", "reference": "example"}, None)]:
        (found,) = _run(normalized, score_request(**{**arguments, "answer": ""}))
        assert found is None or isinstance(found, float | dict)


def _check_missing_reference(scorer: Any, examples: Sequence[Example]) -> None:
    normalized = normalize_scorer(scorer, "scorer")
    if not normalized.needs_reference or normalized.takes_texts:
        return
    for arguments, _ in examples:
        request = attrs.evolve(score_request(**arguments), reference=None)
        # Switch off the check of NormalizedScorer, which would raise before the scorer is called.
        (found,) = _run_or_none(attrs.evolve(normalized, needs_reference=False), request)
        assert found is None, f"{arguments}: expected no score without a reference, found {found}"


def _check_odd_answers(scorer: Any, examples: Sequence[Example]) -> None:
    normalized = normalize_scorer(scorer, "scorer")

    async def judge(arguments: Mapping[str, Any], answer: str) -> None:
        begun = time.monotonic()
        try:
            found = await normalized(score_request(**{**arguments, "answer": answer}))
        except EpisodeError:
            return
        except Exception as error:
            raise AssertionError(f"the answer {answer!r:.40} made it raise {type(error).__name__}: {error}") from error
        assert found is None or isinstance(found, Score | dict)
        took = time.monotonic() - begun
        assert took < _PATIENCE_S, f"the answer {answer!r:.40} of {len(answer)} characters took {took:.0f} s"

    async def judge_all(arguments: Mapping[str, Any]) -> None:
        await asyncio.gather(*(judge(arguments, answer) for answer in _ODD_ANSWERS))

    for arguments, _ in examples[:1]:
        asyncio.run(judge_all(arguments))


_PATIENCE_S = 60.0
_ODD_ANSWERS = (
    "\0", "\ud800", "\N{BUTTERFLY}\u202e", "\n" * 1000, "a" * 1_000_000, "a" * 5000 + "!", "9" * 5000, "(" * 20_000,
    "[" * 100_000, '{"a":' * 20_000, "\\boxed{" * 5000, "```python\n" * 5000, "1e999", "NaN", "-" * 10_000, "1/0",
)  # fmt: skip
"""Texts that have broken parsers: control characters, half a surrogate pair, deep nesting, length, huge numbers."""


def _run_or_none(scorer: NormalizedScorer, request: ScoreRequest) -> list[Any]:
    try:
        return _run(scorer, request)
    except Exception:  # noqa: BLE001  (the rollout treats every exception as no score)
        return [None]
