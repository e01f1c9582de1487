"""Example agents for word problems, written with the OpenAI Agents SDK.

    workflow: agentrl_openai.agents_math_agent:build_math_tool_agent
    data: {train: problems.jsonl, default_scorer: numeric}

Each function builds an agent that contains no code for training. The task's scorer compares its last reply with the
row's `answer`.
"""

from __future__ import annotations

from typing import Any, Literal

from agents import Agent, function_tool

from agentrl_examples.calculator import calculate

_ENDING = "End with the number, as <answer>5</answer>."


@function_tool
def calculator(operation: Literal["add", "subtract", "multiply", "divide"], a: float, b: float) -> str:
    """Do one step of arithmetic with two numbers."""
    return calculate(operation, a, b)


def build_math_agent(*, model: str | None = None) -> Agent[Any]:
    """Return an agent that answers in one turn."""
    return Agent(name="mathematician", instructions=f"Solve the problem. {_ENDING}", model=model)


def build_math_tool_agent(*, model: str | None = None) -> Agent[Any]:
    """Return an agent with a calculator."""
    instructions = f"Solve the problem with the calculator. {_ENDING}"
    return Agent(name="mathematician", instructions=instructions, tools=[calculator], model=model)
