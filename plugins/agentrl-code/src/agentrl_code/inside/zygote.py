"""Runs programs in sandboxes: a fresh interpreter that holds nothing of the trainer's, forked anew for each of them.

Started by `agentrl_code.sandbox` with a socket, over which it gets, for each sandbox, one for its job and one for the
channel between a test and the program, if any. Its fork reads the job, forks again into namespaces, and watches that
process from outside: neither is ever where a program can reach.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import fcntl
import gc
import json
import random  # noqa: F401 - what programs import often is imported once, here
import re  # noqa: F401
import select
import signal
import socket
import struct
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from agentrl_code.inside import calls, confine, judge, program, root
from agentrl_code.inside.levels import FULL, LIMITS

del sys.path[0]  # the folder of installed packages: programs import Python's own modules

_GRACE_S = 30.0
"""Longest that a process may take to be confined."""
_ERRORS_KEPT = 4096
_WATCH_S, _END_S = 0.05, 0.002
_TOO_MUCH = "it printed too much"
_REWRITES = 8
"""Times that a program may write the size of its files; removed files that it keeps open have no name to count by."""
_CHANNEL, _READY, _GO = 3, 4, 5


def main() -> None:
    """Serve until the trainer is gone."""
    os.umask(0o022)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for sandboxes; those wait for their programs
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's to handle
    control = socket.socket(fileno=int(sys.argv[1]))
    if calls.supported():
        for shared_files in (False, True):
            calls.compiled_filter(shared_files=shared_files)
        root.outermost(_readable([]))
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not message:
            return
        try:
            if os.fork() == 0:
                control.close()
                _sandbox(socket.socket(fileno=descriptors[0]), descriptors[1:])
        except OSError:  # no room for another process: the trainer sees that there is no report
            traceback.print_exc()
        for descriptor in descriptors:
            os.close(descriptor)


def _readable(packages: Sequence[str]) -> tuple[str, ...]:
    """Return what a program may read: the system's libraries, Python, and packages on request."""
    python = (sys.base_prefix, sys.base_exec_prefix, *sys.path)
    return (*root.SYSTEM, *root.DEVICES, *python, *packages)


