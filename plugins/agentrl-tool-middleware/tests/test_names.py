import pytest

from agentrl_core.api.tools import ToolSpec
from agentrl_tool_middleware.names import Block, Rename

SPECS = [
    ToolSpec(name="execute_code", description="runs code"),
    ToolSpec(name="write_file"),
    ToolSpec(name="read_file"),
]


def test_a_tool_has_another_name_and_is_called_by_its_own(pass_through):
    rename = Rename(names={"execute_code": "PythonInterpreter"}, descriptions={"execute_code": "Runs Python."})
    shown = rename.tools(SPECS)
    assert [spec.name for spec in shown] == ["PythonInterpreter", "write_file", "read_file"]
    assert shown[0].description == "Runs Python."
    assert pass_through(rename, name="PythonInterpreter").sent[0].name == "execute_code"
    assert pass_through(rename, name="read_file").sent[0].name == "read_file"


def test_two_tools_cannot_get_one_name():
    with pytest.raises(ValueError, match="two tools get the name 'x'"):
        Rename(names={"a": "x", "b": "x"})


def test_a_blocked_tool_is_hidden_and_refused(pass_through):
    block = Block(tools=["write_*", "execute_code"], message="not here")
    assert [spec.name for spec in block.tools(SPECS)] == ["read_file"]
    done = pass_through(block, name="write_file")
    assert (done.sent, done.result.is_error, done.text) == ([], True, "Error: write_file: not here")
    assert pass_through(block, name="read_file").text == "ok"
