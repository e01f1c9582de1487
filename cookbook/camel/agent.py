"""A CAMEL agent with one tool: ordinary code, nothing in it knows of training."""

from camel.agents import ChatAgent
from camel.models import ModelFactory
from camel.toolkits import FunctionTool
from camel.types import ModelPlatformType, ModelType


def move(dir: str, steps: int) -> str:  # noqa: A002  # the name that the model sees
    """Walk some steps in one direction.

    Args:
        dir (str): right, left, up or down.
        steps (int): How many steps.

    Returns:
        str: Where the walk led.
    """
    return f"You went {steps} {dir}."


def build_agent() -> ChatAgent:
    """Build the agent: a model, one tool, and a limit on its calls."""
    model = ModelFactory.create(
        model_platform=ModelPlatformType.OPENAI, model_type=ModelType.GPT_5_MINI, api_key="unused while training"
    )
    return ChatAgent(model=model, tools=[FunctionTool(move)], max_iteration=3)
