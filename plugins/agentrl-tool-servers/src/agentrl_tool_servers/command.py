"""The command line that all servers share: stdio by default, streamable HTTP on loopback with `--http PORT`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from mcp.server import MCPServer

HOST = "127.0.0.1"


def parser(module: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all servers have."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument(
        "--http",
        type=_port,
        metavar="PORT",
        help=f"serve streamable HTTP at http://{HOST}:PORT/mcp; 0 picks a free port",
    )
    return parser


def run(make: Callable[[], MCPServer], port: int | None) -> None:
    """Build a server and run it until standard input ends, or with a port until a signal; exit 2 for wrong options."""
    try:
        server = make()
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a command
        raise SystemExit(2) from error
    if port is None:
        server.run("stdio")
    else:
        _serve_http(server, port)


def _serve_http(server: MCPServer, port: int) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        print(f"error: port {port} of {HOST}: {error.strerror}; choose another with --http", file=sys.stderr)  # noqa: T201
        raise SystemExit(2) from error
    # Clients may connect from here on: the kernel queues them until the server accepts.
    listener.listen(1024)
    print(f"listening on http://{HOST}:{listener.getsockname()[1]}/mcp", file=sys.stderr, flush=True)  # noqa: T201
    app = server.streamable_http_app(json_response=True, host=HOST)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
    # After its own shutdown uvicorn raises the signal again, which would end the process before it has cleaned up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:  # noqa: PLR2004 - a port
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, found {port}")
    return port
