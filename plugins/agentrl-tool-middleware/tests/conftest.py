"""Fixtures: a tool call through one piece of middleware to a tool that is a function of its arguments."""

import asyncio
from types import SimpleNamespace

import pytest

from agentrl_core.api.tools import ToolEpisode, ToolRequest, ToolResult, ToolSpec


@pytest.fixture
def pass_through():
    """Call a tool through middleware: `.result`, and in `.sent` the requests that came out of it."""

    def run(middleware, arguments=None, *, name="tool", answer="ok", spec=None, state=None, server="s"):
        sent = []
        episode = ToolEpisode(record_id="r", task_id="t", data={})

        async def tool(request):
            sent.append(request)
            given = answer(request.arguments) if callable(answer) else answer
            return given if isinstance(given, ToolResult) else ToolResult.of_text(given)

        request = ToolRequest(
            episode=episode,
            server=server,
            tool=spec or ToolSpec(name=name),
            name=name,
            arguments=arguments or {},
            state={} if state is None else state,
        )
        result = asyncio.run(middleware.call(request, tool))
        return SimpleNamespace(result=result, sent=sent, text=result.text)

    return run
