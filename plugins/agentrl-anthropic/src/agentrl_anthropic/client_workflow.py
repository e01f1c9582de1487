"""An object that holds a client of the Anthropic SDK as an agentrl workflow."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from agentrl_anthropic.routing import route_to_policy
from agentrl_core.api.adapters.called_object import CalledObject


class ClientWorkflow(CalledObject):
    """Calls one built object for every record; its Anthropic clients answer with the record's own policy session."""

    def route(self, base_urls: Sequence[str] | None) -> AbstractContextManager[None]:
        """Redirect `Anthropic` and `AsyncAnthropic`."""
        return route_to_policy(base_urls)
