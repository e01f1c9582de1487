"""Tools of an episode, without a run; as a program it serves them over standard input and output."""

import asyncio

from agentrl_core.api.tools import ShownCall, ToolResult, ToolSpec
from agentrl_core.errors import EnvironmentLostError
from agentrl_core.types import ToolOutcome
from agentrl_mcp.serving import serve

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class Tools:
    async def specs(self):
        return [ToolSpec(name="echo", description="Repeats.", parameters=TEXT, read_only=True), ToolSpec(name="lose")]

    async def call(self, name, arguments):
        if name == "lose":
            raise EnvironmentLostError("the sandbox is gone", server="box")
        known = name == "echo"
        result = ToolResult.of_text(arguments["text"] if known else f"no tool {name}", is_error=not known)
        outcome = ToolOutcome.OK if known else ToolOutcome.UNKNOWN_TOOL
        return ShownCall(id="1", name=name, result=result, outcome=outcome)


if __name__ == "__main__":
    asyncio.run(serve(Tools()))
