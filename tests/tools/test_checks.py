"""Checks of tools and arguments: messages, and schemas and arguments that are made to take for ever."""

import asyncio
import time

import pytest
from tests.tools.conftest import FakeServer

from agentrl_core.api.tools import ToolSpec
from agentrl_core.tools import checks
from agentrl_core.types import ToolOutcome

MOST_CPU_S = 0.5
"""CPU time that a check may take on the event loop's thread; the attacks took 5 s to for ever."""


def about(**of_x):
    return {"type": "object", "properties": {"x": of_x}}


def checked(schema, x):
    """Return the result of checking `{"x": x}`, and the CPU time that this thread spent."""

    async def check():
        before = time.thread_time()
        problem = await checks.problem_of_arguments(schema, {"x": x})
        return problem, time.thread_time() - before

    return asyncio.run(check())


def listed(**parameters):
    return asyncio.run(checks.problem_of_specs([ToolSpec(name="t", parameters=parameters)]))


def doubling(levels):
    """Definitions a0 to aN of which each asks twice for the next: 2**N checks of one value."""
    both = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(levels)}
    return {**both, f"a{levels}": {"const": "nothing"}}


def nested(levels):
    return {"l": nested(levels - 1), "r": 0} if levels else 0


TREE = {"tree": {"anyOf": [{"required": ["no"], "properties": {"l": {"$ref": "#/$defs/tree"}}}] * 2}}
for item in TREE["tree"]["anyOf"]:
    item["allOf"] = [{"properties": {"l": {"$ref": "#/$defs/tree"}}}] * 2

STOPPED = "the check of the schema took more than 0.3 s and was stopped"
NO_MATCH = "does not match"


@pytest.mark.parametrize(
    ("schema", "x", "said"),
    [
        pytest.param(about(type="string", pattern="^(a+)+$"), "a" * 10_000 + "b", NO_MATCH, id="repeated repetition"),
        pytest.param(about(pattern="^([A-Z]+-?)+[0-9]$"), "A" * 27 + "!", NO_MATCH, id="an honest server's pattern"),
        pytest.param(about(pattern=r"^(?!b)(?:(a|aa)+)+\1$"), "a" * 64 + "b", "backtracking", id="back reference"),
        pytest.param(about(pattern=r"(\w{1,300}){0,3}\d$"), "é" * 100_000, NO_MATCH, id="large pattern, long string"),
        pytest.param(about(patternProperties={"^(a|a)*$": {}}, additionalProperties=False), {"a" * 40 + "b": 1},
                     "Additional properties", id="pattern of names"),
        pytest.param(about(propertyNames={"pattern": "^(a*)*$"}), {"a" * 40 + "b": 1}, NO_MATCH, id="names"),
        pytest.param(about(uniqueItems=True), [*({"a": i} for i in range(30_000)), {"a": 0}], "non-unique",
                     id="unique objects"),
        pytest.param(about(items={"enum": list(range(2000))}), [2000.5] * 100_000, "is not one of", id="large enum"),
        pytest.param(about(items={"enum": [{"a": i} for i in range(2000)]}), [{"a": 1999}] * 100_000, STOPPED,
                     id="large enum of objects"),
        pytest.param(about(items={"multipleOf": 1e-300}), [1e300] * 100_000, STOPPED, id="exact fractions"),
        pytest.param(about(contains={"enum": [i + 0.5 for i in range(1000)]}), [0.25] * 50_000, STOPPED, id="contains"),
        pytest.param({**about(**{"$ref": "#/$defs/a0"}), "$defs": doubling(30)}, 1, STOPPED, id="doubling references"),
        pytest.param({**about(**{"$ref": "#/$defs/tree"}), "$defs": TREE}, nested(30), STOPPED, id="doubling tree"),
        pytest.param(about(unevaluatedProperties=False, allOf=[{"properties": {"a": {}}}] * 300),
                     {str(i): 1 for i in range(1_000)}, "Unevaluated", id="unevaluated"),
        pytest.param(about(format="regex"), "(" * 10**6, None, id="formats are hints"),
        pytest.param(about(items={"anyOf": [{"maximum": -i} for i in range(1, 900)]}), [0] * 50_000, "is not valid",
                     id="alternatives"),
        pytest.param(about(maxLength=5), "a" * 5 * 2**20, "the arguments have 5,242,888 bytes, more than", id="long"),
    ],
)  # fmt: skip
def test_no_arguments_hold_up_the_event_loop(monkeypatch, schema, x, said):
    monkeypatch.setattr(checks, "_LIMIT_S", 0.3)
    problem, cpu_s = checked(schema, x)
    assert said in problem if said else not problem
    assert len(problem) <= 400
    assert cpu_s < MOST_CPU_S


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (about(pattern="("), 'properties.x.pattern: "(" is not a "regex"; correct it on the server, or leave'),
        (about(pattern="(((a{1,1000}){1,1000}){1,1000}){1,1000}"), 'is not a "regex"'),
        (about(type="strin"), 'properties.x.type: "strin" is not one of "array", "boolean", "integer", "null"'),
        (about(**{"$ref": "http://127.0.0.1:9/schema"}), "http://127.0.0.1:9/schema"),
        (about(**{"$ref": "file:///etc/passwd"}), "file:///etc/passwd"),
        (about(**{"$ref": "#/$defs/missing"}), "Pointer '/$defs/missing' does not exist"),
        (about(enum=["x" * 100] * 3000), "it has 309,0"),
        (about(default={1, 2}), "it is no JSON"),
        (about(enum=5), "properties.x.enum: 5 is not of type"),
    ],
)
def test_a_schema_that_cannot_be_compiled_is_refused_when_it_is_listed(parameters, said):
    told = listed(**parameters)
    assert told.startswith("has an invalid schema of the arguments of 't': ")
    assert said in told


