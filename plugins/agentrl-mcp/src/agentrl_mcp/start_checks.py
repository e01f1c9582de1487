"""Checks of a server's place before a run loads anything: its program, its script, and its address."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from agentrl_core.api.http import Backoff, proxy_of
from agentrl_core.api.options import did_you_mean
from agentrl_core.errors import ConfigError

PYTHONS = frozenset({"python", "python3"})
"""Names in `command` for the interpreter of the run."""

_PROGRAMS = (*PYTHONS, "node", "npx", "bun", "bunx", "deno", "uv", "uvx", "docker", "podman", "bash", "sh")
"""Programs that usually start servers, for hints."""
_INTERPRETERS = frozenset({*PYTHONS, Path(sys.executable).name, "node", "bun", "bash", "sh"})
"""Programs whose first argument is a script of this machine."""
_SCRIPTS = frozenset({".py", ".js", ".mjs", ".cjs", ".ts", ".sh"})
_CODE = frozenset({"-c", "-m", "-e", "--eval", "-p", "--print"})
_BACKOFF = Backoff(first_s=0.1, longest_s=1.0)
_CONNECT_S = 5.0


def check_command(command: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
    """Raise `ConfigError` for a program that is not installed, or a script that is not there."""
    program, *arguments = command
    if os.sep in program:
        _check_file(program, folder)
    elif program not in PYTHONS and shutil.which(program, path=env.get("PATH")) is None:
        hint = did_you_mean(program, _PROGRAMS)
        raise ConfigError(f"command: there is no program '{program}' on the PATH{hint or '; install it'}")
    # Up to an option that brings code or a module: what follows are arguments of those.
    plain = itertools.takewhile(lambda item: item not in _CODE, arguments)
    script = next((item for item in plain if not item.startswith("-")), "")
    if Path(program).name in _INTERPRETERS and Path(script).suffix in _SCRIPTS:
        _check_file(script, folder)


def _check_file(written: str, folder: Path) -> None:
    path = folder / written
    if not path.is_file():
        near = did_you_mean(path.name, [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else ())
        place = "" if Path(written).is_absolute() else f" beside the config, in {folder}"
        raise ConfigError(f"command: there is no {written}{place}{near}")


def check_address(url: str, proxy: str | None, limit_s: float) -> None:
    """Wait until a server accepts connections; raise `ConfigError` if it does not within `limit_s`."""
    parts = urlsplit(url)
    if proxy_of(url, proxy) is not None:
        return
    address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    end, tries = time.monotonic() + limit_s, 0
    while True:
        try:
            socket.create_connection(address, timeout=min(_CONNECT_S, limit_s)).close()
        except OSError as error:
            wait_s = _BACKOFF.wait_s(tries)
            if time.monotonic() + wait_s > end:
                raise ConfigError(
                    f"url: no connection to {parts.scheme}://{parts.netloc} within {limit_s:g} s "
                    f"({error.strerror or error}); start the server, or correct the address"
                ) from None
            tries += 1
            time.sleep(wait_s)
        else:
            return
