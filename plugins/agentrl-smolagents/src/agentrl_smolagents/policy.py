"""smolagents model that asks the policy of one episode, by the gateway's chat completions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from openai import OpenAI
from openai.resources.chat.completions import Completions
from smolagents.models import Model, OpenAIModel

if TYPE_CHECKING:
    import httpx2
    from smolagents.models import ChatMessage, ChatMessageStreamDelta

    from agentrl_core.api.context import WorkflowContext

_TRANSPORT = ("timeout", "extra_headers")
"""Arguments of a call that are dropped: they are meant for a provider's server, and the episode has a time limit."""


class PolicyModel(OpenAIModel):
    """Stand-in for another model: makes the same request to an episode's policy. No request is sent twice.

    `note` is called after each request, with its exception or, if it was answered, with None.
    """

    def __init__(
        self,
        model: Model,
        *,
        episode: WorkflowContext,
        http_client: httpx2.Client,
        note: Callable[[Exception | None], None],
    ) -> None:
        self._note = note
        # Set before the base class's constructor, which calls `create_client`.
        self._client = OpenAI(
            base_url=f"{episode.base_url}/v1", api_key=episode.api_key, http_client=http_client, max_retries=0
        )
        super().__init__(
            model.model_id or "default",
            custom_role_conversions=getattr(model, "custom_role_conversions", None),
            flatten_messages_as_text=model.flatten_messages_as_text,
            tool_name_key=model.tool_name_key,
            tool_arguments_key=model.tool_arguments_key,
            retry=False,
            **_arguments(model),
        )

    def create_client(self) -> OpenAI:
        """Return the client for the episode's session; smolagents calls this from the constructor."""
        return self._client

    def generate(self, *args: Any, **kwargs: Any) -> ChatMessage:
        """Ask the policy for a whole reply."""
        with self._noted():
            return super().generate(*args, **kwargs)

    def generate_stream(self, *args: Any, **kwargs: Any) -> Generator[ChatMessageStreamDelta]:
        """Ask the policy for a streamed reply."""
        with self._noted():
            yield from super().generate_stream(*args, **kwargs)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._note(error)
            raise
        self._note(None)


def _arguments(model: Model) -> dict[str, Any]:
    """Return the arguments that the replaced model adds to each call, if OpenAI's API has them, under its names."""
    given = dict(model.kwargs)
    # Models that run in process have this name for the token limit.
    if "max_new_tokens" in given:
        given.setdefault("max_tokens", given["max_new_tokens"])
    return {name: value for name, value in given.items() if name in _known() and name not in _TRANSPORT}


@cache
def _known() -> frozenset[str]:
    return frozenset(inspect.signature(Completions.create).parameters) - {"self", "messages", "model", "stream"}
