"""Example agents for word problems, written with smolagents: without tools, or with a calculator.

Use them with `workflow: agentrl_smolagents.math_agent.MathAgent` and rows with `messages` and `answer`, or as a start
for your own. They run inline, in worker processes and in other interpreters, where agentrl need not be installed.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from smolagents import LogLevel, OpenAIModel, Tool, ToolCallingAgent, tool

from agentrl_examples.calculator import evaluate, same_number

INSTRUCTIONS = "Solve the problem. The final answer is the number that answers it."


@tool
def calculator(expression: str) -> float:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers, + - * / ** and brackets.

    """
    return evaluate(expression)


class MathAgent:
    """Asks one question; the reward is 1 if the last number of the final answer is the task's answer, else 0."""

    def __init__(self, *, instructions: str = INSTRUCTIONS, max_steps: int = 4) -> None:
        self._options: dict[str, Any] = {"instructions": instructions, "max_steps": max_steps}

    def tools(self) -> list[Tool]:
        """Return the agent's tools in addition to `final_answer`: none."""
        return []

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Solve one problem. The agent blocks, so it runs on a thread."""
        base_url = extra_kwargs.get("base_url") or os.environ["OPENAI_BASE_URL"]
        api_key = extra_kwargs.get("api_key") or os.environ["OPENAI_API_KEY"]
        question = data["messages"][-1]["content"]

        def solve() -> object:
            model = OpenAIModel(
                "default", api_base=base_url, api_key=api_key, client_kwargs={"max_retries": 0}, retry=False
            )
            agent = ToolCallingAgent(self.tools(), model, verbosity_level=LogLevel.OFF, **self._options)
            with model.client:
                return agent.run(question)

        return float(same_number(str(await asyncio.to_thread(solve)), str(data["answer"])))


class MathToolAgent(MathAgent):
    """`MathAgent` with a calculator, which it may use in each of its steps."""

    def tools(self) -> list[Tool]:
        """Return the agent's tools in addition to `final_answer`: the calculator."""
        return [calculator]
