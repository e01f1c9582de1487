import asyncio
import enum
from typing import Annotated, Literal

import attrs
import pytest

from agentrl_core.api.tools import ToolEpisode
from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError
from agentrl_core.plugins.manager import load_registry
from agentrl_core.tools.function_schema import convert_arguments, describe_function

MODULE = '''
import asyncio

def search(query: str, limit: int = 3) -> list[str]:
    """Search the corpus.

    Args:
        query: words to look for
        limit: number of results
    """
    return [query] * limit

async def slow(text: str) -> str:
    await asyncio.sleep(0)
    return text

def broken():
    raise ValueError("no such page")

class Counter:
    def __init__(self):
        self.count = 0
        self.closed = False

    def add(self, by: int = 1) -> int:
        """Add to the count."""
        self.count += by
        return self.count

    def _hidden(self): ...

    def close(self):
        CLOSED.append(self.count)

CLOSED = []
number = 3
'''


@pytest.fixture
def build(tmp_path):
    (tmp_path / "own_tools.py").write_text(MODULE)
    registry = load_registry()

    def make(**options):
        component = Component("functions", options)
        return registry.build("tools", component, where="tools", base_dir=tmp_path, config_dir=tmp_path, name="n")

    return make


def in_session(server, *calls):
    async def run():
        session = await server.open(ToolEpisode(record_id="r", task_id="t", data={}))
        results = [await session.call(name, arguments, timeout_s=5) for name, arguments in calls]
        await session.close()
        return await session.list_tools(), results

    return asyncio.run(run())


def test_a_function_is_a_tool_by_its_name_signature_and_docstring(build):
    specs, [result] = in_session(build(functions=["own_tools.py:search"]), ("search", {"query": "a", "limit": 2}))
    assert (specs[0].name, specs[0].description) == ("search", "Search the corpus.")
    assert specs[0].parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "words to look for"},
            "limit": {"type": "integer", "description": "number of results"},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    assert (result.text, result.structured, result.is_error) == ('["a","a"]', ["a", "a"], False)


def test_an_async_function_is_awaited_and_an_exception_is_told_without_a_traceback(build):
    server = build(functions=["own_tools.py:slow", "own_tools.py:broken"])
    assert server.isolation == "shared"
    _, [text, error] = in_session(server, ("slow", {"text": "x"}), ("broken", {}))
    assert (text.text, error.text, error.is_error) == ("x", "Error: ValueError: no such page", True)


def test_a_factory_gives_each_episode_an_object_of_its_own(build):
    server = build(factory="own_tools.py:Counter", read_only=True)
    assert server.isolation == "session"
    specs, results = in_session(server, ("add", {}), ("add", {"by": 2}))
    assert [(spec.name, spec.read_only) for spec in specs] == [("add", True)]
    assert [result.text for result in results] == ["1", "3"]
    assert [result.text for result in in_session(server, ("add", {}))[1]] == ["1"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "expected either `functions`"),
        ({"functions": ["own_tools.py:serch"]}, "has no 'serch'"),
        ({"functions": ["own_tools.py:number"]}, "is int, which cannot be called"),
        ({"functions": ["own_tools.py:slow", "own_tools.py:slow"]}, "two of the functions have one name"),
        ({"functions": "own_tools.py:slow"}, "functions: expected a list"),
    ],
)
def test_wrong_options_name_the_option(build, options, said):
    with pytest.raises(ConfigError, match=said):
        build(**options)


class Colour(enum.Enum):
    RED = "red"


@attrs.frozen
class Point:
    x: int
    y: int = 0


def paint(
    colour: Colour,
    at: Point,
    mode: Literal["fill", "line"],
    tags: set[str],
    size: Annotated[float, "in pixels"] = 1.0,
    note: str | None = None,
    extra=None,
):
    """Paint.

    :param note: a remark
    """


def test_types_become_a_schema_and_arguments_become_the_types():
    schema = describe_function(paint).parameters
    assert schema["properties"] == {
        "colour": {"enum": ["red"]},
        "at": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
            "required": ["x"],
        },
        "mode": {"enum": ["fill", "line"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "size": {"type": "number", "description": "in pixels"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "a remark"},
        "extra": {},
    }
    assert schema["required"] == ["colour", "at", "mode", "tags"]
    arguments = {"colour": "red", "at": {"x": 1}, "mode": "fill", "tags": ["a"], "extra": 1}
    assert convert_arguments(paint, arguments) == {
        "colour": Colour.RED,
        "at": Point(1),
        "mode": "fill",
        "tags": {"a"},
        "extra": 1,
    }
