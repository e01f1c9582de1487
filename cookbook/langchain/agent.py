"""A LangChain agent for the quickstart's task: ordinary code, nothing in it knows of training."""

import json
import sys
from pathlib import Path
from typing import Any, Literal

from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware, before_agent
from langchain.tools import ToolRuntime, tool
from langchain_openai import ChatOpenAI
from langgraph.runtime import Runtime

sys.path.append(str(Path(__file__).parents[1] / "quickstart"))  # the task is the quickstart's
from quest import MAX_CALLS, Quest


class QuestState(AgentState):
    """State of one run: the conversation, the position of the thing, and the walk to it."""

    sideways: int
    up: int
    quest: Quest


@before_agent(state_schema=QuestState)
def set_out(state: QuestState, _runtime: Runtime) -> dict[str, Any]:
    """Begin a new walk."""
    return {"quest": Quest(state["sideways"], state["up"])}


@tool
def move(
    dir: Literal["right", "left", "up", "down"],  # noqa: A002  # the name that the model sees
    steps: int,
    runtime: ToolRuntime[None, QuestState],
) -> str:
    """Walk some steps in one direction."""
    return runtime.state["quest"].move(json.dumps({"dir": dir, "steps": steps}))


def build_agent() -> Any:
    """Build the agent: a model, one tool, and a limit on its calls."""
    model = ChatOpenAI(model="gpt-5-mini", api_key="unused while training")
    limit = ModelCallLimitMiddleware(run_limit=MAX_CALLS + 1, exit_behavior="end")
    return create_agent(model, tools=[move], middleware=[set_out, limit])
