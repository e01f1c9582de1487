"""A server of FastMCP: `python fastmcp_server.py stdio` or `http PORT`."""

import sys

from fastmcp import Context, FastMCP

mcp = FastMCP("fast")
counts = {}


@mcp.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@mcp.tool
def count(ctx: Context) -> int:
    """Count the calls of an episode."""
    meta = ctx.request_context.meta
    episode = str(dict(meta or {}).get("agentrl/episode"))
    counts[episode] = counts.get(episode, 0) + 1
    return counts[episode]


@mcp.tool
def fail() -> str:
    """Report a failure."""
    raise ValueError("no such file")


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        mcp.run(show_banner=False)
    else:
        mcp.run("http", host="127.0.0.1", port=int(sys.argv[2]), show_banner=False)
