"""Conformance tests of tool servers, `ToolServerSuite`, and `ToolDriver`, which calls tools as episodes do."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import pytest

from agentrl_core.api.tools import Isolation, ToolEpisode, ToolResult
from agentrl_core.config.component import Component
from agentrl_core.config.sampling_sections import ToolsConfig
from agentrl_core.tools.checks import problem_of_specs
from agentrl_core.tools.toolbox import Toolbox
from agentrl_core.types import ToolOutcome
from agentrl_testing.base import ConformanceSuite

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from agentrl_core.api.tools import ShownCall, ToolMiddleware, ToolServer
    from agentrl_core.tools.episode import OpenTools
    from agentrl_core.types import ToolCall

T = TypeVar("T")

_LIMIT_S = 60.0
"""Longest time of a test's work with a server."""
_TOGETHER = 16
"""Calls at the same time."""


class ToolDriver:
    """Caller of a server's tools, in episodes with all checks, limits and retries of a run, but without a run.

        driver = ToolDriver([server], timeout_s=5)
        shown = driver.run(lambda driver: driver.open({"id": "t"}).call("add", {"a": 1, "b": 2}))

    Keyword arguments are options of the config's section `tools`.
    """

    def __init__(
        self, servers: Sequence[ToolServer], middleware: Sequence[ToolMiddleware] = (), **options: Any
    ) -> None:
        config = ToolsConfig(
            servers=tuple(Component("server", {"prefix": f"s{n}_"} if n else {}) for n in range(len(servers))),
            middleware=tuple(Component(type(item).__name__) for item in middleware),
            **options,
        )
        self.toolbox = Toolbox(config, servers, middleware)
        self.calls: list[ToolCall] = []
        """Rows of all ended calls."""
        self.marks: list[str] = []
        self._numbers = itertools.count()
        self._opened: list[OpenTools] = []

    def open(self, data: Mapping[str, Any]) -> OpenTools:
        """Return the tools of a new episode whose task has the row `data`; closed at the end of `run`."""
        episode = ToolEpisode(record_id=f"record-{next(self._numbers)}", task_id=str(data.get("id", "")), data=data)
        tools = self.toolbox.open(episode, keep=self._keep, mark=self.marks.append)
        self._opened.append(tools)
        return tools

    async def _keep(self, call: ToolCall) -> None:
        self.calls.append(call)

    def run(self, work: Callable[[ToolDriver], Awaitable[T]]) -> T:
        """Start the servers, await `work(self)`, close everything, and return the work's result.

        AssertionError if a task of the event loop is left.
        """
        return asyncio.run(self._run(work))

    async def _run(self, work: Callable[[ToolDriver], Awaitable[T]]) -> T:
        async with asyncio.timeout(_LIMIT_S):
            await self.toolbox.start()
            try:
                return await work(self)
            finally:
                for tools in self._opened:
                    await tools.close()
                await self.toolbox.close()
                left = asyncio.all_tasks() - {asyncio.current_task()}
                # A task that was cancelled a moment ago still has to notice it.
                if left:
                    _, left = await asyncio.wait(left, timeout=1.0)
                assert not left, f"the server left tasks behind: {left}"


