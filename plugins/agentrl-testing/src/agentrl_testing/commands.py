"""Conformance tests of commands: `CommandSuite` for pytest, `check_command` for scripts."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from agentrl_testing.base import ConformanceSuite


class CommandSuite(ConformanceSuite):
    """Conformance tests of commands; define the fixture `command`: a `typer.Typer`, or a function annotated for it."""

    @pytest.fixture
    def command(self) -> Any:
        """Return the command under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `command`")

    def test_its_help_says_what_it_is_for(self, command: Any) -> None:
        """`--help` exits with 0 and prints more than the usage."""
        _check_help(command)

    def test_an_unknown_option_is_a_fault_of_usage(self, command: Any) -> None:
        """The exit code is 2, as for all commands."""
        _check_usage(command)


def check_command(command: Any) -> None:
    """Raise AssertionError if `command` breaks its contract; print nothing."""
    for check in (_check_help, _check_usage):
        check(command)


def _check_help(command: Any) -> None:
    result = CliRunner().invoke(_app(command), ["--help"])
    assert result.exit_code == 0, result.output
    described = [line for line in result.output.splitlines() if line.strip() and "Usage:" not in line]
    assert described, "the command's help is empty; give it a docstring"
    assert "Options" not in described[0], "give it a docstring; the help shows the docstring's first line"


def _check_usage(command: Any) -> None:
    result = CliRunner().invoke(_app(command), ["--no-such-option-of-this-command"])
    assert result.exit_code == 2, f"expected exit code 2, found {result.exit_code}: {result.output}"


def _app(command: Any) -> typer.Typer:
    if isinstance(command, typer.Typer):
        return command
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(command)
    return app
