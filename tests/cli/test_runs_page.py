"""The commands and the table of live options in cookbook/runs.md are those of the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from agentrl_core.cli.runs import app
from agentrl_core.config.live import LIVE_OPTIONS

PAGE = (Path(__file__).parents[2] / "cookbook/runs.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


def test_the_page_lists_every_command():
    listed = re.findall(r"^\| `agentrl runs (\w+)", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(typer.main.get_command(app).commands)


def test_the_table_of_live_options_is_that_of_the_code():
    assert dict(re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \| (.*?) \|$", PAGE, re.MULTILINE)) == LIVE_OPTIONS


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_of_the_page_is_understood(agentrl, command):
    """There is no such run, which is an error of its own, after the options have been read."""
    program, *arguments = shlex.split(command)
    result = agentrl(*arguments)
    assert program == "agentrl"
    assert "no run 'calm-otter'" in result.err or result.out == "nothing to remove\n"
