"""Clients of the old httpx and of aiohttp that agents can ask for: one per event loop; only its owner can close it.

They sit beside the injected `http_client` (httpx2), for SDKs that need the old httpx or aiohttp. An SDK that closes the
client that it was given would otherwise close it for all other episodes.
"""

from __future__ import annotations

import asyncio
import functools
import warnings
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    import aiohttp
    import httpx

_clients: dict[tuple[asyncio.AbstractEventLoop, str], Any] = {}
"""(event loop, kind) -> client. Connections belong to the loop on which they were opened."""


def legacy_httpx_client() -> httpx.AsyncClient:
    """Return the running loop's client of the old httpx; `ImportError` if httpx is not installed."""
    return cast("httpx.AsyncClient", _client("httpx", _make_httpx))


def aiohttp_session() -> aiohttp.ClientSession:
    """Return the running loop's aiohttp session."""
    return cast("aiohttp.ClientSession", _client("aiohttp", _make_aiohttp))


async def close_borrowed() -> None:
    """Close the running loop's clients; for the owner of the loop, at the end of the run."""
    loop = asyncio.get_running_loop()
    for key in [key for key in _clients if key[0] is loop]:
        await _clients.pop(key).close_for_good()


def _client(kind: str, make: Any) -> Any:
    # A client's connections cannot be used on another event loop, and a process may run several.
    key = (asyncio.get_running_loop(), kind)
    if key not in _clients:
        _clients[key] = make()
    return _clients[key]


def _make_httpx() -> Any:
    from agentrl_core.http.shared_client import TIMEOUT_S, no_cookies
    from agentrl_core.http.tls_context import ssl_context

    return _httpx_class()(verify=ssl_context(), timeout=TIMEOUT_S, cookies=no_cookies())


def _make_aiohttp() -> Any:
    import aiohttp

    from agentrl_core.http.shared_client import TIMEOUT_S
    from agentrl_core.http.tls_context import ssl_context

    return _aiohttp_class()(
        connector=aiohttp.TCPConnector(ssl=ssl_context()),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


@functools.cache
def _httpx_class() -> Any:
    import httpx

    class Borrowed(httpx.AsyncClient):
        """Client that only `close_for_good` closes."""

        async def aclose(self) -> None:
            """Do nothing: other episodes use the client too."""

        async def close_for_good(self) -> None:
            await super().aclose()

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            """Leave the client open."""

    return Borrowed


@functools.cache
def _aiohttp_class() -> Any:
    import aiohttp

    with warnings.catch_warnings():
        # aiohttp warns about subclasses of its session, but only a subclass keeps borrowers from closing it.
        warnings.simplefilter("ignore", DeprecationWarning)

        class Borrowed(aiohttp.ClientSession):
            """Session that only `close_for_good` closes."""

            async def close(self) -> None:
                """Do nothing: other episodes use the session too."""

            async def close_for_good(self) -> None:
                await super().close()

    return Borrowed
