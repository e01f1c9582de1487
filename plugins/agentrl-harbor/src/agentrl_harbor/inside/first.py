"""First process of a local sandbox: start the trainer's commands in it, and collect the processes that end.

It keeps the rights that commands do not have, so that no process of the sandbox can reach into it, and handles no
signal, so that none of them can end it. When it ends, the kernel ends all others.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import select
import signal
import socket
import stat
import sys
import warnings  # noqa: F401 - `os.execvpe` imports it, and then nothing can be imported any more
from collections.abc import Mapping
from typing import Any, NoReturn

from agentrl_harbor.inside import calls, kernel

_RUN = b"r"
"""Message that comes with the descriptors of a command; all others are requests to renew folders."""
_NUM_DESCRIPTORS = 5
_NOT_STARTED = 126
_NO_CORE = 1
"""Limit on core files. Unlike 0, it also keeps the kernel from giving them to a program of the machine."""


def serve(trainer: socket.socket, *, own_network: bool) -> NoReturn:
    """Take a locked copy of the mounts, report that the sandbox is ready, and serve until the trainer has gone."""
    kernel.unshare(kernel.NEWNS)
    os.chdir("/")
    os.umask(0o022)
    sys.meta_path.clear()  # the files of the sandbox are the agent's: no module may come from there
    socket.sethostname("sandbox")
    if own_network:
        kernel.bring_loopback_up()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    kernel.be_dumpable(False)
    kernel.end_with_parent(signal.SIGKILL)
    trainer.send(b"{}")
    _Server(trainer).serve()


class _Server:
    """Keeper of the commands that run, each with a channel on which the trainer gets its status."""

    def __init__(self, trainer: socket.socket) -> None:
        self._trainer = trainer
        self._channels: dict[int, socket.socket] = {}
        self._filter = calls.filter_lines(platform.machine())
        self._poll = select.poll()

    def serve(self) -> NoReturn:
        """Serve requests, and end with the trainer."""
        woken, wake = os.pipe()
        for descriptor in (woken, wake):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for descriptor in (woken, self._trainer.fileno()):
            self._poll.register(descriptor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll()}
            # In this order: the other two close channels, and open new ones under the same numbers.
            for descriptor in ready - {woken, self._trainer.fileno()}:
                self._end_command(descriptor)
            if woken in ready:
                os.read(woken, 4096)
                self._collect(os.WNOHANG)
            if self._trainer.fileno() in ready:
                self._take_request()

    def _take_request(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self._trainer, 65536, _NUM_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not message:
            os._exit(0)
        if message != _RUN:
            self._trainer.send(json.dumps({"problem": self._renewed(json.loads(message))}).encode())
            return
        request, channel, *streams = descriptors
        try:
            number = os.fork()
        except OSError as error:  # the agent may have used up the numbers of processes
            os.write(streams[-1], f"the command was not started: {error}\n".encode())
            os.write(channel, _packed(_NOT_STARTED))
        else:
            if number == 0:
                self._be_command(request, streams)
            # Only the end of the trainer's side counts: then the command is killed.
            kept = socket.socket(fileno=os.dup(channel))
            self._channels[number] = kept
            self._poll.register(kept, select.POLLRDHUP)
        for descriptor in descriptors:
            os.close(descriptor)

    def _be_command(self, request: int, streams: list[int]) -> NoReturn:
        try:
            with open(request, "rb") as file:
                job = json.loads(file.read().decode("utf-8", "surrogateescape"))
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            for place, descriptor in enumerate(streams):
                os.dup2(descriptor, place)
            os.closerange(3, 65536)
            kernel.be_dumpable(True)  # else /proc/self is not its own
            with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
                file.write(b"1000")  # when memory is short, commands go before this server and the trainer
            resource.setrlimit(resource.RLIMIT_CORE, (_NO_CORE, _NO_CORE))
            # In this order: as soon as it has no more rights than other commands, those can reach into it.
            kernel.filter_calls(self._filter)
            kernel.drop_capabilities()
            os.chdir(job["workdir"])
            os.execvpe(job["words"][0], job["words"], job["env"])  # noqa: S606 - the trainer's command
        except OSError as error:
            os.write(2, f"the command was not started: {error}\n".encode())
        finally:
            os._exit(_NOT_STARTED)

    def _end_command(self, descriptor: int) -> None:
        """Kill a command with its process group; its status still goes to the trainer."""
        self._poll.unregister(descriptor)
        number = next(number for number, channel in self._channels.items() if channel.fileno() == descriptor)
        for kill in (os.killpg, os.kill):  # it may not have a group yet
            with contextlib.suppress(ProcessLookupError):
                kill(number, signal.SIGKILL)

    def _collect(self, options: int) -> None:
        """Collect processes that have ended, also those whose parents have; without options, wait for all."""
        while True:
            try:
                number, status = os.waitpid(-1, options)
            except ChildProcessError:
                return
            if number == 0:
                return
            if (channel := self._channels.pop(number, None)) is not None:
                with contextlib.suppress(KeyError):  # it was killed
                    self._poll.unregister(channel)
                with channel, contextlib.suppress(OSError):  # the trainer has gone
                    channel.send(_packed(os.waitstatus_to_exitcode(status)))

    def _renewed(self, request: Mapping[str, Any]) -> str:
        """End all processes unless they are to stay, and make folders anew; return what went wrong."""
        try:
            if not request["keep_processes"]:
                # The kernel signals all of them at once, and a process that is just being forked is one of them.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
                self._collect(0)
            for folder, mode in request["folders"]:
                _make_anew(folder, mode)
        except OSError as error:
            return str(error)
        return ""


def _make_anew(folder: str, mode: str) -> None:
    """Mount an empty file system on a folder, whatever lies there or in the way."""
    path = ""
    for name in folder.strip("/").split("/"):
        path += f"/{name}"
        if os.path.lexists(path) and not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
        if not os.path.lexists(path):
            os.mkdir(path)
    kernel.mount("tmpfs", folder, kernel.NO_SUID | kernel.NO_DEVICES, f"mode={mode}")


def _packed(status: int) -> bytes:
    return status.to_bytes(4, "big", signed=True)
