"""Redirect the calls of an SDK's existing client objects to the policy session of the current episode.

A client in a user's module was bound to its provider long before any episode, and many records share it. So the
redirection patches `request` of the client classes, which every call passes, and acts only inside `routed()`. Outside,
every client behaves as usual. This module knows no SDK; the clients of OpenAI and Anthropic have the same shape.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import attrs
import httpx2

from agentrl_core.api.context import WorkflowContext
from agentrl_core.api.context import get as current_episode
from agentrl_core.errors import PluginError
from agentrl_core.http.tls_context import ssl_context


@attrs.define(kw_only=True, eq=False)
class _Route:
    """Redirection of one episode: which clients, and to where."""

    episode: WorkflowContext
    addresses: frozenset[str]
    """Base URLs, as `_plain` returns them, of the clients that are redirected."""
    client: Any
    """Async client of the SDK, bound to the episode."""
    blocking: list[Any] = attrs.field(factory=list)
    """At most one sync client, made on first use."""


class ClientRouting:
    """Redirects the clients of one SDK, by a patch of their classes that lasts as long as the process.

    Make one per SDK (`functools.cache`).
    `async_class`, `sync_class`: the SDK's clients; all their calls go through `request(cast_to, options, …)`. `suffix`:
    the end of a base URL that the SDK expects. `paths`: beginnings of the paths that a policy answers; other calls,
    such as embeddings, are not redirected. `addresses()`: the base URLs of clients that were given none. Raises
    `PluginError` for classes of another shape.
    """

    def __init__(
        self,
        *,
        async_class: type[Any],
        sync_class: type[Any],
        suffix: str,
        paths: tuple[str, ...],
        addresses: Callable[[], Iterable[str]],
    ) -> None:
        self._async_class = async_class
        self._sync_class = sync_class
        self._suffix = suffix
        self._paths = paths
        self._addresses = addresses
        self._route: ContextVar[_Route | None] = ContextVar(f"agentrl_{async_class.__name__}_route", default=None)
        self._making = threading.Lock()
        for client_class in (async_class, sync_class):
            self._redirect(client_class)

    @contextmanager
    def routed(self, base_urls: Iterable[str] | None = None) -> Iterator[None]:
        """Redirect clients that are called in this context to the current episode's policy.

        Affects clients whose base URL is one of `base_urls`, or, if that is None, the provider's own. Raises
        `LookupError` outside an episode.
        """
        episode = current_episode()
        wanted = self._addresses() if base_urls is None else base_urls
        route = _Route(episode=episode, addresses=frozenset(map(_plain, wanted)), client=self.client(episode))
        token = self._route.set(route)
        try:
            yield
        finally:
            self._route.reset(token)
            for client in route.blocking:
                client.close()

    def current(self) -> Any | None:
        """Return the async client of the episode whose `routed()` the caller is in; None outside."""
        route = self._route.get()
        return None if route is None else route.client

    def client(self, episode: WorkflowContext) -> Any:
        """Return an async client of the SDK that is bound to an episode and never retries."""
        return self._async_class(
            base_url=f"{episode.base_url}{self._suffix}",
            api_key=episode.api_key,
            http_client=episode.http_client,
            timeout=episode.http_client.timeout,
            max_retries=0,
        )

    def _blocking_client(self, route: _Route) -> Any:
        """Return the sync client of an episode; `RuntimeError` on a thread that runs an event loop.

        It uses a socket, not the in-process transport: a thread that waited for the episodes' event loop could wait for
        ever, because that loop may be waiting for the thread.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError(
                f"a call of a synchronous {self._sync_class.__name__} client on the thread of an event loop would "
                f"block all episodes: use {self._async_class.__name__} there, or make the function synchronous"
            )
        # An agent may call from several threads at once.
        with self._making:
            if not route.blocking:
                # Without the environment's proxies: the gateway is on this machine.
                http_client = httpx2.Client(verify=ssl_context(), trust_env=False)
                made = self._sync_class(
                    base_url=f"{route.episode.base_url}{self._suffix}",
                    api_key=route.episode.api_key,
                    http_client=http_client,
                    timeout=route.episode.http_client.timeout,
                    max_retries=0,
                )
                route.blocking.append(made)
        return route.blocking[0]

    def _redirect(self, client_class: type[Any]) -> None:
        """Patch a client class's `request` with the redirection."""
        original = getattr(client_class, "request", None)
        if original is None:
            raise PluginError(
                f"calls of {client_class.__module__}.{client_class.__name__} cannot be redirected: this version has "
                "no method `request`; install a version that the adapter's package asks for"
            )
        blocking = client_class is self._sync_class

        @functools.wraps(original)
        def request(client: Any, cast_to: Any, options: Any, **kwargs: Any) -> Any:
            # Not async: the original may return a result, a coroutine or a stream, and each is passed on unchanged.
            route = self._route.get()
            if route is not None and self._is_policys(route, client, options):
                # Only the client is replaced. `cast_to` and `options` stay the caller's, and so does the type of the
                # result.
                client = self._blocking_client(route) if blocking else route.client
            return original(client, cast_to, options, **kwargs)

        client_class.request = request

    def _is_policys(self, route: _Route, client: Any, options: Any) -> bool:
        return options.url.startswith(self._paths) and _plain(client.base_url) in route.addresses


def _plain(base_url: object) -> str:
    """Return a base URL in the form in which it is compared: SDK clients append a slash."""
    return str(base_url).rstrip("/").lower()
