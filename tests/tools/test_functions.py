import asyncio
import datetime as dt
import enum
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NewType, TypedDict

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

class Wrong:
    def all(self, *items): ...

def anything(*items): ...

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
        ({"functions": ["own_tools.py:anything"]}, r"own_tools\.py:\d+: anything: its parameter '\*items' cannot be"),
    ],
)
def test_wrong_options_name_the_option(build, options, said):
    with pytest.raises(ConfigError, match=said):
        build(**options)


def test_an_object_with_a_method_that_json_cannot_call_is_refused(build):
    with pytest.raises(ConfigError, match=r"tools\.servers: own_tools\.py:\d+: all: its parameter '\*items' cannot be"):
        in_session(build(factory="own_tools.py:Wrong"))


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


class Widget:
    pass


class Node(TypedDict):
    children: "list[Node]"


UserId = NewType("UserId", int)


def with_all(*items): ...
def first_only(item, /): ...
def misspelt(w: "Widgt"): ...  # noqa: F821
def own(w: Widget): ...
def nested_own(ws: list[Widget | None]): ...
def callback(then: Callable[[int], int]): ...
def number(n: 5): ...
def tree(root: Node): ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (with_all, "its parameter '*items' cannot be given by name"),
        (first_only, "its parameter 'item' cannot be given by name"),
        (
            misspelt,
            "the types of its parameters cannot be read (name 'Widgt' is not defined); correct them, and import",
        ),
        (own, "its parameter 'w' has a type that JSON cannot give: Widget; expected str, int"),
        (nested_own, "its parameter 'ws' has a type that JSON cannot give: Widget"),
        (callback, "its parameter 'then' has a type that JSON cannot give: collections.abc.Callable[[int], int]"),
        (number, "its parameter 'n' has a type that JSON cannot give: 5"),
        (tree, "its parameter 'root' has a type that contains itself"),
    ],
)
def test_a_function_that_json_cannot_call_is_refused_with_its_place(function, said):
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        describe_function(function)
    line = function.__code__.co_firstlineno
    assert str(raised.value).startswith(f"test_functions.py:{line}: {function.__name__}: ")


def test_what_only_type_checkers_import_may_be_returned():
    def found(user: UserId, day: dt.date, at: Path, **ignored) -> "Widgt": ...  # noqa: F821

    assert describe_function(found).parameters["properties"] == {
        "user": {"type": "integer"},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string"},
    }
    assert convert_arguments(found, {"user": 1, "day": "2026-11-23"})["day"] == dt.date(2026, 11, 23)


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
