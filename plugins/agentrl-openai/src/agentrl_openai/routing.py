"""Routing of OpenAI clients: inside `route_to_policy()` their calls go to the session of the current episode."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import openai

from agentrl_core.api.adapters.client_routing import ClientRouting

_OWN_ADDRESSES = tuple(f"https://{region}api.openai.com/v1" for region in ("", "eu.", "us."))


@functools.cache
def clients() -> ClientRouting:
    """Return the routing of `OpenAI` and `AsyncOpenAI`, installed at the first call."""
    return ClientRouting(
        async_class=openai.AsyncOpenAI,
        sync_class=openai.OpenAI,
        suffix="/v1",
        paths=("/chat/completions", "/completions", "/responses", "/models"),
        addresses=lambda: (*_OWN_ADDRESSES, os.environ.get("OPENAI_BASE_URL", _OWN_ADDRESSES[0])),
    )


@contextmanager
def route_to_policy(base_urls: Iterable[str] | None = None) -> Iterator[None]:
    """Make OpenAI clients and agents of the Agents SDK answer with the policy when called in this context.

    A client is redirected if it was made without a base URL: it then leads to OpenAI's own address, or to
    `OPENAI_BASE_URL` if that is set. A client with another address, such as a judge's, is not redirected; `base_urls`
    replaces the addresses to redirect. Every model of the Agents SDK is redirected, and the SDK's tracing is off
    meanwhile. Raises `LookupError` outside an episode.
    """
    # The Agents SDK is changed only if the agent's code has imported it.
    if "agents" in sys.modules:
        from agentrl_openai.agents_routing import install

        install()
    with clients().routed(base_urls):
        yield
