"""HTTP clients that all episodes of a process share: a borrower's close closes nothing, the end of the run does."""

from __future__ import annotations

import asyncio
import functools
import warnings
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    import aiohttp
    import httpx

_clients: dict[tuple[asyncio.AbstractEventLoop, str], Any] = {}
"""A client belongs to the loop on which it was first used."""


def legacy_httpx_client() -> httpx.AsyncClient:
    """Return the client of the old httpx for the running loop; `ImportError` where it is not installed."""
    return cast("httpx.AsyncClient", _client("httpx", _make_httpx))


def aiohttp_session() -> aiohttp.ClientSession:
    """Return the session of aiohttp for the running loop."""
    return cast("aiohttp.ClientSession", _client("aiohttp", _make_aiohttp))


async def close_borrowed() -> None:
    """Close the clients of the running loop; for their owner."""
    loop = asyncio.get_running_loop()
    for key in [key for key in _clients if key[0] is loop]:
        await _clients.pop(key).close_for_good()


def _client(kind: str, make: Any) -> Any:
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
        """Closed by its owner alone."""

        async def aclose(self) -> None:
            """Do nothing: the client is borrowed."""

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
        # A subclass is discouraged; without one, every borrower could close it.
        warnings.simplefilter("ignore", DeprecationWarning)

        class Borrowed(aiohttp.ClientSession):
            """Closed by its owner alone."""

            async def close(self) -> None:
                """Do nothing: the session is borrowed."""

            async def close_for_good(self) -> None:
                await super().close()

    return Borrowed
