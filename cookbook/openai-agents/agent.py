"""An agent of the OpenAI Agents SDK for the quickstart's task; nothing in it knows of training."""

import json
import sys
from pathlib import Path
from typing import Any, Literal

from agents import Agent, FunctionToolResult, RunContextWrapper, ToolsToFinalOutputResult, function_tool

sys.path.append(str(Path(__file__).parents[1] / "quickstart"))  # the task is the quickstart's
from quest import Quest


def set_out(row: dict[str, Any]) -> Quest:
    """Return a new walk, the context of one run."""
    return Quest(row["sideways"], row["up"])


@function_tool
def move(
    context: RunContextWrapper[Quest],
    dir: Literal["right", "left", "up", "down"],  # noqa: A002  # the name that the model sees
    steps: int,
) -> str:
    """Walk some steps in one direction."""
    return context.context.move(json.dumps({"dir": dir, "steps": steps}))


def until_finished(context: RunContextWrapper[Quest], results: list[FunctionToolResult]) -> ToolsToFinalOutputResult:
    """End the run with what the last move was told, once the walk is over."""
    return ToolsToFinalOutputResult(is_final_output=context.context.finished, final_output=results[-1].output)


agent = Agent[Quest](name="walker", model="gpt-5-mini", tools=[move], tool_use_behavior=until_finished)
