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
    script = _script()
    program = [_python(), "-m", "agentrl_core"] if script is None else [_typed(script)]
    return shlex.join([*program, *arguments])


def pip_install(*requirements: str) -> str:
    """Return the command that installs packages beside this installation."""
    pip = _on_path("pip")
    own = pip is not None and Path(pip).parent == Path(sys.executable).parent
    program = ["pip"] if own else [_python(), "-m", "pip"]
    return shlex.join([*program, "install", *requirements])


def _script() -> Path | None:
    """Return the program that runs, or else the one that was installed beside this interpreter."""
    running = Path(sys.argv[0]).absolute()
    installed = Path(sysconfig.get_path("scripts"), PROGRAM)
    places = [running, installed] if running.name == PROGRAM else [installed]
    return next((path for path in places if path.is_file()), None)


def _typed(program: Path) -> str:
    """Return the shortest way to call a program: its name where PATH leads to it, else its path."""
    found = _on_path(program.name)
    if found is not None and Path(found).samefile(program):
        return program.name
    return _near(program)


def _python() -> str:
    """Return the shortest way to call this interpreter; not by its target, which virtual environments share."""
    for name in ("python", "python3"):
        found = _on_path(name)
        if found is not None and Path(found).absolute() == Path(sys.executable):
            return name
    return _near(Path(sys.executable))


def _on_path(name: str) -> str | None:
    """Return what a shell would run: what a runner put on PATH for this process alone does not count."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    if any(variable in os.environ for variable in _RUNNERS):
        own = (sysconfig.get_path("scripts"), str(Path(sys.executable).parent))
        folders = [folder for folder in folders if folder not in own]
    return shutil.which(name, path=os.pathsep.join(folders))


def _near(program: Path) -> str:
    """Return the path from the working directory where it lies below, else the whole one."""
    cwd = Path.cwd()
    if not program.is_relative_to(cwd):
        return str(program)
    path = str(program.relative_to(cwd))
    return path if os.sep in path else os.path.join(os.curdir, path)  # noqa: PTH118  (a Path would drop the dot)
