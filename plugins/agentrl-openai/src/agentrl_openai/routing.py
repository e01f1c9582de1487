"""Sends the LLM calls of OpenAI's SDKs to the episode in whose context they are made."""

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
    """Redirect `OpenAI` and `AsyncOpenAI`, once."""
    return ClientRouting(
        async_class=openai.AsyncOpenAI,
        sync_class=openai.OpenAI,
        suffix="/v1",
        paths=("/chat/completions", "/completions", "/responses", "/models"),
        addresses=lambda: (*_OWN_ADDRESSES, os.environ.get("OPENAI_BASE_URL", _OWN_ADDRESSES[0])),
    )


@contextmanager
def route_to_policy(base_urls: Iterable[str] | None = None) -> Iterator[None]:
    """Let OpenAI clients and agents of the Agents SDK that are called in this context answer with the policy.

    Clients are redirected that lead to OpenAI's own address, or to `OPENAI_BASE_URL` where that is set: those that
    were made without a base URL. One with another address, as of a judge, stays as it is; `base_urls` names other
    addresses in place of these. Every model of the Agents SDK is redirected, and the SDK traces nothing meanwhile.
    Raises `LookupError` outside an episode.
    """
    if "agents" in sys.modules:
        from agentrl_openai.agents_routing import install

        install()
    with clients().routed(base_urls):
        yield
