"""The interpreter that has CAMEL, and episodes with agents in it."""

import os

import pytest

from agentrl_core.config.component import Component
from agentrl_core.config.sampling_sections import AgentConfig, RolloutConfig
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.subproc.resolving import resolve_in_workers
from agentrl_core.types import Task
from agentrl_testing.workflows import Rehearsal

VARIABLE = "AGENTRL_CAMEL_PYTHON"


@pytest.fixture(scope="session")
def framework_python():
    found = os.environ.get(VARIABLE)
    if not found:
        pytest.skip(f"{VARIABLE} names no interpreter with what framework.txt lists; `nox -s tests` makes one")
    return found


class Play:
    """Episodes of the workflow `agents.py:run`, which picks one of its agents by the row's `case`."""

    def __init__(self, directory, python, base_dir):
        self._replies = ()
        self.scorer = lambda request: 0.5
        self.rehearsal = Rehearsal(directory, self._say)
        self.engine = self.rehearsal.engine
        agent = AgentConfig(mode="subproc", subproc_max_workers=1, python=python)
        self._workflow = resolve_in_workers(
            Component("agents.py:run"),
            registry=load_registry(),
            base_dir=base_dir,
            rollout=RolloutConfig(agent=agent, timeout_s=120.0),
        )

    @property
    def prompts(self):
        return self.rehearsal.prompts

    def _say(self, prompt):
        return self._replies[prompt.count("<|im_start|>assistant\n") - 1]

    def __call__(self, case, *replies, messages=None, times=1, timeout_s=60.0, **row):
        """Play one episode, or several at once, in which the policy says `replies`, one after the other."""
        self._replies = replies
        self.engine.log.clear()
        question = messages or [{"role": "user", "content": "What is 2 + 2?"}]
        data = {"id": "t", "case": case, "messages": question, "answer": "4", **row}
        tasks = [Task(id=f"t{number}", data=data, answer="4") for number in range(times)]
        episodes = self.rehearsal.play(self._workflow, tasks, timeout_s=timeout_s, scorer=self.scorer)
        return episodes[0] if times == 1 else episodes


@pytest.fixture(scope="module")
def play(request, framework_python, tmp_path_factory):
    made = Play(tmp_path_factory.mktemp("rehearsal"), framework_python, request.path.parent)
    yield made
    made.rehearsal.close()


@pytest.fixture(scope="session")
def call():
    """A tool call as the policy writes it."""
    return lambda name, arguments: f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
