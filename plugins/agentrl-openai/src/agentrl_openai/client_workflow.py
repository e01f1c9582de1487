"""An object that holds a client of the OpenAI SDK as an agentrl workflow."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from agentrl_core.api.adapters.called_object import CalledObject
from agentrl_openai.routing import route_to_policy


class ClientWorkflow(CalledObject):
    """Calls one built object for every record; its OpenAI clients answer with the record's own policy session."""

    def route(self, base_urls: Sequence[str] | None) -> AbstractContextManager[None]:
        """Redirect `OpenAI` and `AsyncOpenAI`."""
        return route_to_policy(base_urls)
