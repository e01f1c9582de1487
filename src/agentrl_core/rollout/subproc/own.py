"""A workflow in a worker of our own interpreter: found and built as in the run's process, with a client of its own."""

from __future__ import annotations

import http.cookiejar
import multiprocessing.spawn
import pickle
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx2

from agentrl_core.errors import ConfigError
from agentrl_core.plugins import load_registry
from agentrl_core.rollout import borrowed
from agentrl_core.rollout import context as workflow_context
from agentrl_core.rollout.borrowed import close_borrowed
from agentrl_core.rollout.calling import WorkflowCall
from agentrl_core.rollout.workflows import resolve_workflow

if TYPE_CHECKING:
    from types import TracebackType

_TIMEOUT_S = 600.0
"""As the OpenAI SDK's own default: a generation may take minutes."""


class WorkerClient(httpx2.AsyncClient):
    """The HTTP client of all episodes of a worker: closing it is the worker's business."""

    def __init__(self) -> None:
        # Episodes share the client, not what a web site wants to remember of them.
        jar = http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=()))
        super().__init__(timeout=_TIMEOUT_S, cookies=jar)

    async def aclose(self) -> None:
        """Do nothing: the client is borrowed."""

    async def close_for_good(self) -> None:
        """Close the connections, and those of the other clients that episodes share."""
        await close_borrowed()
        await super().aclose()

    def __await__(self) -> Generator[None, None, Self]:
        """Return the client itself: AReaL's `get_httpx_client` is awaited."""
        return self
        yield  # never reached; it makes this a generator, as `await` wants one

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Leave the client open."""


class Own:
    """What a worker runs: `function(data, **arguments)`, which takes the arguments `accepted`."""

    def __init__(self, start: Mapping[str, Any], payload: bytes) -> None:
        if start["main"] is not None:
            multiprocessing.spawn.prepare(start["main"])
        places: Mapping[str, str] = start["places"]
        workflow, block = pickle.loads(payload)  # noqa: S301 - the run's own
        resolved = resolve_workflow(
            workflow,
            registry=load_registry(block),
            base_dir=Path(start["base_dir"]),
            where=lambda option: places.get(option) or f"{places['']}.{option}",
        )
        if resolved.needs_engine:
            raise ConfigError(
                f"{places['']}: {resolved.name} calls the engine itself (arun_episode), and that is in the process of "
                "the run; use rollout.agent.mode inline"
            )
        if not isinstance(resolved.call, WorkflowCall):
            raise TypeError(f"{resolved.name} is no function of a task's data")
        self.name = resolved.name.replace("__mp_main__", "__main__")
        self.function: Callable[..., Any] = resolved.call.function
        self.accepted = resolved.call.accepted
        self.http_client = WorkerClient()

    async def close(self) -> None:
        """Close the clients that the agents have borrowed."""
        await self.http_client.close_for_good()
        await borrowed.close_borrowed()

    @staticmethod
    def enter(episode: Mapping[str, Any]) -> None:
        """Let `workflow_context` know the episode, in the running context."""
        workflow_context.enter(workflow_context.WorkflowContext(**episode))
