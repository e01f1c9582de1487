"""Open Responses' scenarios, one by one; those that the gateway cannot pass must fail."""

import pytest

from .responses import SCENARIOS, scenarios_player


@pytest.fixture(scope="module")
def play():
    with scenarios_player() as player:
        yield player


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_of_open_responses(play, name):
    scenario = SCENARIOS[name]
    problems = play(scenario)
    assert bool(problems) == bool(scenario.expected_failure), problems
