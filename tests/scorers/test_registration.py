"""Scorers registered from Python."""

import asyncio
import math
import os

import pytest
from tests.scorers import calls

import agentrl_core
from agentrl_core import hookimpl, register_scorer
from agentrl_core.api.scoring import Score
from agentrl_core.config import parse
from agentrl_core.errors import EpisodeError, PluginError
from agentrl_core.plugins.registry import PROGRAM
from agentrl_core.scorers.table import ScorerTable
from agentrl_testing import isolated_plugins
from agentrl_testing.scorers import score_request


@pytest.fixture(autouse=True)
def _clean():
    before = list(PROGRAM.entries)
    yield
    PROGRAM.entries[:] = before


def score(name, **fields):
    with isolated_plugins() as registry:
        return asyncio.run(
            ScorerTable(registry).get(name)(score_request(**{"answer": "4", "reference": "4", **fields}))
        )


class Bound:
    def score(self, request):
        return 1.0


async def agentrl_form(model_answer: str, ground_truth: str) -> float:
    return float(model_answer == ground_truth)


def test_agentrls_form_is_taken_unchanged():
    assert register_scorer("mine", agentrl_form) is agentrl_form
    assert score("mine") == Score(1.0)
    assert score("python/mine", answer="5") == Score(0.0)
    assert agentrl_core.register_scorer is register_scorer


def test_it_decorates():
    @register_scorer("decorated")
    def scorer(request):
        return 0.5

    assert scorer(None) == 0.5
    assert score("decorated") == Score(0.5)


def test_a_class_is_built_when_it_is_named():
    @register_scorer("built")
    class Built:
        def __init__(self, *, value: float = 0.25):
            self.value = value

        def __call__(self, request):
            return self.value

    assert score("built") == Score(0.25)


@pytest.mark.parametrize("function", [math.sqrt, Bound().score])
@pytest.mark.parametrize("declared", [{"cpu_bound": True}, {"timeout_s": 3.0}])
def test_what_takes_no_attributes_cannot_be_declared(function, declared):
    ((name, value),) = declared.items()
    told = rf"cannot be registered with {name}={value}, because it takes no attributes; register a function of yours"
    with pytest.raises(PluginError, match=told):
        register_scorer("x", function, **declared)


@pytest.mark.parametrize(
    ("name", "function", "problem"),
    [
        ("x", lambda: 0, r"scorer 'x': expected score\(request\)"),
        ("x", 3, "found int 3"),
        ("No good", agentrl_form, "a name is lower-case letters"),
    ],
)
def test_what_is_no_scorer_is_refused_at_once(name, function, problem):
    before = list(PROGRAM.entries)
    with pytest.raises(PluginError, match=problem):
        register_scorer(name, function)
    assert PROGRAM.entries == before


def test_a_name_is_one_functions_unless_it_is_replaced():
    register_scorer("taken", agentrl_form)
    register_scorer("taken", agentrl_form)  # a notebook's cell, run again
    with pytest.raises(PluginError, match=r"'taken' is registered already, as .*agentrl_form; give .* another name"):
        register_scorer("taken", calls.pid)
    assert score("taken") == Score(1.0)
    register_scorer("taken", lambda request: 0.5, replace=True)
    assert score("taken") == Score(0.5)
    with pytest.raises(PluginError, match="replace=True"):
        register_scorer("taken", lambda request: 0.75)


def test_a_packages_scorer_of_the_same_name_makes_it_ambiguous():
    register_scorer("f1", agentrl_form)
    with pytest.raises(
        PluginError, match="is registered by agentrl-core and python; write agentrl-core/f1 or python/f1"
    ):
        score("f1")
    assert score("python/f1") == Score(1.0)


def test_a_registered_scorer_is_a_part_of_others_and_described():
    register_scorer("mine", agentrl_form)

    class Plugin:
        @hookimpl
        def register_scorers(self, register):
            register("other", lambda request: 0.0)

    with isolated_plugins(Plugin()) as registry:
        assert registry.describe("scorers", "mine") == f"{__name__}:agentrl_form"
        assert "python" not in [package.distribution for package in registry.packages]


def test_a_cpu_bound_scorer_runs_in_a_process_of_its_own():
    register_scorer("apart", calls.pid, cpu_bound=True)
    assert score("apart").value not in (0.0, float(os.getpid()))


def test_a_cpu_bound_scorer_that_hangs_is_no_score():
    register_scorer("hangs", calls.hang, cpu_bound=True, timeout_s=0.2)
    with pytest.raises(EpisodeError, match=r"scorer 'hangs': no result within 0.2 s; its process was killed"):
        score("hangs")


def test_a_cpu_bound_scorer_may_have_options():
    with isolated_plugins() as registry:
        section = parse({"scorers": {"x": {"use": f"{calls.__name__}:scaled", "factor": 3}}}).scorers
        assert asyncio.run(ScorerTable(registry, section).get("x")(score_request("a"))) == Score(3.0)


def test_what_cannot_reach_another_process_is_refused_at_once():
    factor = 2

    def closure(request):
        return factor

    for function in (lambda request: 1.0, closure):
        with pytest.raises(PluginError, match=r"'far': cpu_bound calls it in another process: .* cannot be sent"):
            register_scorer("far", function, cpu_bound=True)
    with pytest.raises(PluginError, match="cpu_bound is for synchronous scorers"):
        register_scorer("far", calls.asynchronous, cpu_bound=True)
    with pytest.raises(PluginError, match="timeout_s: expected a number of seconds above 0"):
        register_scorer("far", calls.other, cpu_bound=True, timeout_s=0)
    register_scorer("near", closure)
    assert score("near") == Score(2.0)
