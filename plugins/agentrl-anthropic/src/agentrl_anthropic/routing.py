"""Sends the LLM calls of Anthropic's SDK to the episode in whose context they are made."""

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
    """Redirect `Anthropic` and `AsyncAnthropic`, once."""
    return ClientRouting(
        async_class=anthropic.AsyncAnthropic,
        sync_class=anthropic.Anthropic,
        suffix="",
        paths=("/v1/messages", "/v1/models"),
        addresses=lambda: (_OWN_ADDRESS, os.environ.get("ANTHROPIC_BASE_URL", _OWN_ADDRESS)),
    )


@contextmanager
def route_to_policy(base_urls: Iterable[str] | None = None) -> Iterator[None]:
    """Let Anthropic clients that are called in this context answer with the policy of the current episode.

    Those are redirected that lead to Anthropic's own address, or to `ANTHROPIC_BASE_URL` where that is set: those
    that were made without a base URL. One with another address, as of a judge, stays as it is; `base_urls` names
    other addresses in place of these. Raises `LookupError` outside an episode.
    """
    with clients().routed(base_urls):
        yield
