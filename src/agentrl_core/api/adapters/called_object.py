"""Run a user's object, which knows an SDK's client but nothing of agentrl, as a workflow; base of SDK adapters."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any

from agentrl_core.api.inputs import agent_input
from agentrl_core.api.scoring import Answer
from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.errors import ConfigError


class CalledObject(ABC):
    """Calls one object for every record; its SDK clients are redirected to the record's own policy session.

    The object is called with the row's `messages`, else its `query`. A plain function runs on a thread of its own. The
    task's scorer gives the reward: for the text that the object returns, else for the last reply.

    `method`: name of the method to call, if the object itself is not callable. `input_key`: key of the row that holds
    the input. `whole_row`: pass the whole row as input. `base_urls`: base URLs of the clients to redirect; None means
    the provider's own.
    """

    def __init__(
        self,
        agent: object,
        *,
        method: str | None = None,
        input_key: str | None = None,
        whole_row: bool = False,
        base_urls: Sequence[str] | None = None,
    ) -> None:
        called: Any = agent if method is None else getattr(agent, method, None)
        if not callable(called):
            raise ConfigError(
                f"workflow.method: {type(agent).__name__} has no callable"
                + (" `__call__`; name the method that answers a task" if method is None else f" attribute '{method}'")
            )
        self._call = called
        self._is_async = inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(type(called).__call__)
        self._input_key = input_key
        self._whole_row = whole_row
        self._base_urls = base_urls

    @abstractmethod
    def route(self, base_urls: Sequence[str] | None) -> AbstractContextManager[None]:
        """Redirect the SDK's clients that have one of these base URLs to the policy."""

    async def run(self, data: dict[str, Any]) -> Answer | None:
        """Call the object with one task's input."""
        given: Any = data if self._whole_row else agent_input(data, input_key=self._input_key)
        with self.route(self._base_urls):
            if self._is_async:
                returned = await self._call(given)
            else:
                returned = await call_on_thread(lambda: self._call(given), name="agentrl-workflow")
                # A plain function may return a coroutine, as a lambda or partial around an async function does.
                if inspect.isawaitable(returned):
                    returned = await returned
        return Answer(returned) if isinstance(returned, str) else None


def holds_client(agent: object, sdk: str, classes: Collection[str]) -> bool:
    """Return whether an object has a client of an SDK, or of a subclass, as attribute; does not import the SDK."""
    values = getattr(agent, "__dict__", {}).values()
    kinds = ((base.__module__.partition(".")[0], base.__name__) for value in values for base in type(value).__mro__)
    return any(module == sdk and name in classes for module, name in kinds)
