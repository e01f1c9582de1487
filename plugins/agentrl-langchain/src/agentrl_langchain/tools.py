"""Tools of the run, the config's section `tools`, as tools of LangChain."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from agentrl_core import workflow_context

if TYPE_CHECKING:
    from agentrl_core.api.tools import EpisodeTools, ToolSpec


async def tools_of_episode() -> list[BaseTool]:
    """Return the tools that the current episode may use; `LookupError` outside an episode, or without tools.

        from langchain.agents import create_agent
        from agentrl_langchain.tools import tools_of_episode

        async def run(data):
            agent = create_agent(model, tools=await tools_of_episode())

    Each call is checked, limited and recorded as any other of the run. What the model can react to is a tool message
    with the status `error`.
    """
    tools = workflow_context.get().tools
    if tools is None:
        raise LookupError("the config lists no tools; add servers under tools.servers")
    return [_tool(tools, spec) for spec in await tools.specs()]


def _tool(tools: EpisodeTools, spec: ToolSpec) -> BaseTool:
    async def call(**arguments: Any) -> Any:
        shown = await tools.call(spec.name, arguments)
        if shown.result.is_error:
            raise ToolException(shown.result.text)
        return shown.message["content"]

    def call_from_a_thread(**arguments: Any) -> Any:
        return asyncio.run(call(**arguments))

    return StructuredTool(
        name=spec.name,
        description=spec.description,
        args_schema=dict(spec.parameters),
        coroutine=call,
        func=call_from_a_thread,
        handle_tool_error=True,
    )
