"""Example agents for word problems, written with LangChain: without tools, or with a calculator.

Use them with `workflow: agentrl_langchain.math_agent.MathAgent` and rows with `messages` and `answer`, or as a start
for your own. They run inline, in worker processes and in other interpreters, where agentrl need not be installed.
"""

from __future__ import annotations

import os
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import ToolException, tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from agentrl_examples.calculator import evaluate, same_number


def connect(
    base_url: str | None = None, api_key: str | None = None, http_client: Any = None, **_others: Any
) -> ChatOpenAI:
    """Return the episode's policy as a chat model, at the given address or that of the environment variables."""
    return ChatOpenAI(
        model="default",
        base_url=base_url or os.environ["OPENAI_BASE_URL"],
        api_key=SecretStr(api_key or os.environ["OPENAI_API_KEY"]),
        http_async_client=http_client,
        max_retries=0,
    )


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression of numbers, + - * / ** and brackets."""
    try:
        return f"{evaluate(expression):.12g}"
    except ValueError as error:
        raise ToolException(str(error)) from error


calculator.handle_tool_error = True
"""Errors go to the model as the tool's reply, instead of ending the episode."""


class MathAgent:
    """Asks once; the reward is 1 if the last number of the reply is the task's answer, else 0."""

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Solve one problem."""
        reply = await connect(**extra_kwargs).ainvoke(data["messages"])
        return float(same_number(reply.text, str(data["answer"])))


class MathToolAgent:
    """`MathAgent` with a calculator; `max_steps` bounds LangGraph's super-steps, two per turn with a tool call."""

    def __init__(self, *, system_prompt: str | None = None, max_steps: int = 16) -> None:
        self.system_prompt = system_prompt
        self.max_steps = max_steps

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Solve one problem."""
        agent = create_agent(connect(**extra_kwargs), tools=[calculator], system_prompt=self.system_prompt)
        state = await agent.ainvoke({"messages": data["messages"]}, config={"recursion_limit": self.max_steps})
        return float(same_number(state["messages"][-1].text, str(data["answer"])))
