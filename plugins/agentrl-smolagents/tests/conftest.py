"""Episodes of smolagents' agents on the real gateway, with a policy that says what a test tells it."""

import itertools
import json

import pytest
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

from agentrl_core.config.component import Component
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.types import Task
from agentrl_testing.workflows import Rehearsal

TURN = "<|im_start|>assistant\n"


class World:
    """Plays an agent, named or given, on rows; `says` sets what the policy says, turn by turn."""

    def __init__(self, directory):
        self.mind = None
        self.directory = directory
        self.rehearsal = Rehearsal(directory / "rehearsal", self._reply)
        self.engine = self.rehearsal.engine
        self.numbers = itertools.count()
        self.requests = []

    def says(self, *replies):
        self.mind = lambda prompt: replies[prompt.count(TURN) - 1]

    def resolve(self, agent, **options):
        workflow = Component(agent, options) if isinstance(agent, str) else agent
        return resolve_workflow(workflow, registry=load_registry(), base_dir=self.directory)

    def play(self, agent, *rows, timeout_s=30.0, score=1.0, **options):
        tasks = []
        for row in rows:
            number = next(self.numbers)
            tasks.append(Task(id=f"t{number}", data={"id": f"t{number}", **row}, answer=row.get("answer")))
        workflow = self.resolve(agent, **options)
        return self.rehearsal.play(workflow, tasks, timeout_s=timeout_s, scorer=self._scorer(score))

    def _reply(self, prompt):
        return self.mind(prompt)

    def _scorer(self, score):
        def scorer(request):
            self.requests.append(request)
            return score

        return scorer


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.rehearsal.close()


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.

    """
    return a + b


PROMPTS = {
    "system_prompt": "You add. {{custom_instructions}}",
    "planning": {"initial_plan": "", "update_plan_pre_messages": "", "update_plan_post_messages": ""},
    "managed_agent": {"task": "{{task}}", "report": "{{final_answer}}"},
    "final_answer": {"pre_messages": "Answer.", "post_messages": "Answer: {{task}}"},
}


@pytest.fixture
def model():
    """A model as users build it; nothing listens where it would call."""
    made = OpenAIModel("gpt-4o", api_base="http://127.0.0.1:9/v1", api_key="sk-own")
    yield made
    made.client.close()


@pytest.fixture
def build(model):
    """Build an agent with a tool, as users do."""

    def one(kind="tool", **options):
        agent_class = {"tool": ToolCallingAgent, "code": CodeAgent}[kind]
        given = {"tools": [add], "model": model, "prompt_templates": PROMPTS, "max_steps": 4} | options
        return agent_class(**given)

    return one


@pytest.fixture
def final(call):
    """The tool call that ends an episode."""
    return lambda answer: call("final_answer", answer=answer)


@pytest.fixture
def ask():
    """A task's row that asks one thing."""
    return lambda text: {"messages": [{"role": "user", "content": text}]}


@pytest.fixture
def call():
    """A tool call as the policy writes it."""
    return lambda name, **arguments: f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