def _sandbox(trainer: socket.socket, channel: list[int]) -> NoReturn:
    """Run one job and report: `{"ready": …}` once it is confined, then how it ended."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        job = _receive(trainer)
        if os.geteuid() == 0:
            os.setgroups([])
        job["uid"], job["gid"] = (confine.NOBODY,) * 2 if os.geteuid() == 0 else (os.geteuid(), os.getegid())
        job["readable"] = _readable(job["packages"])
        try:
            _run(job, trainer, channel)
        except OSError as error:
            _send(trainer, {"refused": str(error)})
    except BrokenPipeError:  # the trainer asks no more
        pass
    except BaseException:  # noqa: BLE001 - nobody is above; the trainer sees that there is no report
        traceback.print_exc()
    finally:
        os._exit(0)


def _run(job: dict[str, Any], trainer: socket.socket, channel: list[int]) -> None:
    _prepare(job)
    stdin = _input(job)
    (out, say), (err, say_errors), (ready, be_ready), (go, let_go) = (os.pipe() for _ in range(4))
    pid = confine.clone_into_namespaces() if job["level"] == FULL else os.fork()
    if pid == 0:
        _be_the_program(job, [stdin, say, say_errors, *(channel or [stdin]), be_ready, go])
    for descriptor in (stdin, say, say_errors, be_ready, go, *channel):
        os.close(descriptor)
    try:
        if job["level"] == FULL:
            confine.map_identity(pid, job["uid"], job["gid"])
        os.write(let_go, b"!")
        os.close(let_go)
        if problem := _wait_until_ready(ready, trainer):
            raise OSError(problem)
        _send(trainer, {"ready": True})
        printed, why = _watch(pid, out, err, trainer, job)
    finally:
        status = _end(pid)
    for descriptor in (out, err):
        printed[descriptor] += _rest(descriptor, job["output_kb"] * 1024)
    if not why and len(printed[out]) > job["output_kb"] * 1024:
        why = _TOO_MUCH
    texts = [bytes(part).decode(errors="replace") for part in (printed[out], printed[err][-_ERRORS_KEPT:])]
    _send(trainer, {"status": status, "why": why, "out": texts[0], "err": texts[1]})


def _prepare(job: Mapping[str, Any]) -> None:
    """Hand the folder over to who runs the program. Raises OSError where that one could not run Python."""
    if job["level"] == FULL or os.geteuid() != 0:
        return
    if job["level"] == LIMITS and not confine.reachable(os.__file__):
        raise OSError(f"as root, programs run as nobody, who cannot read Python's {os.__file__}")
    os.chown(job["folder"], job["uid"], job["gid"])


def _input(job: Mapping[str, Any]) -> int:
    """Return a descriptor from which the program reads its input, and to which nobody can write."""
    data = job["input"].encode("utf-8", "surrogatepass")
    if hasattr(os, "memfd_create"):
        written = os.memfd_create("input")
        with open(written, "wb", closefd=False) as file:
            file.write(data)
        reading = os.open(f"/proc/self/fd/{written}", os.O_RDONLY)
        os.close(written)
        return reading
    with tempfile.NamedTemporaryFile(dir=job["folder"]) as file:
        file.write(data)
        file.flush()
        return os.open(file.name, os.O_RDONLY)


def _be_the_program(job: Mapping[str, Any], descriptors: list[int]) -> NoReturn:
    """Become confined, tell so, run what the job says, and end."""
    try:
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in descriptors]
        for place, descriptor in enumerate(high):
            os.dup2(descriptor, place)
        os.closerange(_GO + 1, 65536)
        os.setsid()
        os.read(_GO, 1)
        os.close(_GO)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        home = "/box" if job["level"] == FULL else job["folder"]
        os.environ.update({"HOME": home, "TMPDIR": home})
        sys.path.extend(job["packages"])
        confine.confine(job)
    except BaseException as error:  # noqa: BLE001 - nobody is above; the trainer is told
        os.write(_READY, (str(error) or type(error).__name__).encode()[:1000])
        os._exit(1)
    os.write(_READY, b"\0")
    os.close(_READY)
    if job["role"] == "script":
        os.close(_CHANNEL)
        code = program.run_script(job["code"])
    else:
        code = (program.serve if job["role"] == "serve" else judge.judge)(job["code"], _CHANNEL)
    os._exit(code)


def _wait_until_ready(ready: int, trainer: socket.socket) -> str:
    """Return an empty text, or what kept the process from being confined."""
    said = b""
    deadline = time.monotonic() + _GRACE_S
    while not said.endswith(b"\0"):
        found, _, _ = select.select([ready, trainer.fileno()], [], [], max(deadline - time.monotonic(), 0))
        if trainer.fileno() in found or not found:
            return "it took too long to be confined"
        data = os.read(ready, 4096)
        if not data:
            return said.decode(errors="replace") or "the process ended while it was being confined"
        said += data
    os.close(ready)
    return ""


def _watch(
    pid: int, out: int, err: int, trainer: socket.socket, job: Mapping[str, Any]
) -> tuple[dict[int, bytearray], str]:
    """Read what a program prints until it ends, takes too long or too much, or the trainer asks no more; say which."""
    deadline = time.monotonic() + job["timeout_s"]
    printed = {out: bytearray(), err: bytearray()}
    poll, streams = select.poll(), {out, err}
    for descriptor in (out, err, trainer.fileno()):
        poll.register(descriptor, select.POLLIN)
    while streams or not _has_ended(pid):
        left = deadline - time.monotonic()
        if left <= 0:
            return printed, "it took too long"
        for descriptor, _ in poll.poll(min(left, _WATCH_S if streams else _END_S) * 1000):
            if descriptor == trainer.fileno():
                raise BrokenPipeError
            data = os.read(descriptor, 65536)
            printed[descriptor] += data
            if not data:
                poll.unregister(descriptor)
                streams.discard(descriptor)
        del printed[err][:-_ERRORS_KEPT]
        if len(printed[out]) > job["output_kb"] * 1024:
            return printed, _TOO_MUCH
        if job["level"] != FULL and _writes_too_much(pid, job):
            return printed, "it wrote too much"
        if streams and _has_ended(pid):
            break  # something else holds them
    return printed, ""


def _has_ended(pid: int) -> bool:
    """Whether a child has ended; how it did, `_end` returns."""
    if pid not in _ended:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            _ended[pid] = status
    return pid in _ended


_ended: dict[int, int] = {}


def _writes_too_much(pid: int, job: Mapping[str, Any]) -> bool:
    """Whether the files of a program are too large together, or it has written so often that hidden ones may be."""
    most = int(job["file_mb"]) << 20
    return _written(job["folder"]) > most or _passed_on(pid) > _REWRITES * most + int(job["output_kb"]) * 1024


def _passed_on(pid: int) -> int:
    """Return the bytes that a process has given to calls that write, to whatever; 0 where that is not told."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("wchar"))
    except (OSError, StopIteration):
        return 0


def _written(folder: str) -> int:
    """Return the bytes of all that is in a folder, each file counting as one block at least."""
    return sum(4096 + size for size in _sizes(folder))


def _sizes(folder: str) -> Iterator[int]:
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            try:
                yield os.lstat(os.path.join(place, name)).st_blocks * 512
            except OSError:  # removed meanwhile
                continue


def _end(pid: int) -> int:
    """Kill a process with its namespaces, and with its group; return how it had ended, or was ended."""
    ended = _has_ended(pid)
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it made no group, or nothing is left of that
        if not ended:
            os.kill(pid, signal.SIGKILL)
    status = _ended[pid] if ended else os.waitpid(pid, 0)[1]
    return os.waitstatus_to_exitcode(status)


def _rest(descriptor: int, limit: int) -> bytes:
    """Return what a program that has ended left unread."""
    os.set_blocking(descriptor, False)
    data = b""
    try:
        while len(data) <= limit and (part := os.read(descriptor, 65536)):
            data += part
    except BlockingIOError:  # somebody else holds the other end
        pass
    return data


def _receive(trainer: socket.socket) -> Any:
    with trainer.makefile("rb") as file:
        if len(head := file.read(4)) < 4:  # noqa: PLR2004 - the bytes of a length
            raise BrokenPipeError
        return json.loads(file.read(*struct.unpack("!I", head)))


def _send(trainer: socket.socket, message: Mapping[str, Any]) -> None:
    data = json.dumps(message).encode("ascii")
    trainer.sendall(struct.pack("!I", len(data)) + data)


if __name__ == "__main__":
    main()
