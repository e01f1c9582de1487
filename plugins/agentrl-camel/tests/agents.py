"""Agents as a user of CAMEL builds them, and workflows; imported by CAMEL's interpreter, where nothing of ours is."""

import asyncio
import os
import sys

from camel.agents import ChatAgent
from camel.messages import BaseMessage
from camel.models import ModelFactory
from camel.toolkits import FunctionTool
from camel.types import ModelPlatformType, ModelType
from pydantic import BaseModel

from agentrl_camel.math_agent import MathAgent, MathToolAgent
from agentrl_camel.worker import adapt

assert "agentrl_core" not in sys.modules


class Memo:
    """A tool with a state of its own."""

    def __init__(self):
        self.notes = []

    def note(self, text: str) -> str:
        """Write something down.

        Args:
            text (str): What to write.
        """
        self.notes.append(text)
        return f"{len(self.notes)} notes"


async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a (int): The first.
        b (int): The second.
    """
    await asyncio.sleep(0)
    return a + b


def ask_a_colleague(question: str) -> str:
    """Ask another agent.

    Args:
        question (str): What to ask.
    """
    return ChatAgent("You are the colleague.", model=model()).step(question).msg.content


def model(**settings):
    """As users build it: another provider's model, a key that opens nothing, retries."""
    return ModelFactory.create(
        model_platform=ModelPlatformType.OPENAI,
        model_type=ModelType.GPT_4O_MINI,
        api_key="sk-users-own",
        url="http://127.0.0.1:9/v1",
        model_config_dict=settings,
    )


def build():
    return ChatAgent("You add.", model=model(), tools=[FunctionTool(add), FunctionTool(Memo().note), ask_a_colleague])


agent = ChatAgent("You answer.", model=model(temperature=0.5, max_tokens=77))


class Sum(BaseModel):
    """What a structured reply holds."""

    total: int


class Structured:
    async def run(self, data, *, base_url, api_key):
        """An agent within a workflow of the user's, which reaches the policy by the environment alone."""
        own = ModelFactory.create(model_platform=ModelPlatformType.OPENAI, model_type=ModelType.GPT_4O_MINI)
        response = await ChatAgent("You add.", model=own).astep(data["messages"][0]["content"], response_format=Sum)
        return {response.info["id"]: float(response.msg.parsed.total)}


class Environment:
    async def run(self, data):
        own = ModelFactory.create(model_platform=ModelPlatformType.OPENAI, model_type=ModelType.GPT_4O_MINI)
        await ChatAgent(model=own).astep(BaseMessage.make_user_message("User", "Hello?"))
        assert os.environ["OPENAI_BASE_URL"].endswith("/v1")
        return 0.25


CASES = {
    "object": adapt(agent, {}),
    "factory": adapt(build(), {}, factory=build),
    "tools object": adapt(build(), {}),
    "streamed": adapt(ChatAgent("You add.", model=model(stream=True), tools=[FunctionTool(add)]), {}),
    "keyed": adapt(agent, {"input_key": "question"}),
    "math": MathAgent(),
    "math with a tool": MathToolAgent(),
    "structured": Structured(),
    "environment": Environment(),
}


async def run(data, **extra_kwargs):
    case = CASES[data["case"]]
    if isinstance(case, Environment):
        return await case.run(data)
    return await case.run(data, base_url=extra_kwargs["base_url"], api_key=extra_kwargs["api_key"])
