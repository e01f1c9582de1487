"""`LocalSandbox`: a running sandbox of namespaces, as this process sees it.

The sandbox's first process (`inside.first`) starts commands for this one. They share a socket: a request travels on it
together with the descriptors of a command's streams. When it closes, also because this process was killed, the sandbox
ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import attrs

from agentrl_core.api.processes import call_on_thread
from agentrl_core.errors import EnvironmentLostError
from agentrl_harbor.owner import remove_tree
from agentrl_harbor.processes import follow
from agentrl_harbor.sandbox import FOLDERS, UnusableError, parent_and_name

if TYPE_CHECKING:
    from agentrl_harbor.processes import Ended

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Search path of commands; all of these are this machine's own folders."""
_BUILD: Final = (sys.executable, "-I", "-S", "-B", str(Path(__file__).with_name("inside") / "build.py"))
_START_S: Final = 30.0
_RENEW_S: Final = 60.0
_COLLECT_S: Final = 10.0
"""Longest time until a killed command has ended."""
_RUN: Final = b"r"


@attrs.frozen(kw_only=True)
class Ids:
    """Users and groups of this machine that a sandbox has, numbered from 0 on in it."""

    first_user: int
    first_group: int
    count: int
    as_root: bool
    """Whether this process is root, which maps users that are not its own."""


class Inside:
    """The processes of a sandbox."""

    def __init__(self, job: Mapping[str, Any], ids: Ids) -> None:
        """Start them, and wait until they are ready; raise `EnvironmentLostError` with the kernel's refusal."""
        self._lock = threading.Lock()
        self._trainer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._trainer.settimeout(_START_S)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own
                _BUILD, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
                env={"PATH": PATH, "LANG": "C.UTF-8"}, start_new_session=True,
            )  # fmt: skip
        try:
            words = {"num_users": ids.count, "drops_groups": ids.as_root}
            self._trainer.send(json.dumps({**job, **words}).encode())
            self._hear()
            _map_users(self._process.pid, ids)
            self._trainer.send(b"m")
            self._hear()
        except (OSError, EnvironmentLostError) as error:
            self.end()
            raise EnvironmentLostError(str(error)) from error
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Kill all processes of the sandbox: with the first one that was started, the kernel ends the others."""
        self._process.kill()
        self._process.wait()
        self._trainer.close()

    @property
    def has_ended(self) -> bool:
        """Whether the sandbox is gone."""
        return self._process.poll() is not None

    def start(self, request: Mapping[str, Any], *, has_input: bool, with_errors: bool) -> InsideProcess:
        """Start a command."""
        return InsideProcess(self._send, request, has_input=has_input, with_errors=with_errors)

    def renew(self, request: Mapping[str, Any]) -> str:
        """End processes and make folders anew; return what went wrong."""
        with self._lock:
            self._trainer.settimeout(_RENEW_S)
            try:
                self._trainer.send(json.dumps(request).encode())
                return str(self._hear()["problem"])
            except OSError as error:
                raise EnvironmentLostError(f"the sandbox does not answer: {error}") from error

    def _send(self, descriptors: Sequence[int]) -> None:
        with self._lock:
            socket.send_fds(self._trainer, [_RUN], descriptors)

    def _hear(self) -> dict[str, Any]:
        data = self._trainer.recv(65536)
        message: dict[str, Any] = json.loads(data or b'{"refused": "the sandbox has ended"}')
        if "refused" in message:
            raise EnvironmentLostError(message["refused"])
        return message


class InsideProcess:
    """A command in a sandbox; its status arrives on a channel of its own."""

    def __init__(
        self, send: Callable[[Sequence[int]], None], request: Mapping[str, Any], *, has_input: bool, with_errors: bool
    ) -> None:
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
            self._channel, far_channel = socket.socketpair()
            undo.callback(self._channel.close)
            theirs.callback(far_channel.close)
            readable, writable = _pipe(theirs, far=1)
            self.stdout: IO[bytes] = undo.enter_context(open(readable, "rb", buffering=0))  # noqa: PTH123
            self.stdin: IO[bytes] | None = None
            if has_input:
                given, ours = _pipe(theirs, far=0)
                self.stdin = undo.enter_context(open(ours, "wb", buffering=0))  # noqa: PTH123
            else:
                given = _opened(theirs, os.O_RDONLY)
            errors = writable if with_errors else _opened(theirs, os.O_WRONLY)
            # A file in memory: the words of a command may be longer than a message of a socket.
            asked = theirs.enter_context(open(os.memfd_create("request"), "wb", buffering=0))  # noqa: PTH123
            asked.write(json.dumps(request).encode("utf-8", "surrogateescape"))
            asked.seek(0)
            try:
                send([asked.fileno(), far_channel.fileno(), given, writable, errors])
            except OSError as error:
                raise EnvironmentLostError("the sandbox has ended") from error
            undo.pop_all()
        self.watch: int | None = self._channel.fileno()

    def has_exited(self) -> bool:
        """Return whether it has ended, or the whole sandbox."""
        return bool(select.select([self._channel], [], [], 0)[0])

    def kill(self) -> None:
        """Have the sandbox's first process kill it with its group."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)

    def wait(self) -> int:
        """Return its exit code, or minus the number of a signal; raise `EnvironmentLostError` if there is no word."""
        self._channel.settimeout(_COLLECT_S)
        try:
            data = self._channel.recv(4)
        except OSError as error:
            raise EnvironmentLostError(f"the sandbox does not answer: {error}") from error
        if not data:
            raise EnvironmentLostError("the sandbox has ended")
        return int.from_bytes(data, "big", signed=True)

    def close(self) -> None:
        """Close the pipes and the channel."""
        for item in (self.stdin, self.stdout, self._channel):
            if item is not None:
                item.close()


