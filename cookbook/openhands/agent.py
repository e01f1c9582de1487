"""An OpenHands agent with one tool: ordinary code, nothing in it knows of training."""

from collections.abc import Sequence
from typing import Any, Literal

from openhands.sdk import LLM, Action, Agent, Observation, Tool, ToolDefinition, register_tool
from openhands.sdk.tool import ToolExecutor
from pydantic import SecretStr


class MoveAction(Action):
    """A walk in one direction."""

    dir: Literal["right", "left", "up", "down"]
    steps: int


class MoveObservation(Observation):
    """Result of a walk."""


class MoveExecutor(ToolExecutor[MoveAction, MoveObservation]):
    """Executes the tool `move`."""

    def __call__(self, action: MoveAction, conversation: Any = None) -> MoveObservation:  # noqa: ARG002  # OpenHands' signature
        return MoveObservation.from_text(f"You went {action.steps} {action.dir}.")


class MoveTool(ToolDefinition[MoveAction, MoveObservation]):
    """The tool `move`."""

    @classmethod
    def create(cls, conv_state: Any = None, **_: Any) -> Sequence["MoveTool"]:  # noqa: ARG003  # OpenHands' signature
        """Make the tool of one conversation."""
        return [
            cls(
                description="Walk some steps in one direction.",
                action_type=MoveAction,
                observation_type=MoveObservation,
                executor=MoveExecutor(),
            )
        ]


register_tool(MoveTool.name, MoveTool)


def build_agent() -> Agent:
    """Build the agent: a model, one tool, and a short prompt instead of OpenHands' thousands of words."""
    return Agent(
        llm=LLM(model="openai/gpt-4o-mini", api_key=SecretStr("unused while training")),
        tools=[Tool(name=MoveTool.name)],
        include_default_tools=[],
        system_prompt="Follow the clue.",
    )
