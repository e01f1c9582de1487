"""The interpreter that has CAMEL, and episodes with agents in it."""

import os

import pytest

from agentrl_core.testing.adapters import resolve_in_other
from agentrl_core.testing.workflows import Rehearsal
from agentrl_core.types import Task

VARIABLE = "AGENTRL_CAMEL_PYTHON"


@pytest.fixture(scope="session")
def python():
    found = os.environ.get(VARIABLE)
    if not found:
        pytest.skip(f"{VARIABLE} names no interpreter with what framework.txt lists; `nox -s tests` makes one")
    return found


class Play:
    """Episodes of the workflow `agents.py:run`, which picks one of its agents by the row's `case`."""

    def __init__(self, directory, python, base_dir):
        self.replies = []
        self.prompts = []
        self.rehearsal = Rehearsal(directory, self._say)
        self._workflow = resolve_in_other("agents.py:run", python, base_dir=base_dir)

    def _say(self, prompt):
        self.prompts.append(prompt)
        return self.replies[prompt.count("<|im_start|>assistant\n") - 1]

    def __call__(self, case, *replies, messages=None, **row):
        """Play one episode in which the policy says `replies`, one after the other."""
        self.replies, self.prompts = replies, []
        self.rehearsal.engine.log.clear()
        question = messages or [{"role": "user", "content": "What is 2 + 2?"}]
        data = {"id": "t", "case": case, "messages": question, "answer": "4", **row}
        (episode,) = self.rehearsal.play(self._workflow, [Task(id="t", data=data, answer="4")])
        return episode


@pytest.fixture(scope="module")
def play(request, python, tmp_path_factory):
    made = Play(tmp_path_factory.mktemp("rehearsal"), python, request.path.parent)
    yield made
    made.rehearsal.close()


@pytest.fixture(scope="session")
def call():
    """A tool call as the policy writes it."""
    return lambda name, arguments: f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
