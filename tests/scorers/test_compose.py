"""Weighted sums, gates and schedules, made from a config's sections."""

import asyncio
import re

import attrs
import pytest

from agentrl_core import hookimpl
from agentrl_core.api.scoring import Score
from agentrl_core.config import parse
from agentrl_core.errors import ConfigError, EpisodeError
from agentrl_core.scorers.call import normalize_scorer
from agentrl_core.scorers.table import ScorerTable
from agentrl_testing import isolated_plugins
from agentrl_testing.scorers import score_request


def raises(request):
    raise OSError("away")


def two_texts(model_answer, ground_truth):
    return 0.75


asked = []


def seen(request):
    asked.append(request)
    return 1.0


class Plugin:
    @hookimpl
    def register_scorers(self, register):
        register("zero", lambda request: 0.0)
        register("fifth", lambda request: 0.2)
        register("half", lambda request: Score(0.5, {"inner": 0.1}, {"why": "so"}))
        register("one", lambda request: 1.0)
        register("nothing", lambda request: None)
        register("by_turn", lambda request: {"id": 1.0})
        register("raises", raises)
        register("seen", seen)
        register("two_texts", two_texts)


@pytest.fixture
def table():
    with isolated_plugins(Plugin()) as registry:

        def make(**sections):
            return ScorerTable(registry, parse({"scorers": sections}).scorers)

        yield make


def score(scorer, **fields):
    return asyncio.run(scorer(attrs.evolve(score_request("x", "x"), **fields)))


def test_a_weighted_sum_keeps_its_parts(table):
    scorer = table(
        q={"use": "weighted", "parts": {"one": 0.8, "half": 0.2, "same": {"use": "exact_match", "weight": -0.1}}}
    ).get("q")
    assert scorer.name == "q"
    found = score(scorer)
    assert found.value == pytest.approx(0.8 + 0.1 - 0.1)
    assert found.parts == {"one": 1.0, "half": 0.5, "half/inner": 0.1, "same": 1.0}
    assert found.details == {"half": {"why": "so"}}


@pytest.mark.parametrize("part", ["nothing", "raises"])
def test_a_part_without_a_score_leaves_none_or_is_skipped(table, part):
    parts = {"one": 0.6, "fifth": 0.2, part: 0.2}
    scorers = table(
        strict={"use": "weighted", "parts": parts},
        lenient={"use": "weighted", "parts": parts, "missing": "skip"},
        empty={"use": "weighted", "parts": {part: 1}, "missing": "skip"},
    )
    if part == "nothing":
        assert score(scorers.get("strict")) is None
    else:
        with pytest.raises(OSError, match="away"):
            score(scorers.get("strict"))
    found = score(scorers.get("lenient"))
    assert found.value == pytest.approx((0.6 + 0.04) / 0.8)
    assert part in found.details["skipped"]
    assert score(scorers.get("empty")) is None


def test_rewards_by_interaction_are_not_summed(table):
    with pytest.raises(EpisodeError, match="'by_turn' returned a reward per interaction"):
        score(table(q={"use": "weighted", "parts": {"by_turn": 1}}).get("q"))


def test_a_closed_gate_asks_nothing_more(table):
    asked.clear()
    scorers = table(
        closed={"use": "gated", "gate": "zero", "then": "seen", "otherwise": -1},
        open={"use": "gated", "gate": "half", "then": "seen"},
        higher={"use": "gated", "gate": "half", "then": "seen", "threshold": 0.6},
        unjudged={"use": "gated", "gate": "zero", "then": "seen", "otherwise": None},
        other={"use": "gated", "gate": "zero", "then": "seen", "otherwise": "fifth"},
        lost={"use": "gated", "gate": "nothing", "then": "seen"},
    )
    assert score(scorers.get("closed")) == Score(-1.0, {"gate": 0.0})
    assert score(scorers.get("higher")).value == 0.0
    assert score(scorers.get("other")) == Score(0.2, {"gate": 0.0, "otherwise": 0.2})
    assert score(scorers.get("unjudged")) is None
    assert score(scorers.get("lost")) is None
    assert asked == []
    assert score(scorers.get("open")).parts == {"gate": 0.5, "gate/inner": 0.1, "then": 1.0}


def test_a_soft_gate_mixes(table):
    scorer = table(g={"use": "gated", "gate": "fifth", "then": "one", "otherwise": "half", "soft": True}).get("g")
    assert score(scorer).value == pytest.approx(0.2 * 1.0 + 0.8 * 0.5)


def test_a_schedule_by_field(table):
    scorer = table(s={"use": "scheduled", "by": "field", "field": "level", "cases": {"1": "zero", "true": "one"}}).get(
        "s"
    )
    easy, yes, hard, none = (score_request("x", level=level) for level in (1, True, "2", None))
    assert asyncio.run(scorer(easy)) == Score(0.0, {"zero": 0.0})
    assert asyncio.run(scorer(yes)).value == 1.0
    assert "level: expected one of 1, true" in scorer.refuses(hard.task)
    assert "found nothing" in scorer.refuses(none.task)
    both = table(
        s={"use": "scheduled", "by": "field", "field": "level", "cases": {"1": "zero"}, "otherwise": "exact_match"}
    ).get("s")
    assert both.refuses(easy.task) == ""
    assert both.refuses(hard.task) == "scorer 's': scorer 'exact_match' needs the task's `answer`"


