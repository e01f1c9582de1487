"""An MCP server with one tool, `price`, over streamable HTTP: `python shop.py`."""

from __future__ import annotations

import argparse
from typing import Literal, get_args

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

Item = Literal["lamp", "key", "box", "map", "bell", "cup"]
Town = Literal["Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito"]
ITEMS: tuple[str, ...] = get_args(Item)
TOWNS: tuple[str, ...] = get_args(Town)
PORT = 8931


def price_of(item: str, town: str) -> int:
    """Return the price of a thing in a town, from 2 to 9."""
    return 2 + (5 * ITEMS.index(item) + 3 * TOWNS.index(town) + ITEMS.index(item) * TOWNS.index(town)) % 8


def server() -> MCPServer:
    """Return the server; it keeps nothing from one call to the next."""
    mcp = MCPServer("shop", log_level="WARNING")

    @mcp.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    async def price(item: Item, town: Town) -> str:
        """Price of a thing."""
        return str(price_of(item, town))

    return mcp


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=PORT)
    port = parser.parse_args().port
    print(f"the shop is open at http://127.0.0.1:{port}/mcp", flush=True)
    server().run("streamable-http", host="127.0.0.1", port=port, json_response=True)
