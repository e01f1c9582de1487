"""The command line that all servers share: stdio by default, streamable HTTP on loopback with `--http PORT`.

Over HTTP a client must know the server's key: every process of every user of the machine can connect.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import os
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

import uvicorn

if TYPE_CHECKING:
    from mcp.server import MCPServer

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

HOST = "127.0.0.1"
KEY_ENV = "TOOL_SERVER_KEY"
"""Variable with the key of servers over HTTP."""
_SHORTEST_KEY = 16


def parser(module: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all servers have."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument(
        "--http",
        type=_port,
        metavar="PORT",
        help=f"serve streamable HTTP at http://{HOST}:PORT/mcp; 0 picks a free port. Clients send the key of the "
        f"variable {KEY_ENV} as the header Authorization; without the variable the server makes a key and prints it",
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
        _serve_http(server, port, _key())


def _key() -> str:
    key = os.environ.get(KEY_ENV, "")
    if key and len(key) < _SHORTEST_KEY:
        print(f"error: {KEY_ENV}: expected at least {_SHORTEST_KEY} characters", file=sys.stderr)  # noqa: T201
        raise SystemExit(2)
    return key


def _serve_http(server: MCPServer, port: int, given: str) -> None:
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
    key = given or secrets.token_hex(16)
    if not given:
        print(f"key, to be sent as the header Authorization: {key}", file=sys.stderr)  # noqa: T201
    print(f"listening on http://{HOST}:{listener.getsockname()[1]}/mcp", file=sys.stderr, flush=True)  # noqa: T201
    app = _with_key(server.streamable_http_app(json_response=True, host=HOST), key)
    # Nobody waits for the answers any more when agentrl ends a server.
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=0)
    # After its own shutdown uvicorn raises the signal again, which would end the process before it has cleaned up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


def _with_key(app: App, key: str) -> App:
    """Return an app that answers requests without the key with the status 401."""
    expected = key.encode()

    async def guarded(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"").removeprefix(b"Bearer ")
            if not hmac.compare_digest(given, expected):
                text = f"the server's key is missing or wrong; send that of {KEY_ENV} as the header Authorization\n"
                headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"www-authenticate", b"Bearer")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": text.encode()})
                return
        await app(scope, receive, send)

    return guarded


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:  # noqa: PLR2004 - a port
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, found {port}")
    return port
