"""Tools of the run for an agent in a worker of the run's own interpreter, with the classes of `api.tools`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl_core.api.tools import ShownCall, ToolResult, ToolSpec
from agentrl_core.errors import EnvironmentLostError, RunError
from agentrl_core.rollout.marks import Marks
from agentrl_core.rollout.subproc.inside.tools import Asking, WorkerTools
from agentrl_core.types import ToolOutcome

if TYPE_CHECKING:
    from agentrl_core.types import Message


class OwnTools(WorkerTools):
    """`EpisodeTools` over messages to the run, with the same values and errors."""

    async def ask(self, method: str, **given: Any) -> Any:
        """Return the run's answer to a request; raises the errors that the tools raise in the run's own process."""
        try:
            return await super().ask(method, **given)
        except Exception as error:
            # Not `except AskError`: the worker has its modules under another name than agentrl_core.
            kind = getattr(error, "kind", "")
            if not kind:
                raise
            if kind == EnvironmentLostError.__name__:
                raise EnvironmentLostError(str(error), server=getattr(error, "server", "")) from None
            raise (LookupError if kind == LookupError.__name__ else RunError)(str(error)) from None

    async def specs(self) -> Sequence[ToolSpec]:
        """Return the tools that the model may use, under the names that it uses."""
        return [ToolSpec(**told) for told in await self.ask("specs")]

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str,
        *,
        id: str = "",  # noqa: A002 - the word of the LLM APIs
        messages: Sequence[Message] = (),
    ) -> ShownCall:
        """Call a tool; `arguments` may be the JSON text that the model wrote."""
        told = await super().call(name, arguments, id=id, messages=messages)
        result = ToolResult(content=tuple(told.content), is_error=told.is_error, structured=told.structured)
        return ShownCall(id=told.id, name=told.name, result=result, outcome=ToolOutcome(told.outcome))


def marking(asking: Asking) -> Callable[[str], None]:
    """Return the function by which `workflow_context.mark` marks the record."""

    def add_mark(word: str) -> None:
        Marks().add(word)  # raises here, where the agent sees it
        asking.ask("mark", word=word)

    return add_mark
