"""`Sandbox` and `Provider`: what an episode works in, and what makes it; transfer of files as tar archives."""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from agentrl_harbor.processes import Ended
    from agentrl_harbor.task_dir import Definition, TaskDir


class UnusableError(Exception):
    """A sandbox runs, but what was asked cannot be done in the state that the agent has left it in."""


class Sandbox(Protocol):
    """A running environment of one task. Its methods raise `EnvironmentLostError` once it is gone."""

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        limit_bytes: int,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        workdir: str | None = None,
    ) -> Ended:
        """Run a command by bash, in the environment's working directory if none is given."""
        ...

    async def put(self, archive: bytes, folder: str) -> None:
        """Unpack a tar archive in a folder, which is made; raise `UnusableError` if that fails."""
        ...

    async def get(self, path: str, *, limit_bytes: int) -> bytes | None:
        """Return a file or folder as tar archive, whose names begin with that of the path; None if there is none."""
        ...

    async def renew(self, folders: Sequence[str], *, keep_processes: bool) -> None:
        """End all processes unless they are to stay, and make some of `FOLDERS` anew, empty, after the agent's end.

        Raises `UnusableError` if that fails.
        """
        ...

    async def close(self) -> None:
        """End all its processes and remove what it has written."""
        ...


class Provider(Protocol):
    """Makes sandboxes."""

    async def start(self) -> None:
        """Check that sandboxes can be made, and remove those of runs that were killed; raise `ToolServerError`."""
        ...

    def refusal(self, task: TaskDir) -> str:
        """Return why this provider cannot run a task; empty if it can."""
        ...

    def has_network(self, definition: Definition) -> bool:
        """Return whether a sandbox reaches other machines, if this one does."""
        ...

    async def open(self, definition: Definition) -> Sandbox:
        """Make a sandbox; raise `EnvironmentLostError` if that fails."""
        ...

    async def close(self) -> None:
        """Remove what `start` made."""
        ...


LOGS: Final = ("logs/agent", "logs/verifier", "logs/artifacts")
"""Folders that every sandbox has, to which all of its users may write."""
TESTS: Final = "/tests"
VERIFIER_LOGS: Final = "/logs/verifier"
FOLDERS: Final = {TESTS: "755", VERIFIER_LOGS: "777"}
"""Folders that are made anew for a verifier, and their modes."""


def pack(folder: Path) -> bytes:
    """Return the content of a folder as tar archive, owned by root; scripts can be executed, other modes are kept."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, arcname=path.relative_to(folder).as_posix(), recursive=False, filter=_of_root)
    return buffer.getvalue()


def pack_file(name: str, data: bytes) -> bytes:
    """Return one file as tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


async def read_file(sandbox: Sandbox, path: str, *, limit_bytes: int) -> bytes | None:
    """Return the content of a regular file; None if there is none, ValueError if it is too large."""
    # A tar archive is padded to blocks of 10,240 bytes.
    packed = await sandbox.get(path, limit_bytes=limit_bytes + 20_480)
    if packed is None:
        return None
    try:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            member = archive.next()
            file = None if member is None or not member.isreg() else archive.extractfile(member)
            data = None if file is None else file.read(limit_bytes + 1)
    except tarfile.TarError as error:
        raise ValueError(f"{path} is larger than {limit_bytes:,} bytes") from error
    if data is not None and len(data) > limit_bytes:
        raise ValueError(f"{path} is larger than {limit_bytes:,} bytes")
    return data


def parent_and_name(path: str) -> tuple[str, str]:
    """Return the folder and the last part of a path in a sandbox."""
    return posixpath.split(posixpath.normpath(path))


def _of_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    if info.name.endswith(".sh"):
        info.mode |= 0o555
    return info
