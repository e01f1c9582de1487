"""One tool call on its way through the middleware to its server, with the checks of arguments and result."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import orjson

from agentrl_core.api.tools import ToolRequest, ToolResult
from agentrl_core.errors import EpisodeError, InvalidResultError, RunError
from agentrl_core.tools.checks import problem_of_arguments
from agentrl_core.tools.delivery import deliver
from agentrl_core.tools.schemas import described, one_line, to_json
from agentrl_core.types import ToolOutcome

if TYPE_CHECKING:
    from agentrl_core.api.tools import CallNext, ToolEpisode
    from agentrl_core.tools.listing import Listing, NamedMiddleware, Tool
    from agentrl_core.tools.toolbox import Toolbox

logger = logging.getLogger(__name__)

_NOT_SENT = "the tool could not be reached and was not called; try again later, or go on without it"
_DELIVERY_UNKNOWN = "the tool gave no answer in time; the call may have taken effect or not"


@attrs.define(kw_only=True)
class CallTrace:
    """Facts about a call that the record keeps beside its arguments and the shown result."""

    outcome: ToolOutcome | None = None
    """End of the call of the server; None if none was called, because middleware answered."""
    error: str = ""
    server: str = ""
    tool: str = ""
    isolation: str = ""
    sent: Mapping[str, Any] | None = None
    raw: tuple[Mapping[str, Any], ...] | None = None
    attempts: int = 0
    middleware: dict[str, None] = attrs.field(factory=dict)
    """Names of the middleware that changed something, in order."""

    def refuse(self, outcome: ToolOutcome, text: str, error: str = "") -> ToolResult:
        """Note why there is no result of the tool, and return the error that the model is shown."""
        self.outcome, self.error = outcome, error or text
        return ToolResult.of_text(f"Error: {text}", is_error=True)


@attrs.frozen(kw_only=True)
class CallPath:
    """Way of a call: the middleware from the outermost on, then the server that has the tool."""

    toolbox: Toolbox
    listing: Listing
    trace: CallTrace

    async def run(
        self,
        episode: ToolEpisode,
        name: str,
        arguments: Mapping[str, Any],
        messages: Sequence[Mapping[str, Any]],
        state: dict[str, Any],
    ) -> ToolResult:
        """Return the result that the model is shown; what it can react to is a result with `is_error`.

        Raises `EpisodeError` if the episode cannot go on, `RunError` if the run cannot.
        """
        found = self.listing.by_name.get(name)
        request = ToolRequest(
            episode=episode,
            server=found.server.name if found else "",
            tool=found.spec if found else None,
            name=name,
            arguments=arguments,
            state=state,
            messages=messages,  # type: ignore[arg-type]  # any messages
        )
        try:
            result = await self._through(request, self.toolbox.middleware)
            # What came from the server was checked before.
            return self._checked(result) if self.trace.middleware else result
        except (EpisodeError, RunError):
            raise
        except Exception as error:
            # A fault of middleware, or of a server's code: the model may try otherwise.
            logger.exception("record %s: the call of tool '%s' failed", episode.record_id, name)
            return self.trace.refuse(ToolOutcome.TOOL_ERROR, f"the tool failed: {described(error)}")

    async def _through(self, request: ToolRequest, middleware: Sequence[NamedMiddleware]) -> ToolResult:
        if not middleware:
            return await self._send(request)
        outer, rest = middleware[0], middleware[1:]
        passed_on: list[ToolResult] = []

        async def call_next(changed: ToolRequest) -> ToolResult:
            if changed.name != request.name:
                found = self.listing.by_name.get(changed.name)
                changed = attrs.evolve(
                    changed, tool=found.spec if found else None, server=found.server.name if found else ""
                )
            if changed.name != request.name or changed.arguments != request.arguments:
                self.trace.middleware[outer.name] = None
            result = await self._through(changed, rest)
            passed_on.append(result)
            return result

        next_one: CallNext = call_next
        result = await outer.middleware.call(request, next_one)
        if not passed_on or result != passed_on[-1]:
            self.trace.middleware[outer.name] = None
        return result

    async def _send(self, request: ToolRequest) -> ToolResult:
        """Check the arguments, call the tool on its server, and check the result."""
        trace, tool = self.trace, self.listing.by_name.get(request.name)
        if tool is None:
            return trace.refuse(ToolOutcome.UNKNOWN_TOOL, self.listing.unknown(request.name))
        trace.server, trace.tool = tool.server.name, tool.spec.name
        trace.isolation = tool.server.server.isolation
        if problem := await problem_of_arguments(tool.spec.parameters, request.arguments):
            return trace.refuse(ToolOutcome.INVALID_ARGUMENTS, f"invalid arguments for {request.name}: {problem}")
        result = await self._delivered(tool, request.arguments)
        self.toolbox.count(tool.server, trace.outcome or ToolOutcome.OK, trace.error)
        return result

    async def _delivered(self, tool: Tool, arguments: Mapping[str, Any]) -> ToolResult:
        trace, toolbox, server = self.trace, self.toolbox, tool.server
        before, trace.sent = trace.attempts, arguments
        try:
            async with toolbox.places:
                # The time begins when the call may be sent: others of this process are not the server's fault.
                delivery = await deliver(
                    lambda left_s: tool.session.call(tool.spec.name, arguments, timeout_s=left_s),
                    repeatable=tool.spec.repeatable,
                    timeout_s=server.timeout_s,
                    retries=toolbox.retries,
                    strays=toolbox.strays,
                )
        except EpisodeError as error:
            trace.attempts = before + 1
            toolbox.count(server, ToolOutcome.ENVIRONMENT_LOST, str(error))
            raise
        except RunError:
            raise
        except InvalidResultError as error:
            trace.attempts = before + 1
            return trace.refuse(ToolOutcome.INVALID_RESULT, f"the tool gave no valid result: {one_line(str(error))}")
        except Exception as error:
            trace.attempts = before + 1
            logger.exception("tool server '%s': the call of '%s' failed", server.name, tool.spec.name)
            return trace.refuse(ToolOutcome.TOOL_ERROR, f"the tool failed: {described(error)}")
        trace.attempts = before + delivery.attempts
        if delivery.outcome is ToolOutcome.NOT_SENT:
            trace.sent = None
            return trace.refuse(delivery.outcome, _NOT_SENT, one_line(delivery.error))
        if delivery.outcome is ToolOutcome.DELIVERY_UNKNOWN:
            return trace.refuse(delivery.outcome, _DELIVERY_UNKNOWN, one_line(delivery.error))
        result: Any = delivery.result
        problem, content = self._read(result)
        if problem:
            return trace.refuse(ToolOutcome.INVALID_RESULT, f"the tool's result {problem}")
        result = attrs.evolve(result, content=content)
        trace.raw, trace.outcome, trace.error = content, ToolOutcome.OK, ""
        if result.is_error:
            trace.outcome, trace.error = ToolOutcome.TOOL_ERROR, one_line(result.text)
        return result  # type: ignore[no-any-return]  # `_read` has checked it

    def _checked(self, result: Any) -> ToolResult:
        """Return what middleware gave as plain JSON values, or the error that the model is shown in its place."""
        problem, content = self._read(result)
        if problem:
            return self.trace.refuse(ToolOutcome.INVALID_RESULT, f"the result {problem}")
        return attrs.evolve(result, content=content)  # type: ignore[no-any-return]  # `_read` has checked it

    def _read(self, result: Any) -> tuple[str, tuple[Mapping[str, Any], ...]]:
        """Return what is wrong with a result, as a verb phrase, and its content."""
        if not isinstance(result, ToolResult):
            return f"is not valid: expected a ToolResult, found {type(result).__name__}", ()
        for part in result.content:
            if not isinstance(part, Mapping) or not _is_part(part):
                return f"is not valid: {one_line(repr(part), 60)} is no content part", ()
        try:
            text = to_json(result.content)
        except TypeError as error:
            return f"is not valid: {one_line(str(error))}", ()
        most = self.toolbox.config.max_result_bytes
        if len(text) > most:
            return f"has {len(text)} bytes, more than the {most} allowed; ask for less", ()
        return "", tuple(orjson.loads(text))


def _is_part(part: Mapping[str, Any]) -> bool:
    if part.get("type") == "text":
        return isinstance(part.get("text"), str)
    image = part.get("image_url")
    return part.get("type") == "image_url" and isinstance(image, Mapping) and isinstance(image.get("url"), str)
