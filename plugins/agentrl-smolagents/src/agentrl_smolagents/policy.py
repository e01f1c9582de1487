"""The policy of one episode as a smolagents model, over the gateway's chat completions."""

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
"""Arguments of a call that are meant for a provider's server: the episode's own time limit holds."""


class PolicyModel(OpenAIModel):
    """Answers with an episode's policy in the place of another model, asked as that one would be.

    No request is sent twice. `note` hears how each ended: with an exception, or None where it was answered.
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
        """Return the client of the episode's session."""
        return self._client

    def generate(self, *args: Any, **kwargs: Any) -> ChatMessage:
        """Ask the policy."""
        with self._noted():
            return super().generate(*args, **kwargs)

    def generate_stream(self, *args: Any, **kwargs: Any) -> Generator[ChatMessageStreamDelta]:
        """Ask the policy and hear it speak."""
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
    """Return what the replaced model adds to each call, in OpenAI's words, without what only its provider takes."""
    given = dict(model.kwargs)
    if "max_new_tokens" in given:  # of the models that run in process
        given.setdefault("max_tokens", given["max_new_tokens"])
    return {name: value for name, value in given.items() if name in _known() and name not in _TRANSPORT}


@cache
def _known() -> frozenset[str]:
    return frozenset(inspect.signature(Completions.create).parameters) - {"self", "messages", "model", "stream"}
