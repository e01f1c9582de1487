"""Mathematical answers, right and wrong, malformed, and such that take for ever."""

import asyncio
import time

import attrs
import pytest

from agentrl_core import hookimpl
from agentrl_core.concurrency.processes import CallTimeoutError
from agentrl_core.config import parse
from agentrl_core.errors import ConfigError, EpisodeError
from agentrl_core.scorers.table import ScorerTable
from agentrl_math.comparing import same_value
from agentrl_math.scorer import Math
from agentrl_testing import ScorerSuite, isolated_plugins
from agentrl_testing.scorers import score_request


class TestConformance(ScorerSuite):
    @pytest.fixture
    def scorer(self):
        return Math(timeout_s=60)  # the first comparison imports sympy

    @pytest.fixture
    def examples(self):
        return [
            ({"answer": r"\frac{1}{2}", "reference": "0.5"}, 1.0),
            ({"answer": "5", "reference": "-5"}, 0.0),
            ({"answer": "x^2 + 2x + 1", "reference": "(x+1)^2"}, 1.0),
        ]


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("4", "4.0"), ("2+2", "4"), ("1/2", "0.5"), (r"\dfrac34", "0.75"), (r"50\%", "0.5"), ("1,234", "1234"),
        (r"10^{3}", "1000"), (r"\sqrt{8}", r"2\sqrt{2}"), (r"2\sqrt{2}", r"\sqrt 8"), (r"\{1,2\}", r"\{2,1\}"),
        ("[0,1)", "[0,1)"), ("x=5", "5"), ("5", "x=5"), (r"x \leq 3", r"x\le 3"), (r"5\text{ cm}", "5"), ("$5$", "5"),
        (r"90^\circ", "90"), ("The answer is 5", "5"), ("so it is $x = 5$", "5"), ("0.333333", "1/3"),
        (r"\text{yes}", "yes"), (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1 & 2\\3 & 4\end{bmatrix}"),
        (r"\sin^2 x + \cos^2 x", "1"), (r"\ln(e^2)", "2"), ("3", "the result is $3$"), (r"\frac{2}{4}", r"\frac12"),
    ],
)  # fmt: skip
def test_the_same_value_in_another_form(answer, reference):
    assert same_value(answer, (reference,), 6, True)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("5", "-5"), ("2", r"2\sqrt{2}"), ("0.33", "1/3"), ("hello", "4"), ("{", "4"), (r"\frac{1}", "4"), ("}", "4"),
        ("4 or 5", "4"), ("x+1", "x"), ("(1,2)", "[1,2]"), (r"\{1\}", r"\{1,2\}"), ("no", "yes"), ("\\", "1"),
        ("$$", "1"), ("__import__('os').getcwd()", "1"), ("\N{BUTTERFLY}", "1"),
    ],
)  # fmt: skip
def test_another_value_and_what_is_no_mathematics(answer, reference):
    assert not same_value(answer, (reference,), 6, True)


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        (r"First 1 + 1. So it is \boxed{\frac{1}{2}}, as I said.", 1.0),
        ("so " * 1_500 + "the answer is $0.5$", 1.0),
        (r"Not \boxed{0.5} but \boxed{3}", 0.0),
        ("The answer is 1/3.", 0.0),
    ],
)
def test_of_a_whole_reply_the_last_box_or_the_end_counts(reply, value):
    request = attrs.evolve(score_request(reply, "0.5"), answer_from="reply")
    assert asyncio.run(Math()(request)) == value


def test_options():
    assert same_value("0.33", ("1/3",), 2, True)
    assert not same_value("x+1", ("y+1",), 6, True)


def score(scorer, answer, reference="4", **data):
    return asyncio.run(scorer(score_request(answer, reference, **data)))


def test_any_of_several_references():
    request = score_request("0.5", "[]")
    request.task.data["answer"] = ["1", r"\frac12"]
    assert asyncio.run(Math()(request)) == 1.0


def test_an_empty_or_endless_answer_is_wrong():
    assert score(Math(), "") == 0.0
    assert score(Math(), "(" * 10**6) == 0.0


@pytest.mark.parametrize("answer", ["9^{9^{9^{9^9}}}", r"\sum_{k=1}^{10^{12}} \frac{\sin k}{k!}"])
def test_what_takes_for_ever_is_stopped_and_the_next_answer_judged(answer):
    begun = time.monotonic()
    assert score(Math(timeout_s=1, on_timeout="zero"), answer) == 0.0
    assert time.monotonic() - begun < 60
    assert score(Math(), "2+2") == 1.0


def test_a_timeout_is_no_score_unless_it_is_to_be_zero(monkeypatch):
    async def too_slow(*_, **__):
        raise CallTimeoutError("no result within 10 s")

    monkeypatch.setattr("agentrl_math.scorer.run_in_process", too_slow)
    with pytest.raises(EpisodeError, match=r"comparing '2\+2' with '4': no result within 10 s") as caught:
        score(Math(), "2+2")
    assert caught.value.reason == "no_score"
    assert score(Math(on_timeout="zero"), "2+2") == 0.0


def test_the_seeds_task_is_scored_and_options_stand_in_the_config():
    class Plugin:
        @hookimpl
        def register_scorers(self, register):
            register("math", "agentrl_math.scorer:Math")

    with isolated_plugins(Plugin()) as registry:
        sections = parse({"scorers": {"rough": {"use": "math", "precision": 1}}}).scorers
        table = ScorerTable(registry, sections)
        assert asyncio.run(table.get("math")(score_request(" 4", "4"))).value == 1.0
        assert asyncio.run(table.get("rough")(score_request("0.3", "1/3"))).value == 1.0
        with pytest.raises(ConfigError, match=r"scorers\.x\.precision: expected a whole number"):
            ScorerTable(registry, parse({"scorers": {"x": {"use": "math", "precision": "a"}}}).scorers).get("x")
        assert "expected mathematics" in table.get("math").refuses(score_request("", " ").task)