class ToolServerSuite(ConformanceSuite):
    """Conformance tests of tool servers; define the fixtures `server` and `example`, and the others where they fit.

    class TestFiles(ToolServerSuite):
        @pytest.fixture
        def server(self, tmp_path):
            return FileTools(folder=tmp_path)

        @pytest.fixture
        def example(self):
            return "list_files", {}

        @pytest.fixture
        def changes(self):
            return [(("write_file", {"name": "a", "text": "x"}), ("list_files", {}))]
    """

    @pytest.fixture
    def server(self) -> ToolServer:
        """Return a new server that has not been started."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `server`")

    @pytest.fixture
    def example(self) -> tuple[str, Mapping[str, Any]]:
        """Return name and arguments of a call that succeeds, and changes nothing."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `example`")

    @pytest.fixture
    def changes(self) -> list[tuple[tuple[str, Mapping[str, Any]], tuple[str, Mapping[str, Any]]]]:
        """Return pairs of a call that changes something and a call whose result then differs; none without state.

        Different ways of keeping state need a pair each: memory and files, for example.
        """
        return []

    @pytest.fixture
    def slow(self) -> tuple[str, Mapping[str, Any]] | None:
        """Return a call that takes longer than a second; None if there is none."""
        return None

    @pytest.fixture
    def data(self) -> dict[str, Any]:
        """Return the row of a task, as the server's episodes need it."""
        return {"id": "t0"}

    def test_it_declares_its_isolation(self, server: ToolServer) -> None:
        check_tool_server(server)

    def test_it_starts_and_closes_without_an_episode(self, server: ToolServer) -> None:
        driver = ToolDriver([server])
        # A socket or process that is left behind is a ResourceWarning, and so an error of the test.
        driver.run(lambda _: asyncio.sleep(0))
        assert driver.calls == []

    def test_its_tools_have_names_and_valid_schemas(self, server: ToolServer, data: dict[str, Any]) -> None:
        async def listed(driver: ToolDriver) -> Any:
            return await driver.open(data).specs(), await driver.open(data).specs()

        first, second = ToolDriver([server]).run(listed)
        assert first, "the server has no tools"
        assert not asyncio.run(problem_of_specs(first))
        assert [spec.name for spec in first] == [spec.name for spec in second]

    def test_the_example_succeeds(
        self, server: ToolServer, example: tuple[str, Mapping[str, Any]], data: dict[str, Any]
    ) -> None:
        async def called(driver: ToolDriver) -> ShownCall:
            return await driver.open(data).call(*example)

        driver = ToolDriver([server])
        shown = driver.run(called)
        assert shown.outcome is ToolOutcome.OK, driver.calls[0].error
        assert driver.marks == []

    def test_calls_of_several_episodes_run_at_the_same_time(
        self, server: ToolServer, example: tuple[str, Mapping[str, Any]], data: dict[str, Any]
    ) -> None:
        async def together(driver: ToolDriver) -> list[ShownCall]:
            episodes = [driver.open(data), driver.open(data)]
            return await asyncio.gather(*(episodes[number % 2].call(*example) for number in range(_TOGETHER)))

        driver = ToolDriver([server])
        shown = driver.run(together)
        assert {item.outcome for item in shown} == {ToolOutcome.OK}, [call.error for call in driver.calls]

    def test_episodes_are_isolated_as_it_declares(
        self, server: ToolServer, changes: list[Any], data: dict[str, Any]
    ) -> None:
        """Another episode sees a change if the server is `shared`, and only then."""

        async def seen(driver: ToolDriver) -> None:
            for change, look in changes:
                mine, other = driver.open(data), driver.open(data)
                before, others = (await mine.call(*look)).result.text, (await other.call(*look)).result.text
                changed = await mine.call(*change)
                assert changed.outcome is ToolOutcome.OK, changed.result.text
                after = (await mine.call(*look)).result.text
                assert after != before, f"{look} gives {after!r} before and after {change}"
                found = (await other.call(*look)).result.text
                if server.isolation == "shared":
                    assert found == after, f"isolation is shared, but another episode does not see {change}"
                else:
                    assert found == others, f"isolation is {server.isolation}, but another episode sees {change}"
                    later = (await driver.open(data).call(*look)).result.text
                    assert later == before, f"isolation is {server.isolation}, but a later episode sees {change}"

        ToolDriver([server]).run(seen)

    def test_a_call_ends_at_its_deadline(
        self, server: ToolServer, slow: Any, example: tuple[str, Mapping[str, Any]], data: dict[str, Any]
    ) -> None:
        """The model is told that the call may have taken effect; an episode after it has tools that work."""

        async def late(driver: ToolDriver) -> tuple[ShownCall, ShownCall]:
            return await driver.open(data).call(*slow), await driver.open(data).call(*example)

        if slow is None:
            return
        driver = ToolDriver([server], timeout_s=1.0, retries=0)
        first, second = driver.run(late)
        assert first.outcome is ToolOutcome.DELIVERY_UNKNOWN, first.result.text
        assert second.outcome is ToolOutcome.OK, second.result.text

    def test_a_cancelled_call_does_not_disturb_others(
        self, server: ToolServer, example: tuple[str, Mapping[str, Any]], data: dict[str, Any]
    ) -> None:
        async def cancelled(driver: ToolDriver) -> ShownCall:
            tools = driver.open(data)
            await tools.specs()
            calling = asyncio.create_task(tools.call(*example))
            await asyncio.sleep(0)
            calling.cancel()
            await asyncio.wait({calling})
            return await driver.open(data).call(*example)

        assert ToolDriver([server]).run(cancelled).outcome is ToolOutcome.OK

    def test_an_episode_without_a_call_costs_nothing(self, server: ToolServer, data: dict[str, Any]) -> None:
        async def opened(driver: ToolDriver) -> None:
            driver.open(data)

        driver = ToolDriver([server])
        driver.run(opened)
        assert driver.calls == []

    def test_closing_ends_episodes_that_were_left_open(
        self, server: ToolServer, example: tuple[str, Mapping[str, Any]], data: dict[str, Any]
    ) -> None:
        """A crash of an episode may leave its session open; `close` of the server ends it."""

        async def left_open(_: ToolDriver) -> ToolResult:
            session = await server.open(ToolEpisode(record_id="left", task_id="t0", data=data))
            await session.list_tools()
            return await session.call(*example, timeout_s=_LIMIT_S)

        # A socket or process that is left behind is a ResourceWarning, and so an error of the test.
        result = ToolDriver([server]).run(left_open)
        assert not result.is_error


def check_tool_server(server: Any) -> None:
    """Raise AssertionError if a server lacks what every tool server must have; starts nothing."""
    known = get_args(Isolation)
    assert getattr(server, "isolation", None) in known, (
        f"`isolation` is {getattr(server, 'isolation', None)!r}; expected one of {', '.join(known)}"
    )
    for method in ("start", "open", "close"):
        assert asyncio.iscoroutinefunction(getattr(server, method, None)), f"`{method}` is no async method"
