"""The injected `http_client`: one httpx2 client that all episodes share, and that only its owner can close."""

from __future__ import annotations

import http.cookiejar
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Self

import httpx2

if TYPE_CHECKING:
    from types import TracebackType

TIMEOUT_S = 600.0
"""The OpenAI SDK's own default: a generation may take minutes."""


def no_cookies() -> http.cookiejar.CookieJar:
    """Return a cookie jar that keeps nothing, because unrelated episodes share the client."""
    return http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=()))


class SharedClient(httpx2.AsyncClient):
    """`AsyncClient` whose `aclose` does nothing.

    `async with AsyncOpenAI(http_client=shared)` closes the client that it was given, and would take it from all other
    agents. `options` are those of `AsyncClient`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(timeout=TIMEOUT_S, cookies=no_cookies(), **options)

    async def aclose(self) -> None:
        """Do nothing: other episodes use the client too."""

    async def close_for_good(self) -> None:
        """Close the connections; for the owner, on the event loop that used them."""
        await super().aclose()

    def __await__(self) -> Generator[None, None, Self]:
        """Return the client itself: AReaL's `get_httpx_client` is awaited."""
        return self
        # Never reached. It makes this function a generator, which `await` requires.
        yield

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Leave the client open."""
