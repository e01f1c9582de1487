"""Conformance tests of tool middleware: `ToolMiddlewareSuite` for pytest, `check_tool_middleware` for scripts."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from agentrl_core.api.tools import ToolEpisode, ToolRequest, ToolResult, ToolSpec
from agentrl_core.errors import EnvironmentLostError
from agentrl_core.tools.checks import problem_of_specs
from agentrl_core.tools.schemas import to_json
from agentrl_testing.base import ConformanceSuite

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from agentrl_core.api.tools import ToolMiddleware

_SPECS = (
    ToolSpec(
        name="search",
        description="Search the corpus.",
        parameters={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        read_only=True,
    ),
    ToolSpec(
        name="fetch",
        description="Read a page.",
        parameters={"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
        read_only=True,
    ),
    ToolSpec(
        name="write_file",
        description="Write a file.",
        parameters={"type": "object", "properties": {"name": {"type": "string"}, "text": {"type": "string"}}},
    ),
)
_RESULTS = (
    ToolResult.of_text("found"),
    ToolResult.of_text(""),
    ToolResult.of_text("no such page", is_error=True),
    ToolResult.of_text("line\n" * 2000),
    ToolResult(content=({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},)),
)


class ToolMiddlewareSuite(ConformanceSuite):
    """Conformance tests of tool middleware; define the fixture `middleware`, and `requests` for calls that it knows."""

    @pytest.fixture
    def middleware(self) -> ToolMiddleware:
        """Return the middleware under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `middleware`")

    @pytest.fixture
    def requests(self) -> Sequence[ToolRequest]:
        """Return requests to pass through the middleware."""
        return made_up_requests()

    def test_every_result_can_be_shown(self, middleware: ToolMiddleware, requests: Sequence[ToolRequest]) -> None:
        """The model gets content parts of JSON, whatever the tool answers."""
        _check_results(middleware, requests)

    def test_requests_are_not_changed_in_place(
        self, middleware: ToolMiddleware, requests: Sequence[ToolRequest]
    ) -> None:
        """The record keeps the request as the model wrote it; a changed request is a new one (`attrs.evolve`)."""
        _check_untouched(middleware, requests)

    def test_errors_of_the_episode_pass(self, middleware: ToolMiddleware, requests: Sequence[ToolRequest]) -> None:
        """A lost environment ends the episode, and a cancelled call stays cancelled: neither becomes a result."""
        _check_errors(middleware, requests)

    def test_calls_of_several_episodes_do_not_mix(
        self, middleware: ToolMiddleware, requests: Sequence[ToolRequest]
    ) -> None:
        """One object serves all episodes at once: the same calls give the same results one after another."""
        _check_concurrent(middleware, requests)

    def test_offered_tools_are_valid(self, middleware: ToolMiddleware) -> None:
        """`tools`, if there is one, returns descriptions with names and valid schemas."""
        _check_tools(middleware)


def check_tool_middleware(middleware: ToolMiddleware) -> None:
    """Raise AssertionError if `middleware` breaks its contract."""
    _check_tools(middleware)
    for check in (_check_results, _check_untouched, _check_errors, _check_concurrent):
        check(middleware, made_up_requests())


def made_up_requests() -> list[ToolRequest]:
    """Return a request for each of three tools, and one for a tool that does not exist."""
    arguments: Sequence[dict[str, Any]] = (
        {"query": "tides"},
        {"url": "https://example.com/a"},
        {"name": "a.txt", "text": "x"},
    )
    requests = [
        request_for(spec.name, given, tool=spec, record_id=f"record-{number}")
        for number, (spec, given) in enumerate(zip(_SPECS, arguments, strict=True))
    ]
    return [*requests, request_for("nowhere", {"x": 1})]


def request_for(
    name: str, arguments: dict[str, Any], *, tool: ToolSpec | None = None, record_id: str = "record-0"
) -> ToolRequest:
    """Return a request as the first middleware gets it."""
    return ToolRequest(
        episode=ToolEpisode(record_id=record_id, task_id="t0", data={"id": "t0", "query": "When is high tide?"}),
        server="corpus" if tool else "",
        tool=tool,
        name=name,
        arguments=arguments,
        state={},
        messages=({"role": "user", "content": "When is high tide?"},),
    )


def passed(
    middleware: ToolMiddleware, request: ToolRequest, answer: Callable[[ToolRequest], Awaitable[ToolResult]]
) -> ToolResult:
    """Return what the middleware makes of a request that the tool answers by `answer`."""

    async def call() -> ToolResult:
        return await middleware.call(request, answer)

    return asyncio.run(call())


def _answering(result: ToolResult | BaseException) -> Callable[[ToolRequest], Awaitable[ToolResult]]:
    async def answer(_: ToolRequest) -> ToolResult:
        await asyncio.sleep(0)
        if isinstance(result, BaseException):
            raise result
        return result

    return answer


def _fresh(request: ToolRequest) -> ToolRequest:
    return attrs.evolve(request, arguments=copy.deepcopy(dict(request.arguments)), state={})


def _check_results(middleware: ToolMiddleware, requests: Sequence[ToolRequest]) -> None:
    for request in requests:
        for result in _RESULTS:
            shown = passed(middleware, _fresh(request), _answering(result))
            assert isinstance(shown, ToolResult), f"{request.name}: expected a ToolResult, found {shown!r:.100}"
            to_json(shown.content)
            assert all(part.get("type") in ("text", "image_url") for part in shown.content), shown.content


def _check_untouched(middleware: ToolMiddleware, requests: Sequence[ToolRequest]) -> None:
    for request in requests:
        given = _fresh(request)
        passed(middleware, given, _answering(_RESULTS[0]))
        assert given.arguments == request.arguments, f"the arguments {request.arguments} became {given.arguments}"
        assert given.messages == request.messages


def _check_errors(middleware: ToolMiddleware, requests: Sequence[ToolRequest]) -> None:
    for request in requests:
        for error in (EnvironmentLostError("gone"), asyncio.CancelledError()):
            called: list[bool] = []

            async def answer(_: ToolRequest, error: BaseException = error, called: list[bool] = called) -> ToolResult:
                called.append(True)
                raise error

            try:
                passed(middleware, _fresh(request), answer)
            except BaseException as raised:
                if not isinstance(raised, type(error)):
                    raise
            else:
                # One that answers by itself, such as a block list, does not get the error.
                assert not called, f"{request.name}: {type(error).__name__} was swallowed"


def _check_concurrent(middleware: ToolMiddleware, requests: Sequence[ToolRequest]) -> None:
    async def answer(request: ToolRequest) -> ToolResult:
        await asyncio.sleep(0)
        return ToolResult.of_text(f"{request.name} {request.episode.record_id}")

    async def at_once() -> list[ToolResult]:
        return list(await asyncio.gather(*(middleware.call(_fresh(item), answer) for item in [*requests] * 4)))

    one_by_one = [passed(middleware, _fresh(request), answer) for request in requests] * 4
    assert asyncio.run(at_once()) == one_by_one


def _check_tools(middleware: ToolMiddleware) -> None:
    change = getattr(middleware, "tools", None)
    if change is None:
        return
    offered = change(_SPECS)
    assert not asyncio.iscoroutine(offered), "`tools` is async; expected a plain method"
    problem = asyncio.run(problem_of_specs(offered))
    assert not problem, f"`tools` {problem}"
