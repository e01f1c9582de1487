"""The interpreter that has verifiers, and episodes of environments in it."""

import os
from pathlib import Path

import attrs
import pytest

from agentrl_core.config.component import Component
from agentrl_core.config.sampling_sections import AgentConfig, RolloutConfig
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.subproc.resolving import resolve_in_workers
from agentrl_testing.workflows import Rehearsal
from agentrl_verifiers.dataset import VerifiersTasks

VARIABLE = "AGENTRL_VERIFIERS_PYTHON"
ENVS = Path(__file__).parent / "envs"


@pytest.fixture(scope="session")
def framework_python():
    found = os.environ.get(VARIABLE)
    if not found:
        pytest.skip(f"{VARIABLE} names no interpreter with what framework.txt lists; `nox -s tests` makes one")
    return found


@pytest.fixture(scope="session")
def tasks(framework_python):
    """A function that lists the tasks of an environment of this folder, once: verifiers takes seconds to import."""
    kept = {}

    def listed(env, *, again=False, **options):
        key = (env, repr(options))
        if again or key not in kept:
            kept[key] = VerifiersTasks(env=env, python=framework_python, config_dir=ENVS, **options)()
        return kept[key]

    return listed


class Play:
    """Episodes of one environment, in which the policy says given replies, one after the other."""

    def __init__(self, directory, python, env, args):
        self._replies = ()
        self.rehearsal = Rehearsal(directory, self._say)
        self.engine = self.rehearsal.engine
        # verifiers starts tool servers as `python -m MODULE`: it must find an environment that has tools
        agent = AgentConfig(mode="subproc", subproc_max_workers=1, python=python, env={"PYTHONPATH": str(ENVS)})
        self._workflow = resolve_in_workers(
            Component("verifiers", {"env": env, "args": args}),
            registry=load_registry(),
            base_dir=ENVS,
            rollout=RolloutConfig(agent=agent, timeout_s=200.0),
        )

    def _say(self, prompt):
        return self._replies[prompt.count("<|im_start|>assistant\n") - 1]

    def __call__(self, task, *replies, times=1, timeout_s=60.0):
        self._replies = replies
        self.engine.log.clear()
        copies = [attrs.evolve(task, id=f"{task.id}-{number}") for number in range(times)]
        episodes = self.rehearsal.play(self._workflow, copies, timeout_s=timeout_s)
        return episodes[0] if times == 1 else episodes


@pytest.fixture(scope="module")
def play(framework_python, tmp_path_factory):
    """A function that starts an environment; it is shared by the tests of a file."""
    made = {}

    def started(env, **args):
        key = (env, repr(args))
        if key not in made:
            made[key] = Play(tmp_path_factory.mktemp("rehearsal"), framework_python, env, args)
        return made[key]

    yield started
    for item in made.values():
        item.rehearsal.close()
