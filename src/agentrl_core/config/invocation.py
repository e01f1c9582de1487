"""Commands as they can be typed here: hints name this installation's program, not one that PATH may not hold."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

PROGRAM = "agentrl"

_RUNNERS = ("NOX_CURRENT_SESSION", "TOX_ENV_NAME", "UV_RUN_RECURSION_DEPTH")
"""Variables of programs (nox, tox, uv run) that put an environment on PATH for the length of one command."""


def command_line(*arguments: str) -> str:
    """Return a call of this installation's `agentrl`, for a shell in the working directory.

    `agentrl …` only where PATH leads to this installation; else the program's path, or `python -m agentrl_core`
    where no program was installed.
    """
    script = _called(PROGRAM)
    program = [_python(), "-m", "agentrl_core"] if script is None else [script]
    return shlex.join([*program, *arguments])


def hf_download(repository: str, folder: Path) -> str:
    """Return the command that downloads a model of the Hugging Face Hub into a folder."""
    return shlex.join([_called("hf") or "hf", "download", repository, "--local-dir", near(folder)])


def pip_install(*requirements: str) -> str:
    """Return the command that installs packages beside this installation."""
    pip = _on_path("pip")
    own = pip is not None and Path(pip).parent == Path(sys.executable).parent
    program = ["pip"] if own else [_python(), "-m", "pip"]
    return shlex.join([*program, "install", *requirements])


def pytest_call(*arguments: str) -> str:
    """Return a call of this installation's pytest, installed or about to be."""
    script = _called("pytest")
    program = [_python(), "-m", "pytest"] if script is None else [script]
    return shlex.join([*program, *arguments])


def near(path: Path) -> str:
    """Return a path from the working directory where it lies below, else the whole one."""
    cwd = Path.cwd()
    return str(path.relative_to(cwd) if path.is_relative_to(cwd) else path)


def _called(name: str) -> str | None:
    """Return the shortest way to call a program of this installation: its name where PATH leads to it, else its path.

    The program that runs comes first, then the one beside this interpreter; None where there is neither.
    """
    running, installed = Path(sys.argv[0]).absolute(), Path(sysconfig.get_path("scripts"), name)
    places = [running, installed] if running.name == name else [installed]
    program = next((path for path in places if path.is_file()), None)
    if program is None:
        return None
    found = _on_path(name)
    return name if found is not None and Path(found).samefile(program) else _path_of(program)


def _python() -> str:
    """Return the shortest way to call this interpreter; not by its target, which virtual environments share."""
    for name in ("python", "python3"):
        found = _on_path(name)
        if found is not None and Path(found).absolute() == Path(sys.executable):
            return name
    return _path_of(Path(sys.executable))


def _on_path(name: str) -> str | None:
    """Return what a shell would run: what a runner put on PATH for this process alone does not count."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    if any(variable in os.environ for variable in _RUNNERS):
        own = (sysconfig.get_path("scripts"), str(Path(sys.executable).parent))
        folders = [folder for folder in folders if folder not in own]
    return shutil.which(name, path=os.pathsep.join(folders))


def _path_of(program: Path) -> str:
    """Return a program's path as a shell takes it for one."""
    path = near(program)
    return path if os.sep in path else os.path.join(os.curdir, path)  # noqa: PTH118  (a Path would drop the dot)
