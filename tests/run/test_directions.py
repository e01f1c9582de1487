"""A live run obeys pauses and limits."""

import threading

import pytest

from agentrl_core.api.run_rows import RunControl
from agentrl_core.config.sampling_sections import RolloutConfig
from agentrl_core.config.training_sections import EvalConfig, TrainerConfig
from agentrl_core.run.directions import Directions

DEADLINE_S = 30.0


def test_limits_replace_the_config_and_are_unset_again():
    directions = Directions()
    directions.obey(RunControl(limits={"trainer.save_steps": 3, "eval.every": 7, "trainer.later": 1}))
    assert directions.limited("trainer", TrainerConfig(steps=5)) == TrainerConfig(steps=5, save_steps=3)
    assert directions.limited("eval", EvalConfig()) == EvalConfig(every=7)
    assert directions.limited("rollout", RolloutConfig()) == RolloutConfig()
    directions.obey(RunControl())
    assert directions.limited("trainer", TrainerConfig(steps=5)) == TrainerConfig(steps=5)


def test_no_step_begins_while_the_run_is_paused():
    notices = []
    directions = Directions(notices.append)
    directions.wait_while_paused(pytest.fail)
    directions.obey(RunControl(wanted="pause"))
    directions.obey(RunControl(wanted="pause", limits={"eval.every": 1}))
    looked, gone_on = threading.Event(), threading.Event()

    def wait():
        directions.wait_while_paused(looked.set)
        gone_on.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert looked.wait(DEADLINE_S)
    assert not gone_on.is_set()
    directions.obey(RunControl())
    assert gone_on.wait(DEADLINE_S)
    waiting.join(DEADLINE_S)
    assert [line.split("; ")[0] for line in notices] == ["the run is paused", "the run goes on"]


def test_a_request_to_stop_ends_a_pause():
    directions = Directions()
    directions.obey(RunControl(wanted="pause"))

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        directions.wait_while_paused(stop)
