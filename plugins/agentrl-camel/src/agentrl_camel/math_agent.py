"""Example agents for word problems, written with CAMEL: without tools, or with a calculator.

They reach the policy by its base URL, like any server with OpenAI's API, and contain nothing else for training.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from camel.agents import ChatAgent
from camel.models import BaseModelBackend, ModelFactory
from camel.toolkits import FunctionTool
from camel.types import ModelPlatformType

from agentrl_camel.counting import count_without_downloads
from agentrl_camel.tasks import as_text
from agentrl_examples.calculator import evaluate, same_number

count_without_downloads()


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    :param expression: Numbers, + - * / and brackets, such as "(3 + 4) * 2".
    """
    return f"{evaluate(expression):g}"


class MathAgent:
    """Asks once; the reward is 1 if the last number of the reply is the task's answer, else 0."""

    def __init__(self, *, system_message: str = "Solve the problem. End with the answer, a number.") -> None:
        self._system_message = system_message

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        """Ask the agent once."""
        response = await self._agent(extra_kwargs).astep(as_text(data))
        return float(same_number(response.msgs[-1].content or "", str(data["answer"])))

    def _agent(self, extra_kwargs: Mapping[str, Any]) -> ChatAgent:
        return ChatAgent(self._system_message, model=_model(extra_kwargs))


class MathToolAgent(MathAgent):
    """`MathAgent` with a calculator, for at most 8 steps."""

    def _agent(self, extra_kwargs: Mapping[str, Any]) -> ChatAgent:
        tools = [FunctionTool(calculator)]
        return ChatAgent(self._system_message, model=_model(extra_kwargs), tools=tools, max_iteration=8)


def _model(extra_kwargs: Mapping[str, Any]) -> BaseModelBackend:
    """Return the policy as a CAMEL model, at the given address or that of the environment variables."""
    base_url = extra_kwargs.get("base_url") or os.environ["OPENAI_BASE_URL"]
    return ModelFactory.create(
        model_platform=ModelPlatformType.OPENAI_COMPATIBLE_MODEL,
        model_type="default",
        url=f"{base_url.removesuffix('/').removesuffix('/v1')}/v1",
        api_key=extra_kwargs.get("api_key") or os.environ["OPENAI_API_KEY"],
        max_retries=0,
    )
