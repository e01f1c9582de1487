"""A LangChain agent for the quickstart's task, as anyone would write it; nothing in it knows of training."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import InjectedState

from agentrl_core.testing.quest import MAX_CALLS, Quest


class QuestState(AgentState[Any]):
    """The conversation and where the thing is."""

    sideways: int
    up: int


@tool
def move(
    dir: Literal["right", "left", "up", "down"],  # noqa: A002  # the name is the model's
    steps: int,
    state: Annotated[dict[str, Any], InjectedState],
) -> str:
    """Walk some steps in one direction."""
    quest = Quest(state["sideways"], state["up"])
    calls = [call for item in state["messages"] if isinstance(item, AIMessage) for call in item.tool_calls]
    for call in calls[:-1]:
        quest.move(json.dumps(call["args"]))
    return quest.move(json.dumps({"dir": dir, "steps": steps}))


def build_agent() -> Any:
    """The agent: a model, one tool, a limit on its calls."""
    model = ChatOpenAI(model="gpt-5-mini", api_key="unused while training")  # type: ignore[arg-type]
    limit = ModelCallLimitMiddleware(run_limit=MAX_CALLS + 1, exit_behavior="end")
    return create_agent(model, tools=[move], state_schema=QuestState, middleware=[limit])