class LocalSandbox:
    """A running sandbox of namespaces."""

    def __init__(
        self, root: Path, inside: Inside, workdir: str, env: Mapping[str, str], *, end: Callable[[], Awaitable[None]]
    ) -> None:
        self._root, self._inside, self._workdir, self._env, self._end = root, inside, workdir, dict(env), end

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        limit_bytes: int,
        env: Mapping[str, str] | None = None,
        user: str | None = None,  # noqa: ARG002 - of the protocol: tasks with other users than root are refused
        workdir: str | None = None,
    ) -> Ended:
        """Run a command by bash; at its deadline its process group is killed."""
        request = {
            "words": ["bash", "-c", command],
            "workdir": workdir or self._workdir,
            "env": {**self._env, **(env or {})},
        }
        return await self._run(request, timeout_s=timeout_s, limit_bytes=limit_bytes)

    async def put(self, archive: bytes, folder: str) -> None:
        """Unpack a tar archive in a folder, which is made."""
        # By a process of the sandbox: links that the agent made then lead nowhere else.
        words = ["sh", "-c", 'mkdir -p "$0" && tar -xf - -C "$0"', folder]
        ended = await self._run(_own(words), timeout_s=60, limit_bytes=1000, stdin=archive)
        if ended.status != 0:
            raise UnusableError(f"files could not be copied to {folder}: {ended.text.strip()[:300]}")

    async def get(self, path: str, *, limit_bytes: int) -> bytes | None:
        """Return a file or folder as tar archive."""
        folder, name = parent_and_name(path)
        words = ["tar", "-cf", "-", "-C", folder, "--", name]
        ended = await self._run(_own(words), timeout_s=60, limit_bytes=limit_bytes, with_errors=False)
        return ended.output if ended.status == 0 else None

    async def renew(self, folders: Sequence[str], *, keep_processes: bool) -> None:
        """End all processes unless they are to stay, and mount empty folders over what the agent may have left."""
        request = {"folders": [[name, FOLDERS[name]] for name in folders], "keep_processes": keep_processes}
        self._check()
        problem = await call_on_thread(lambda: self._inside.renew(request), name="agentrl-harbor")
        if problem:
            raise UnusableError(problem)

    async def close(self) -> None:
        """End all processes, and remove the folder."""
        await self._end()
        await call_on_thread(lambda: remove_tree(self._root), name="agentrl-harbor")

    async def _run(
        self, request: Mapping[str, Any], *, timeout_s: float, limit_bytes: int, stdin: bytes = b"",
        with_errors: bool = True,
    ) -> Ended:  # fmt: skip
        self._check()
        ended = await follow(
            lambda: self._inside.start(request, has_input=bool(stdin), with_errors=with_errors),
            timeout_s=timeout_s, limit_bytes=limit_bytes, stdin=stdin,
        )  # fmt: skip
        # Also after a success: a sandbox that was being killed may still have run the command.
        self._check()
        return ended

    def _check(self) -> None:
        if self._inside.has_ended:
            raise EnvironmentLostError("the sandbox has ended")


def _own(words: Sequence[str]) -> dict[str, Any]:
    """Return the request of a command of ours: it does not look for programs where a task or an agent may put some."""
    return {"words": list(words), "workdir": "/", "env": {"PATH": PATH, "LANG": "C.UTF-8"}}


def _map_users(number: int, ids: Ids) -> None:
    """Give the users of a sandbox to its first user namespace."""
    process = Path("/proc", str(number))
    if not ids.as_root:
        # The kernel accepts an unprivileged gid_map only then.
        (process / "setgroups").write_text("deny", encoding="ascii")
    for name, first in (("gid_map", ids.first_group), ("uid_map", ids.first_user)):
        (process / name).write_text(f"0 {first} {ids.count}", encoding="ascii")


def _pipe(theirs: contextlib.ExitStack, *, far: int) -> tuple[int, int]:
    """Return the two ends of a pipe, of which `theirs` closes the far one."""
    ends = os.pipe()
    theirs.callback(os.close, ends[far])
    return ends


def _opened(theirs: contextlib.ExitStack, flags: int) -> int:
    descriptor = os.open(os.devnull, flags)
    theirs.callback(os.close, descriptor)
    return descriptor
