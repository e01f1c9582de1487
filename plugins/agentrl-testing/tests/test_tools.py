"""The suites of tool servers and middleware, on good components and on broken ones."""

import asyncio

import attrs
import pytest

from agentrl_core.api.tools import ToolResult
from agentrl_core.errors import EnvironmentLostError
from agentrl_core.tools.functions import FunctionTools
from agentrl_testing import ToolDriver, ToolMiddlewareSuite, ToolServerSuite, check_tool_middleware, check_tool_server
from agentrl_testing.tool_servers import ToolServerSuite as Standard

CODE = """
import time
KEPT = []

def keep(text: str) -> str:
    KEPT.append(text)
    return "kept"

def kept() -> str:
    return " ".join(KEPT)

def wait():
    time.sleep(1.5)

class Notes:
    def __init__(self):
        self.kept_here = []

    def keep(self, text: str) -> str:
        self.kept_here.append(text)
        return "kept"

    def kept(self) -> str:
        return " ".join(self.kept_here)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "suite_tools.py").write_text(CODE)
    return tmp_path


class OfFunctions(ToolServerSuite):
    @pytest.fixture
    def example(self):
        return "kept", {}

    @pytest.fixture
    def changes(self):
        return [(("keep", {"text": "tea"}), ("kept", {}))]


class TestFunctions(OfFunctions):
    @pytest.fixture
    def server(self, folder):
        functions = tuple(f"suite_tools.py:{name}" for name in ("keep", "kept", "wait"))
        return FunctionTools(functions=functions, config_dir=folder)

    @pytest.fixture
    def slow(self):
        return "wait", {}


class TestObjects(OfFunctions):
    @pytest.fixture
    def server(self, folder):
        return FunctionTools(factory="suite_tools.py:Notes", config_dir=folder)


def fails(test, *arguments):
    with pytest.raises(AssertionError):
        test(Standard(), *arguments)


def test_a_server_that_is_less_isolated_than_it_says_is_caught(folder):
    functions = ("suite_tools.py:keep", "suite_tools.py:kept")
    leaky = FunctionTools(functions=functions, config_dir=folder)
    leaky.isolation = "session"
    fails(
        Standard.test_episodes_are_isolated_as_it_declares,
        leaky,
        [(("keep", {"text": "tea"}), ("kept", {}))],
        {"id": "t"},
    )


def test_a_server_that_leaves_tasks_behind_is_caught(folder):
    class Leaving(FunctionTools):
        async def start(self):
            self.left = asyncio.ensure_future(asyncio.sleep(30))

    with pytest.raises(AssertionError, match="left tasks behind"):
        ToolDriver([Leaving(factory="suite_tools.py:Notes", config_dir=folder)]).run(lambda _: asyncio.sleep(0))


def test_a_server_without_isolation_is_caught():
    with pytest.raises(AssertionError, match="expected one of shared, session, process"):
        check_tool_server(object())


@attrs.frozen
class Rigged:
    rule: object

    async def call(self, request, call_next):
        return await self.rule(request, call_next)


class TestPassing(ToolMiddlewareSuite):
    @pytest.fixture
    def middleware(self):
        async def passing(request, call_next):
            return await call_next(request)

        return Rigged(passing)


async def in_place(request, call_next):
    request.arguments["x"] = 1
    return await call_next(request)


async def swallowing(request, call_next):
    try:
        return await call_next(request)
    except EnvironmentLostError:
        return ToolResult.of_text("nothing")


async def text(request, call_next):
    return (await call_next(request)).text


@pytest.mark.parametrize(
    ("rule", "said"),
    [(in_place, "the arguments"), (swallowing, "was swallowed"), (text, "expected a ToolResult")],
)
def test_middleware_that_breaks_a_rule_is_caught(rule, said):
    with pytest.raises(AssertionError, match=said):
        check_tool_middleware(Rigged(rule))


def test_middleware_that_mixes_calls_is_caught():
    last = []

    async def mixing(request, call_next):
        last[:] = [request]
        await asyncio.sleep(0)
        return await call_next(last[0])

    with pytest.raises(AssertionError):
        check_tool_middleware(Rigged(mixing))
