"""Episodes as in a run, on a policy that says what a test tells it."""

import json

import anthropic
import pytest

from agentrl_core.config.component import Component
from agentrl_core.models.tiny import TURN_START
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.types import Task
from agentrl_testing.workflows import Rehearsal


class World(Rehearsal):
    """Plays one episode per row, all at once, and returns them in order."""

    def __init__(self, directory):
        super().__init__(directory, self._answer)
        self.registry = load_registry()
        self.rows = 0
        self.mind = None

    def says(self, *replies):
        """Let the policy say these, one after the other, in every conversation."""
        self.mind = lambda prompt: replies[prompt.count(f"{TURN_START}assistant\n") - 1]

    def run(self, agent, *rows, options=None, **settings):
        workflow = Component(agent, options or {}) if isinstance(agent, str) else agent
        resolved = resolve_workflow(workflow, registry=self.registry, base_dir=None)
        return self.play_rows(resolved, *rows, **settings)

    def play_rows(self, resolved, *rows, **settings):
        tasks = [Task(id=f"t{self.rows + n}", data={"id": f"t{self.rows + n}", **row}) for n, row in enumerate(rows)]
        self.rows += len(rows)
        return self.play(resolved, tasks, **settings)

    def _answer(self, prompt):
        return self.mind(prompt)


@pytest.fixture(autouse=True)
def _keys(monkeypatch):
    """A key as users have it, so that clients can be built; nothing may ever use it."""
    for name in ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-users-own")


@pytest.fixture(scope="session")
def one_world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.close()


@pytest.fixture
def world(one_world):
    """The world, as if nothing had been said in it."""
    one_world.engine.log.clear()
    one_world.engine.calls, one_world.engine.refuse = 0, False
    return one_world


@pytest.fixture
def ask():
    """A task's row that asks one thing."""
    return lambda text: {"messages": [{"role": "user", "content": text}]}


@pytest.fixture
def call():
    """A tool call as the policy writes it."""
    return lambda name, **arguments: f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture
def client():
    """A client as a module has it, bound to Anthropic."""
    return anthropic.AsyncAnthropic()
