"""All middleware of the package keeps the contract of middleware."""

import pytest

from agentrl_testing import ToolMiddlewareSuite
from agentrl_tool_middleware.arguments import Arguments, ToolArguments
from agentrl_tool_middleware.browse import Browse
from agentrl_tool_middleware.cache import Cache
from agentrl_tool_middleware.names import Block, Rename
from agentrl_tool_middleware.truncate import Truncate
from agentrl_tool_middleware.url_filter import UrlFilter

MADE = {
    "rename": lambda: Rename(names={"search": "find"}),
    "arguments": lambda: Arguments(tools={"*": ToolArguments(lists=["query"])}, convert=True),
    "block": lambda: Block(tools=["write_*"]),
    "url_filter": lambda: UrlFilter(blocked=["huggingface.co"]),
    "truncate": lambda: Truncate(max_chars=100),
    "cache": lambda: Cache(scope="run"),
    "browse": lambda: Browse(
        models=[{"base_url": "http://127.0.0.1:9", "model": "m"}],
        browse_tools=["fetch"],
        min_prompt_length=10,
        max_retries=0,
        on_failure="raw",
    ),
}


@pytest.mark.parametrize("name", MADE)
class TestConformance(ToolMiddlewareSuite):
    @pytest.fixture
    def middleware(self, name):
        return MADE[name]()
