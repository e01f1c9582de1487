"""Example agents for word problems, written with OpenHands: without tools, or with a calculator.

They reach the policy by its base URL, like any server with OpenAI's API, and contain nothing else for training.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from openhands.sdk import (
    LLM,
    Action,
    Agent,
    Conversation,
    Observation,
    Tool,
    ToolDefinition,
    register_tool,
)
from openhands.sdk.conversation.response_utils import get_agent_final_response
from openhands.sdk.tool import ToolExecutor
from pydantic import Field, SecretStr

from agentrl_examples.calculator import evaluate, same_number
from agentrl_openhands.tasks import as_text


class CalculatorAction(Action):
    """What the calculator is asked."""

    expression: str = Field(description='Numbers, + - * / and brackets, such as "(3 + 4) * 2".')


class CalculatorObservation(Observation):
    """What the calculator says."""


class CalculatorExecutor(ToolExecutor[CalculatorAction, CalculatorObservation]):
    """Executor of the calculator tool."""

    def __call__(
        self,
        action: CalculatorAction,
        conversation: Any = None,  # noqa: ARG002  # OpenHands' signature
    ) -> CalculatorObservation:
        """Return the value of the policy's expression, or the error as text for the policy."""
        try:
            result = f"{evaluate(action.expression):g}"
        except ValueError as error:
            return CalculatorObservation.from_text(str(error), is_error=True)
        return CalculatorObservation.from_text(result)


class CalculatorTool(ToolDefinition[CalculatorAction, CalculatorObservation]):
    """Definition of the calculator tool."""

    @classmethod
    def create(cls, conv_state: Any = None, **_: Any) -> Sequence[CalculatorTool]:  # noqa: ARG003  # OpenHands' signature
        """Return the tool for one conversation, in a list as OpenHands expects it."""
        return [
            cls(
                description="Evaluate an arithmetic expression.",
                action_type=CalculatorAction,
                observation_type=CalculatorObservation,
                executor=CalculatorExecutor(),
            )
        ]


register_tool(CalculatorTool.name, CalculatorTool)


class MathAgent:
    """Has one conversation; the reward is 1 if the last number of the final reply is the task's answer, else 0."""

    tools: Sequence[str] = ()

    def __init__(self, *, system_prompt: str = "Solve the problem. End with the answer, a number.") -> None:
        self._system_prompt = system_prompt

    def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Run the agent on one task, in a temporary workspace."""
        agent = Agent(
            llm=_model(extra_kwargs),
            tools=[Tool(name=name) for name in self.tools],
            include_default_tools=[],
            system_prompt=self._system_prompt,
        )
        with tempfile.TemporaryDirectory() as workspace:
            conversation = Conversation(agent, workspace=workspace, max_iteration_per_run=8, visualizer=None)
            try:
                conversation.send_message(as_text(data))
                conversation.run()
                said = get_agent_final_response(conversation.state.events)
            finally:
                conversation.close()
        return float(same_number(said, str(data["answer"])))


class MathToolAgent(MathAgent):
    """`MathAgent` with a calculator."""

    tools = (CalculatorTool.name,)


def _model(extra_kwargs: Mapping[str, Any]) -> LLM:
    """Return the policy as an OpenHands LLM, at the given address or that of the environment variables."""
    base_url = extra_kwargs.get("base_url") or os.environ["OPENAI_BASE_URL"]
    return LLM(
        model="openai/default",
        base_url=f"{base_url.removesuffix('/').removesuffix('/v1')}/v1",
        api_key=SecretStr(extra_kwargs.get("api_key") or os.environ["OPENAI_API_KEY"]),
        num_retries=0,
    )
