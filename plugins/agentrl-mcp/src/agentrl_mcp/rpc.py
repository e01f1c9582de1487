"""JSON-RPC 2.0 as MCP uses it: what both transports share."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

import orjson

logger = logging.getLogger(__name__)

METHOD_NOT_FOUND, INTERNAL_ERROR = -32601, -32603
HEADER_MISMATCH, UNSUPPORTED_VERSION = -32020, -32022
"""Error codes of MCP since 2026-07-28."""

Answer: TypeAlias = Mapping[str, Any]
"""The member `result` of a response."""

Inquire: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Answer to a request of the server (`method`, `params`); raises `RpcError` to refuse."""


class RpcError(Exception):
    """The server answered a request with an error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code, self.data = code, data


class LinkLostError(Exception):
    """The server is gone, or does not know the session any more; `sent` says whether the request may have arrived."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Link(Protocol):
    """Way to a server; several requests may be under way."""

    version: str
    """Version of the protocol, once it is known."""

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
        inquire: Inquire | None = None,
    ) -> Answer:
        """Send a request and return its result.

        `headers` are for HTTP. `inquire` answers what the server asks in between. Raises `RpcError`, `LinkLostError`,
        `InvalidResultError`, `ToolNotSentError` and `DeliveryUnknownError`; cancelling the call cancels the request.
        """
        ...

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        ...

    async def close(self) -> None:
        """End the session that the link has, if it has one; an error does not matter any more."""
        ...


def request_bytes(number: int | str, method: str, params: Mapping[str, Any]) -> bytes:
    """Return a request."""
    return orjson.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})


def notification_bytes(method: str, params: Mapping[str, Any] | None) -> bytes:
    """Return a notification."""
    return orjson.dumps({"jsonrpc": "2.0", "method": method} | ({"params": params} if params else {}))


def response_bytes(number: object, result: Mapping[str, Any] | None, error: RpcError | None = None) -> bytes:
    """Return the response to a request of the server."""
    if error is not None:
        told = {"code": error.code, "message": str(error)}
        return orjson.dumps({"jsonrpc": "2.0", "id": number, "error": told})
    return orjson.dumps({"jsonrpc": "2.0", "id": number, "result": result or {}})


def message_of(data: bytes | str) -> dict[str, Any]:
    """Return a JSON-RPC message; `ValueError` says in a few words why it is none."""
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise ValueError('no JSON-RPC message with "jsonrpc": "2.0"')
    return message


def result_in(message: Mapping[str, Any]) -> Answer:
    """Return the result of a response; raises its error as `RpcError`, and `ValueError` if it has neither."""
    match message:
        case {"result": dict(result)}:
            return result
        case {"error": {"code": int(code), **rest}}:
            raise RpcError(code, str(rest.get("message", "")), rest.get("data"))
    raise ValueError("a response without an object `result` and without an `error`")


async def answer_inquiry(message: Mapping[str, Any], inquire: Inquire | None) -> bytes:
    """Return the response to a request of the server; what nobody answers is refused."""
    method, params = message["method"], message.get("params")
    number = message["id"]
    if method == "ping":
        return response_bytes(number, {})
    if inquire is None:
        return response_bytes(number, None, RpcError(METHOD_NOT_FOUND, "Method not found"))
    try:
        return response_bytes(number, await inquire(method, params if isinstance(params, dict) else {}))
    except RpcError as error:
        return response_bytes(number, None, error)
    except Exception:
        # A fault of the user's function. Without a response the server would wait for ever.
        logger.exception("the answer to the server's %s failed", method)
        return response_bytes(number, None, RpcError(INTERNAL_ERROR, "the answer failed"))
