"""Agents as a user of OpenHands builds them, and workflows; imported by OpenHands' interpreter alone."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from openhands.sdk import LLM, Action, Agent, Conversation, Observation, Tool, ToolDefinition, register_tool
from openhands.sdk.context.condenser import LLMSummarizingCondenser
from openhands.sdk.tool import ToolExecutor
from pydantic import SecretStr

from agentrl_openhands.math_agent import MathAgent, MathToolAgent
from agentrl_openhands.worker import adapt

assert "agentrl_core" not in sys.modules
assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"


class NoteAction(Action):
    """What to write down."""

    text: str


class NoteObservation(Observation):
    """How many notes there are."""


class NoteExecutor(ToolExecutor[NoteAction, NoteObservation]):
    """Writes notes into the workspace."""

    def __init__(self, folder):
        self._file = Path(folder) / "notes.txt"

    def __call__(self, action, conversation=None):
        with self._file.open("a") as file:
            file.write(action.text + "\n")
        return NoteObservation.from_text(f"{len(self._file.read_text().splitlines())} notes")


class NoteTool(ToolDefinition[NoteAction, NoteObservation]):
    """A tool with the workspace for its state."""

    @classmethod
    def create(cls, conv_state, **_) -> Sequence["NoteTool"]:
        executor = NoteExecutor(conv_state.workspace.working_dir)
        return [cls(description="Note.", action_type=NoteAction, observation_type=NoteObservation, executor=executor)]


register_tool(NoteTool.name, NoteTool)


def llm(name="openai/gpt-4o-mini", **settings):
    """As users build it: another provider's model, a key that opens nothing, retries."""
    return LLM(model=name, api_key=SecretStr("sk-users-own"), base_url="http://127.0.0.1:9/v1", **settings)


def build():
    return Agent(
        llm=llm("anthropic/claude-sonnet-4-5"),
        tools=[Tool(name=NoteTool.name)],
        include_default_tools=["FinishTool"],
        system_prompt="You note.",
    )


agent = Agent(
    llm=llm(max_output_tokens=77, num_retries=5), tools=[], include_default_tools=[], system_prompt="You answer."
)
with_notes = Agent(
    llm=llm(), tools=[Tool(name=NoteTool.name)], include_default_tools=["FinishTool"], system_prompt="You note."
)
condensed = with_notes.model_copy(
    update={"condenser": LLMSummarizingCondenser(llm=llm("gpt-4o"), max_size=10, keep_first=1)}
)


class ByEnvironment:
    """A workflow of the user's, which reaches the policy by the environment alone."""

    def run(self, data):
        own = LLM(model="openai/default", api_key=SecretStr(os.environ["OPENAI_API_KEY"]), num_retries=0)
        conversation = Conversation(
            Agent(llm=own, tools=[], include_default_tools=[], system_prompt="Hi."),
            workspace="/tmp",
            visualizer=None,
        )
        conversation.send_message("Hello?")
        conversation.run()
        conversation.close()
        return {0: 0.25}


CASES = {
    "object": adapt(agent, {}),
    "responses": adapt(Agent(llm=llm("gpt-5.6"), tools=[Tool(name="note")], system_prompt="You note."), {}),
    "factory": adapt(build(), {}, factory=build),
    "tools object": adapt(with_notes, {"max_iterations": 4}),
    "condensed": adapt(condensed, {"max_iterations": 12}),
    "keyed": adapt(agent, {"input_key": "question"}),
    "math": MathAgent(),
    "math with a tool": MathToolAgent(),
    "environment": ByEnvironment(),
}


def run(data, **extra_kwargs):
    case = CASES[data["case"]]
    if isinstance(case, ByEnvironment):
        return case.run(data)
    return case.run(data, base_url=extra_kwargs["base_url"], api_key=extra_kwargs["api_key"])
