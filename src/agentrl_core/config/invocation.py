"""Shell commands for hints in messages, in the form that works here: this installation's agentrl, pip and pytest."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

PROGRAM = "agentrl"

_RUNNERS = ("NOX_CURRENT_SESSION", "TOX_ENV_NAME", "UV_RUN_RECURSION_DEPTH")
"""Variables that tell that nox, tox or `uv run` put an environment on PATH for one command only."""


def command_line(*arguments: str) -> str:
    """Return a call of this installation's `agentrl`, for a shell in the working directory.

    `agentrl …` only if PATH leads to this installation; else the program's path, or `python -m agentrl_core` if no
    program is installed.
    """
    script = _called(PROGRAM)
    program = [_python(), "-m", "agentrl_core"] if script is None else [script]
    return shlex.join([*program, *arguments])


def hf_download(repository: str, folder: Path) -> str:
    """Return the command that downloads a model of the Hugging Face Hub into a folder."""
    return shlex.join([_called("hf") or "hf", "download", repository, "--local-dir", near(folder)])


def pip_install(*requirements: str) -> str:
    """Return the command that installs packages into this installation's environment."""
    pip = _on_path("pip")
    own = pip is not None and Path(pip).parent == Path(sys.executable).parent
    program = ["pip"] if own else [_python(), "-m", "pip"]
    return shlex.join([*program, "install", *requirements])


def pytest_call(*arguments: str) -> str:
    """Return a call of this installation's pytest, whether or not it is installed yet."""
    script = _called("pytest")
    program = [_python(), "-m", "pytest"] if script is None else [script]
    return shlex.join([*program, *arguments])


def near(path: Path) -> str:
    """Return a path relative to the working directory if it lies below, else the whole path."""
    try:
        cwd = Path.cwd()
    except FileNotFoundError:  # the directory was removed, for example by an agent
        return str(path)
    return str(path.relative_to(cwd) if path.is_relative_to(cwd) else path)


def is_in_runs(directory: Path) -> bool:
    """Return whether a run's directory is in the folder `runs`, where commands find it by its name."""
    try:
        return directory.parent == Path("runs").resolve()
    except FileNotFoundError:  # as above
        return False


def _called(name: str) -> str | None:
    """Return the shortest call of a program of this installation: its name if PATH leads to it, else its path.

    Prefers the program that is running, then the one beside this interpreter; None if there is neither.
    """
    running, installed = Path(sys.argv[0]), Path(sysconfig.get_path("scripts"), name)
    with contextlib.suppress(FileNotFoundError):  # the working directory was removed
        running = running.absolute()
    places = [running, installed] if running.name == name else [installed]
    program = next((path for path in places if path.is_file()), None)
    if program is None:
        return None
    found = _on_path(name)
    return name if found is not None and Path(found).samefile(program) else _path_of(program)


def _python() -> str:
    """Return the shortest call of this interpreter; links are kept, because virtual environments share a target."""
    for name in ("python", "python3"):
        found = _on_path(name)
        if found is not None and Path(found).absolute() == Path(sys.executable):
            return name
    return _path_of(Path(sys.executable))


def _on_path(name: str) -> str | None:
    """Return the program that a shell would run; ignores folders that a runner put on PATH for this process alone."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    if any(variable in os.environ for variable in _RUNNERS):
        own = (sysconfig.get_path("scripts"), str(Path(sys.executable).parent))
        folders = [folder for folder in folders if folder not in own]
    return shutil.which(name, path=os.pathsep.join(folders))


def _path_of(program: Path) -> str:
    """Return a program's path in a form that a shell takes for a path."""
    # A shell searches a name without a separator on PATH, not in the working directory.
    path = near(program)
    return path if os.sep in path else os.path.join(os.curdir, path)  # noqa: PTH118  (a Path would drop the dot)
