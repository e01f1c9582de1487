"""Tasks of several of reasoning-gym's data sets, and their splits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError, DataError
from agentrl_core.plugins.manager import load_registry
from agentrl_reasoning_gym import ReasoningGym
from agentrl_testing.datasets import DatasetSuite
from agentrl_testing.plugins import check_plugin

SEVERAL = ["chain_sum", "arc_1d", "graph_color", "knights_knaves", "spell_backward"]


def test_the_package_is_a_sound_plugin():
    check_plugin("agentrl-reasoning-gym")


@pytest.mark.parametrize("name", [*SEVERAL, "mini_sudoku", "puzzle24", "rearc"])
class TestConformance(DatasetSuite):
    @pytest.fixture
    def dataset(self, name):
        return ReasoningGym(datasets=name, size=4)


class TestConformanceOfAMixture(DatasetSuite):
    @pytest.fixture
    def dataset(self):
        return ReasoningGym(datasets={"leg_counting": {"max_animals": 4}, "gcd": {}}, size=7, difficulty=1, seed=3)


def questions(**options):
    return {task.data["query"] for task in ReasoningGym(**options)()}


@settings(max_examples=20, deadline=None)
@given(st.tuples(st.integers(0, 50), st.integers(0, 50)), st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_the_splits_share_no_question_whatever_their_seeds(seeds, sizes):
    small = {"chain_sum": {"max_terms": 2, "max_digits": 1}}
    train = questions(datasets=small, seed=seeds[0], size=sizes[0])
    held_out = questions(datasets=small, seed=seeds[1], size=sizes[1], split="eval")
    assert (len(train), len(held_out)) == sizes
    assert not train & held_out


def test_neighbouring_seeds_have_other_tasks():
    assert len(questions(datasets="gcd", size=30) & questions(datasets="gcd", size=30, seed=1)) < 3


def test_a_mixture_has_equal_shares_in_turn():
    tasks = ReasoningGym(datasets=["gcd", "lcm"], size=5)()
    assert [task.data["reasoning_gym"]["dataset"] for task in tasks] == ["gcd", "lcm", "gcd", "lcm", "gcd"]
    assert len({task.id for task in tasks}) == 5


def test_both_halves_together_have_every_question():
    small = {"chain_sum": {"max_terms": 2, "max_digits": 1, "min_digits": 1}}
    halves = (questions(datasets=small, size=60, split=split) for split in ("train", "eval"))
    assert set.union(*halves) <= questions(datasets=small, size=195, split="all")


def test_a_level_makes_harder_questions():
    easy, hard = (ReasoningGym(datasets="chain_sum", size=1, difficulty=level)()[0] for level in (0, 4))
    assert len(easy.data["query"]) < len(hard.data["query"])


def test_the_system_prompt_comes_first():
    (task,) = ReasoningGym(datasets="gcd", size=1, system_prompt="Be brief.")()
    assert [message["role"] for message in task.data["messages"]] == ["system", "user"]


def test_a_data_set_that_is_exhausted_says_so():
    with pytest.raises(DataError, match=r"'chain_sum': expected 500 different questions in the split 'train', found "):
        ReasoningGym(datasets={"chain_sum": {"max_terms": 2, "max_digits": 1}})()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"datasets": "chain_sun"}, r"has no data set 'chain_sun' \(did you mean chain_sum\?\)"),
        ({"datasets": {"gcd": {"max_valeu": 3}}}, "'gcd' has no option 'max_valeu'; it has max_numbers, max_value"),
        ({"datasets": {"gcd": {"min_numbers": 0}}}, "'gcd' refuses its options: "),
        ({"datasets": "composite"}, "'composite' refuses its options: Must specify at least one dataset"),
        ({"datasets": []}, "datasets"),
        ({"datasets": "gcd", "size": 0}, "size"),
        ({"datasets": "gcd", "split": "test"}, "split: expected train or eval or all"),
    ],
)
def test_bad_options_are_errors_of_the_config(options, problem):
    with pytest.raises(ConfigError, match=problem):
        load_registry().build("datasets", Component("reasoning_gym", options), where="config.yaml:3: data.train")