@pytest.mark.parametrize(
    ("step", "stepwise", "linear"),
    [(-1, 0.0, 0.0), (0, 0.0, 0.0), (4, 0.0, 0.4), (9, 0.0, 0.9), (10, 1.0, 1.0), (15, 1.0, 0.75), (20, 0.5, 0.5),
     (99, 0.5, 0.5), (None, 0.5, 0.5)],
)  # fmt: skip
def test_a_schedule_by_step(table, step, stepwise, linear):
    stages = [{"from": 0, "use": "zero"}, {"from": 10, "use": "one"}, {"from": 20, "use": "half"}]
    scorers = table(
        stepwise={"use": "scheduled", "by": "step", "stages": stages},
        linear={"use": "scheduled", "by": "step", "stages": stages, "blend": "linear"},
    )
    assert score(scorers.get("stepwise"), step=step).value == pytest.approx(stepwise)
    assert score(scorers.get("linear"), step=step).value == pytest.approx(linear)


def test_compositions_nest_and_name_each_other(table):
    scorers = table(
        form={"use": "regex", "pattern": "x"},
        quality={"use": "weighted", "parts": {"form": 0.5, "gate": 0.5}},
        gate={"use": "gated", "gate": "form", "then": {"use": "weighted", "parts": {"half": 2}}},
        alias="quality",
        f1={"use": "f1", "by": "characters"},
    )
    assert score(scorers.get("alias")) == Score(
        1.0,
        {
            "form": 1.0, "gate": 1.0, "gate/gate": 1.0, "gate/then": 1.0, "gate/then/half": 0.5,
            "gate/then/half/inner": 0.1,
        },
        {"gate": {"then": {"half": {"why": "so"}}}},
    )  # fmt: skip
    assert scorers.get("f1").function.by == "characters"
    assert scorers.get("two_texts") is scorers.get("two_texts")
    assert scorers.used["regex"].endswith("agentrl_core.scorers.regex:Regex")
    assert list(scorers.problems()) == []


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"a": {"use": "weighted", "parts": {"a": 1}}}, "scorers.a: it is a part of itself: a → a"),
        (
            {"a": {"use": "gated", "gate": "b", "then": "f1"}, "b": {"use": "weighted", "parts": {"a": 1}}},
            "scorers.a: it is a part of itself: a → b → a",
        ),
        ({"a": {"use": "weighted"}}, "scorers.a: weighted needs the option 'parts', a section"),
        ({"a": {"use": "weighted", "parts": {}}}, "scorers.a.parts: .*at least one scorer"),
        ({"a": {"use": "weighted", "parts": {"f1": 0}}}, "scorers.a.parts: .*a weight other than 0"),
        (
            {"a": {"use": "weighted", "parts": {"f1": True}}},
            "scorers.a.parts: .*f1: expected a weight, a number, found T",
        ),
        ({"a": {"use": "weighted", "parts": {"f1": {"by": "words"}}}}, "scorers.a.parts: .*expected a weight"),
        ({"a": {"use": "weighted", "parts": {"f2": 1}}}, r"scorers.a.parts.f2: no scorer named 'f2'"),
        (
            {"a": {"use": "weighted", "parts": {"f1": 1}, "missing": "no"}},
            "scorers.a.missing: expected no_score or skip",
        ),
        (
            {"a": {"use": "weighted", "parts": {"f1": {"weight": 1, "by": "letters"}}}},
            "scorers.a.parts.f1.by: expected words or characters",
        ),
        (
            {"a": {"use": "gated", "gate": "f1", "then": {"used": "f1"}}},
            "scorers.a.then.use: missing: the name of the component",
        ),
        ({"a": {"use": "gated", "gate": "f1", "then": "f1", "otherwise": None, "soft": True}}, "scorers.a.otherwise: "),
        ({"a": {"use": "scheduled", "by": "step"}}, "'stages': missing with by: step"),
        ({"a": {"use": "scheduled", "by": "field", "field": "x"}}, "'cases': missing with by: field"),
        ({"a": {"use": "scheduled", "by": "day"}}, "scorers.a.by: expected field or step"),
        (
            {"a": {"use": "scheduled", "by": "step", "stages": [{"from": 0, "use": "f1"}], "field": "x"}},
            "'field': not allowed with by: step",
        ),
        ({"a": {"use": "scheduled", "by": "step", "stages": [{"from": 1, "use": "f1"}]}}, "steps that rise from 0"),
        ({"a": {"use": "scheduled", "by": "step", "stages": ["f1"]}}, "scorers.a.stages: .*expected {from: STEP"),
        ({"a": "f1", "b": {"use": "a", "by": "words"}}, "scorers.b.by: 'a' is defined in this config and takes no"),
        ({"A": "f1"}, "scorers.A: expected a name of lower-case"),
        ({"a": {"use": "exact_match", "casefolds": True}}, "scorers.a.casefolds: unknown option"),
    ],
)
def test_a_faulty_section_is_refused_with_its_place(table, sections, problem):
    problems = list(table(**sections).problems())
    assert any(re.search(problem, line) for line in problems), problems


def test_a_section_must_name_its_scorer():
    with pytest.raises(ConfigError, match=r"scorers\.a\.use: missing"):
        parse({"scorers": {"a": {"by": "words"}}})


def test_a_task_cannot_name_a_scorer_that_needs_parts(table):
    with pytest.raises(ConfigError, match="weighted needs the option 'parts'"):
        table().get("weighted")


def test_what_a_part_needs_of_a_task_the_whole_needs(table):
    scorer = table(
        a={"use": "weighted", "parts": {"one": 1, "b": 1}}, b={"use": "gated", "gate": "two_texts", "then": "choice"}
    ).get("a")
    assert scorer.refuses(score_request("").task) == (
        "scorer 'a': scorer 'b': scorer 'two_texts' needs the task's `answer`"
    )
    assert "scorer 'choice': " in scorer.refuses(score_request("", "x").task)
    assert normalize_scorer(two_texts, "t").refuses(score_request("", "x").task) == ""
