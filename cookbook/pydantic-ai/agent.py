"""A Pydantic AI agent for the quickstart's task: ordinary code, nothing in it knows of training."""

import json
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic_ai import Agent, RunContext
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

sys.path.append(str(Path(__file__).parents[1] / "quickstart"))  # the task is the quickstart's
from quest import Quest


def set_out(row: dict[str, Any]) -> Quest:
    """Return a new walk, the dependency of one run."""
    return Quest(row["sideways"], row["up"])


def build_agent() -> Agent[Quest, str]:
    """Build the agent: a model and one tool."""
    model = OpenAIChatModel("gpt-5-mini", provider=OpenAIProvider(api_key="unused while training"))
    agent = Agent(model, deps_type=Quest)

    @agent.tool
    def move(
        ctx: RunContext[Quest],
        dir: Literal["right", "left", "up", "down"],  # noqa: A002  # the name that the model sees
        steps: int,
    ) -> str:
        """Walk some steps in one direction."""
        return ctx.deps.move(json.dumps({"dir": dir, "steps": steps}))

    return agent
