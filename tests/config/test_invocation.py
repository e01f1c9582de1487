"""Hints name a command that a shell in the working directory would find."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from agentrl_core.config import invocation
from agentrl_core.config.invocation import command_line, pip_install


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Make up an installation below the working directory, of which PATH knows nothing."""
    bin_dir = tmp_path / "env" / "bin"
    bin_dir.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", ["-c"])
    monkeypatch.setattr(sys, "executable", str(bin_dir / "python"))
    for variable in ("NOX_CURRENT_SESSION", "TOX_ENV_NAME", "UV_RUN_RECURSION_DEPTH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(invocation.sysconfig, "get_path", lambda *_: str(bin_dir))
    return bin_dir


def program(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_a_program_that_path_does_not_hold_is_named_by_its_path(place, monkeypatch):
    program(place / "agentrl")
    assert command_line("trace", "list", "calm otter") == "env/bin/agentrl trace list 'calm otter'"
    monkeypatch.chdir(place)
    assert command_line("doctor") == "./agentrl doctor"
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    assert command_line("doctor") == f"{place}/agentrl doctor"


def test_a_program_that_path_leads_to_is_named_alone(place, tmp_path, monkeypatch):
    program(place / "agentrl")
    monkeypatch.setenv("PATH", str(place))
    assert command_line("runs", "list") == "agentrl runs list"
    (tmp_path / "shims").mkdir()
    (tmp_path / "shims" / "agentrl").symlink_to(place / "agentrl")  # as pipx makes it
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    assert command_line("runs", "list") == "agentrl runs list"


@pytest.mark.parametrize("variable", ["NOX_CURRENT_SESSION", "TOX_ENV_NAME", "UV_RUN_RECURSION_DEPTH"])
def test_a_path_that_lasts_for_one_command_does_not_count(place, tmp_path, monkeypatch, variable):
    program(place / "agentrl")
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.setenv(variable, "1")
    assert command_line("runs", "list") == "env/bin/agentrl runs list"


def test_another_installation_on_path_is_not_taken_for_this_one(place, tmp_path, monkeypatch):
    program(place / "agentrl")
    monkeypatch.setenv("PATH", str(program(tmp_path / "other" / "agentrl").parent))
    assert command_line("runs", "list") == "env/bin/agentrl runs list"


def test_the_program_that_runs_comes_first(place, tmp_path, monkeypatch):
    program(place / "agentrl")
    running = program(tmp_path / "home" / "agentrl")
    monkeypatch.setattr(sys, "argv", [str(running)])
    assert command_line("runs", "list") == "home/agentrl runs list"


def test_without_a_program_it_is_a_module(place, monkeypatch):
    assert command_line("runs", "list") == "env/bin/python -m agentrl_core runs list"
    program(place / "python")
    monkeypatch.setenv("PATH", str(place))
    assert command_line("runs", "list") == "python -m agentrl_core runs list"


def test_packages_are_installed_beside_this_installation(place, tmp_path, monkeypatch):
    program(tmp_path / "other" / "pip")
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert pip_install("openai") == "env/bin/python -m pip install openai"
    program(place / "pip")
    monkeypatch.setenv("PATH", str(place))
    assert pip_install("openai", "agentrl-core[x]") == "pip install openai 'agentrl-core[x]'"


def test_what_is_printed_can_be_called(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    printed = command_line("--version")
    assert shutil.which("agentrl") is None or printed.startswith("/")
    done = subprocess.run(printed, shell=True, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("agentrl ")
