"""Routing of Anthropic clients: inside `route_to_policy()` their calls go to the session of the current episode."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import anthropic

from agentrl_core.api.adapters.client_routing import ClientRouting

_OWN_ADDRESS = "https://api.anthropic.com"


@functools.cache
def clients() -> ClientRouting:
    """Return the routing of `Anthropic` and `AsyncAnthropic`, installed at the first call."""
    return ClientRouting(
        async_class=anthropic.AsyncAnthropic,
        sync_class=anthropic.Anthropic,
        suffix="",
        paths=("/v1/messages", "/v1/models"),
        addresses=lambda: (_OWN_ADDRESS, os.environ.get("ANTHROPIC_BASE_URL", _OWN_ADDRESS)),
    )


@contextmanager
def route_to_policy(base_urls: Iterable[str] | None = None) -> Iterator[None]:
    """Make Anthropic clients answer with the policy when called in this context.

    A client is redirected if it was made without a base URL: it then leads to Anthropic's own address, or to
    `ANTHROPIC_BASE_URL` if that is set. A client with another address, such as a judge's, is not redirected;
    `base_urls` replaces the addresses to redirect. Raises `LookupError` outside an episode.
    """
    with clients().routed(base_urls):
        yield
