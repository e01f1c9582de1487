"""Script that makes a local sandbox: `python -I -S build.py`, with a socket to the trainer as its standard input.

It builds the sandbox's root folder in a first user namespace, and starts the sandbox's first process in a second one,
which is not allowed to undo any mount of the first. Three processes share the work:

- this one enters the first namespace, and after the builder was forked the second one, and forks the first process;
- the builder stays in the first namespace: it mounts everything, and maps the users of the second;
- the first process (`first.py`) is number 1 of the sandbox. It takes a copy of the mounts, all of which are locked.
"""

from __future__ import annotations

import os
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import json
import signal
import socket
from collections.abc import Mapping
from typing import Any

from agentrl_harbor.inside import first, kernel

_OWN = kernel.NEWPID | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWCGROUP
_LOCKED_IN_PROC = ("sys", "sysrq-trigger", "irq", "bus", "fs")
"""Parts of /proc that change the machine; those that a kernel lacks are left out."""


def main() -> None:
    """Make the sandbox that the first message describes, and wait for its end."""
    with socket.socket(fileno=os.dup(0)) as trainer:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        try:
            number = _start(json.loads(trainer.recv(65536)), trainer)
        except OSError as error:
            trainer.send(json.dumps({"refused": str(error)}).encode())
            return
    os.waitpid(number, 0)


def _start(job: Mapping[str, Any], trainer: socket.socket) -> int:
    """Make the sandbox; return the number of its first process."""
    kernel.unshare(kernel.NEWUSER | kernel.NEWNS)
    trainer.send(b"{}")
    trainer.recv(1)  # the trainer has mapped the users
    ours, builders = socket.socketpair()
    if (builder := os.fork()) == 0:
        ours.close()
        _exit_after(lambda: _build(job, builders), trainer)
    builders.close()
    if job["drops_groups"]:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    kernel.be_dumpable(True)
    kernel.unshare(kernel.NEWUSER | _OWN | (0 if job["host_network"] else kernel.NEWNET))
    kernel.be_dumpable(True)
    _say(ours, os.getpid())
    _hear(ours)  # the builder has mapped the users
    if (number := os.fork()) == 0:
        ours.recv(1)  # its end: the root is built
        _exit_after(lambda: first.serve(trainer, own_network=not job["host_network"]), trainer)
    try:
        _say(ours, number)
        if os.waitpid(builder, 0)[1] != 0:
            raise SystemExit(1)  # noqa: TRY301 - it has told the trainer why
    except BaseException:
        os.kill(number, signal.SIGKILL)
        raise
    ours.close()
    return number


def _build(job: Mapping[str, Any], other: socket.socket) -> None:
    """Mount everything and make the folder the root, for the other processes as well."""
    root = job["root"]
    kernel.make_private()
    kernel.bind(root, root, kernel.NO_SUID | kernel.NO_DEVICES)
    # A folder or file on which something is mounted cannot be renamed or replaced.
    kernel.bind(f"{root}/etc", f"{root}/etc", 0)
    for path in job["system"]:
        kernel.bind(path, root + path, kernel.READ_ONLY | kernel.NO_SUID | kernel.NO_DEVICES)
    for path in job["locked"]:
        kernel.bind(root + path, root + path, kernel.READ_ONLY)
    for path in job["devices"]:
        kernel.bind(path, root + path, kernel.READ_ONLY | kernel.NO_SUID | kernel.NO_EXEC)
    _map_users(_hear(other), job["num_users"])
    _say(other, 0)
    number = _hear(other)
    kernel.enter(f"/proc/{number}/ns/pid", kernel.NEWPID)
    if (child := os.fork()) == 0:
        attributes = kernel.NO_SUID | kernel.NO_DEVICES | kernel.NO_EXEC
        _exit_after(lambda: kernel.mount("proc", f"{root}/proc", attributes), None)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(0, "the kernel does not mount a /proc of its own, perhaps because parts of this one are hidden")
    for name in _LOCKED_IN_PROC:
        if os.path.exists(path := f"{root}/proc/{name}"):
            kernel.bind(path, path, kernel.READ_ONLY)
    kernel.take_root(root)


def _map_users(number: int, count: int) -> None:
    """Give a process in a new namespace all users of this one, under the same numbers."""
    for name in ("gid_map", "uid_map"):
        with open(f"/proc/{number}/{name}", "w", encoding="ascii") as file:
            file.write(f"0 0 {count}")


def _exit_after(work: Any, trainer: socket.socket | None) -> None:
    """Run the part of a forked process, and end it."""
    status = 1
    try:
        work()
        status = 0
    except OSError as error:
        if trainer is not None:
            trainer.send(json.dumps({"refused": str(error)}).encode())
    finally:
        os._exit(status)


def _say(other: socket.socket, number: int) -> None:
    other.sendall(number.to_bytes(4, "big"))


def _hear(other: socket.socket) -> int:
    if not (data := other.recv(4)):
        raise OSError(0, "a part of the sandbox has ended")
    return int.from_bytes(data, "big")


if __name__ == "__main__":
    main()
