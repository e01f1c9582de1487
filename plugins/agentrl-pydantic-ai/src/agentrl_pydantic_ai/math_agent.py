"""Example agents for word problems, written with Pydantic AI: without tools, or with a calculator.

Use them with `workflow: agentrl_pydantic_ai.math_agent.MathAgent` and rows with `messages` and `answer`, or as a start
for your own. They run inline, in worker processes and in other interpreters, where agentrl need not be installed.
"""

from __future__ import annotations

import os
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentrl_examples.calculator import evaluate, same_number

INSTRUCTIONS = "Solve the problem. End with the number that answers it."


def calculator(expression: str) -> float:
    """Evaluate an arithmetic expression of numbers, + - * / ** and brackets."""
    try:
        return evaluate(expression)
    except ValueError as error:
        raise ModelRetry(str(error)) from error


class MathAgent:
    """Asks once; the reward is 1 if the last number of the reply is the task's answer, else 0."""

    def __init__(self, *, instructions: str = INSTRUCTIONS, temperature: float = 1.0) -> None:
        self.agent: Agent[None, str] = Agent(
            instructions=instructions, model_settings={"temperature": temperature}, tools=self.tools()
        )

    def tools(self) -> list[Any]:
        """Return the agent's tools: none."""
        return []

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Solve one problem."""
        client = AsyncOpenAI(
            base_url=extra_kwargs.get("base_url") or os.environ["OPENAI_BASE_URL"],
            api_key=extra_kwargs.get("api_key") or os.environ["OPENAI_API_KEY"],
            http_client=extra_kwargs.get("http_client"),
            max_retries=0,
        )
        model = OpenAIChatModel("default", provider=OpenAIProvider(openai_client=client))
        result = await self.agent.run(data["messages"][-1]["content"], model=model)
        return float(same_number(result.output, str(data["answer"])))


class MathToolAgent(MathAgent):
    """`MathAgent` with a calculator, which it may use any number of times."""

    def tools(self) -> list[Any]:
        """Return the agent's tools: the calculator."""
        return [calculator]
