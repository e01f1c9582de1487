"""Python environments of other projects, which are not installed beside agentrl."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.report import FOLDER


class UnavailableError(Exception):
    """A peer that cannot be measured here, and why."""


def environment(name: str, *requirements: str | Path, python: str = sys.executable) -> Path:
    """Return a virtual environment with what pip is told to install, made where it is missing."""
    directory = (FOLDER / "envs" / name).absolute()
    if (directory / "bin").exists():
        return directory
    for command in (
        [python, "-m", "venv", str(directory)],
        [str(directory / "bin/python"), "-m", "pip", "install", "-q", *map(str, requirements)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(directory, ignore_errors=True)
            raise UnavailableError(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1:]}")
    return directory