def test_a_schema_nested_without_end_is_refused():
    schema = {}
    for _ in range(2000):
        schema = {"items": schema}
    assert "it is no JSON" in listed(**about(**schema))
    schema = {}
    for _ in range(120):
        schema = {"items": schema}
    assert listed(**about(**schema)) == ""


@pytest.mark.parametrize("dialect", [None, "https://example.org/own", 5, "http://json-schema.org/draft-07/schema#"])
def test_schemas_of_other_dialects_are_read(dialect):
    schema = {"$schema": dialect, **about(type="integer")}
    assert listed(**schema) == ""
    assert checked(schema, "1")[0] == 'x: "1" is not of type "integer"'


@pytest.mark.parametrize(
    ("of_x", "x", "said"),
    [
        ({"enum": ["red", "green", "blue"]}, "reed", 'x: "reed" is not one of "red", "green", "blue"'),
        ({"anyOf": [{"type": "null"}, {"properties": {"a": {"type": "integer"}}, "type": "object"}]}, {"a": "s"},
         'x.a: "s" is not of type "integer"'),
        ({"items": {"properties": {"a": {"minimum": 3}}}}, [{"a": 5}, {"a": 1}], "x[1].a: 1 is less than"),
        ({"type": "integer"}, "y" * 500, f'x: "{"y" * 78}… is not of type "integer"'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 2, "x: 2 is not valid under any of the schemas"),
    ],
)  # fmt: skip
def test_a_message_names_the_place_and_what_is_expected(of_x, x, said):
    assert checked(about(**of_x), x)[0].startswith(said)


def test_a_check_that_is_stopped_is_an_error_of_the_call_and_others_go_on(in_episode, monkeypatch):
    monkeypatch.setattr(checks, "_LIMIT_S", 0.3)
    specs = [
        ToolSpec(name="bad", parameters={**about(**{"$ref": "#/$defs/a0"}), "$defs": doubling(30)}),
        ToolSpec(name="good", parameters=about(pattern="^[0-9]+$")),
    ]

    async def work(tools):
        return await asyncio.gather(*(tools.call(name, {"x": "1"}) for name in ("bad", "good", "good")))

    done = in_episode(work, FakeServer(specs=specs))
    assert [call.outcome for call in done.result] == [ToolOutcome.INVALID_ARGUMENTS, ToolOutcome.OK, ToolOutcome.OK]
    assert done.result[0].result.text == f"Error: invalid arguments for bad: {STOPPED}"
