"""MCP server of the benchmark of tools: `python adder_server.py stdio` or `http PORT`."""

import sys

from mcp.server import MCPServer

# Otherwise the SDK logs each request of every client in the process, at the peer's cost.
mcp = MCPServer("adder", log_level="WARNING")


@mcp.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        mcp.run("stdio")
    else:
        mcp.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
