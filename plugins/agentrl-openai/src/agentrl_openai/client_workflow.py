"""Adapter `openai`: runs an object that holds an OpenAI client as a workflow."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from agentrl_core.api.adapters.called_object import CalledObject
from agentrl_openai.routing import route_to_policy


class ClientWorkflow(CalledObject):
    """Calls one object for all records; its OpenAI clients answer with the policy, in the session of the record."""

    def route(self, base_urls: Sequence[str] | None) -> AbstractContextManager[None]:
        """Redirect the calls of `OpenAI` and `AsyncOpenAI` clients to the policy."""
        return route_to_policy(base_urls)
