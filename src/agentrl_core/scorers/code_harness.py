"""Runs a program's tests, each in a process of its own with limits; a script that needs nothing but Python.

Started by `agentrl_core.scorers.sandbox`. Reads a job from stdin and writes one line, the job's token and a report,
to stdout. Only this process holds that stream; the program gets others. What a test's process says about itself counts
only with a token made for that test, on a pipe that is not the program's output.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import resource
import secrets
import select
import signal
import struct
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP = 1, 4, 22
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_NOBODY = 65534
_MB = 1 << 20
_LONGEST_WHY = 500

# Per architecture: its number for seccomp, and the calls that start processes and threads, send signals, open sockets,
# or look into other processes: fork, vfork, clone, execve, socket, ptrace, kill, tkill, tgkill, process_vm_readv and
# _writev, execveat, unshare, setns, mount; then those with the same number everywhere: pidfd_send_signal,
# io_uring_setup, clone3, pidfd_getfd.
_EVERYWHERE = (424, 425, 435, 438)
_DENIED: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (0xC000003E, (57, 58, 56, 59, 41, 101, 62, 200, 234, 310, 311, 322, 272, 308, 165, *_EVERYWHERE)),
    "aarch64": (0xC00000B7, (220, 221, 198, 117, 129, 130, 131, 270, 271, 281, 97, 268, 40, *_EVERYWHERE)),
}
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_READS, _WRITES, _TRUNCATE, _KNOWS_TRUNCATE = 0xD, 0x1FF2, 0x4000, 3
"""Landlock's rights: running and reading files and listing folders; writing to files, removing and making files,
folders, links and devices; cutting files, from that version on."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc", "/bin")


def main() -> None:
    """Run the job on stdin."""
    job = json.load(sys.stdin)
    libc = ctypes.CDLL(None, use_errno=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    isolation = _drop_privileges(job["folder"])
    if sys.platform == "linux":
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # the program shall not read the token here
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    deadline = time.monotonic() + job["timeout_s"]
    results = []
    for number, test in enumerate(job["tests"]):
        results.append(_run_test(job, test, number, deadline, libc))
        if results[-1]["why"] and not job["go_on"]:
            break
    isolation += next((result.pop("isolation") for result in results if "isolation" in result), [])
    report = {"why": [result["why"] for result in results], "isolation": isolation}
    sys.stdout.write(f"{job['token']} {json.dumps(report)}\n")


def _drop_privileges(folder: str) -> list[str]:
    """As root, become nobody, where nobody can read this interpreter's library."""
    if os.geteuid() != 0 or not _readable_by_all(os.__file__):
        return []
    try:
        os.chown(folder, _NOBODY, _NOBODY)
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    except OSError:
        return []
    return ["user"]


def _readable_by_all(path: str) -> bool:
    while path != "/":
        if not os.stat(path).st_mode & (0o001 if os.path.isdir(path) else 0o004):
            return False
        path = os.path.dirname(path)
    return True


def _run_test(
    job: Mapping[str, Any], test: Mapping[str, Any], number: int, deadline: float, libc: ctypes.CDLL
) -> dict[str, Any]:
    """Run the program with one test in a process; `why` is empty where it passed."""
    if time.monotonic() >= deadline:
        return {"why": "not run: the time was over"}
    folder = os.path.join(job["folder"], str(number))
    os.mkdir(folder)
    told, tell = os.pipe()
    said, say = os.pipe()
    token = secrets.token_hex(16)
    with tempfile.TemporaryFile(dir=folder) as stdin:
        stdin.write(test.get("input", "").encode())
        stdin.seek(0)
        pid = os.fork()
        if pid == 0:
            _be_the_program(job, test, folder, (stdin.fileno(), say, tell), token, libc)
    os.close(tell)
    os.close(say)
    try:
        output, verdict, why = _listen(said, told, job["output_kb"] * 1024, deadline)
    finally:
        os.close(told)
        os.close(said)
        status = _end(pid)
    lines = verdict.decode(errors="replace").split("\n")
    result: dict[str, Any] = {"why": why, "isolation": lines[0].split()}
    if not why:
        result["why"] = _judge(test, output, lines[1:], token, status)
    return result


def _judge(test: Mapping[str, Any], output: bytes, lines: list[str], token: str, status: int) -> str:
    """Say why a test that ended by itself is not passed."""
    reason = " ".join(line for line in lines if line != token)[:_LONGEST_WHY]
    if token not in lines:
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        return reason or f"it ended before the test did, with {how}"
    if "output" not in test or _lines(output.decode(errors="replace")) == _lines(test["output"]):
        return ""
    return f"it printed {output.decode(errors='replace')[:100]!r}, expected {test['output'][:100]!r}"


def _lines(text: str) -> list[str]:
    """Return the lines of an output; white space at their ends, and empty lines at its end, do not count."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _listen(said: int, told: int, limit: int, deadline: float) -> tuple[bytes, bytes, str]:
    """Read what the program prints and what its process tells, until both are closed, or it is too much or too late."""
    streams = {said: bytearray(), told: bytearray()}
    open_streams = set(streams)
    while open_streams:
        ready = select.select(list(open_streams), [], [], max(deadline - time.monotonic(), 0))[0]
        if not ready:
            return bytes(streams[said]), bytes(streams[told]), "it took too long"
        for stream in ready:
            data = os.read(stream, 65536)
            streams[stream] += data
            if not data:
                open_streams.discard(stream)
        if len(streams[said]) > limit or len(streams[told]) > limit + _LONGEST_WHY * 4:
            return bytes(streams[said]), bytes(streams[told]), "it printed too much"
    return bytes(streams[said]), bytes(streams[told]), ""


def _end(pid: int) -> int:
    """Kill a test's process with its group, then whatever it left behind; return how it ended by itself."""
    for _ in range(20):  # both streams are closed: it is about to end, if it has not
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            break
        time.sleep(0.002)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for _ in range(1000):
        orphans = list(_children())
        if not orphans:
            break
        for orphan in orphans:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(orphan, signal.SIGKILL)
                os.waitpid(orphan, 0)
    return os.waitstatus_to_exitcode(status)


def _children() -> Iterator[int]:
    """Find this process's children; those of a dead program have become so."""
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8") as file:
                if int(file.read().rpartition(")")[2].split()[1]) == os.getpid():
                    yield int(name)


def _be_the_program(
    job: Mapping[str, Any],
    test: Mapping[str, Any],
    folder: str,
    streams: tuple[int, int, int],
    token: str,
    libc: ctypes.CDLL,
) -> NoReturn:
    """Put limits on this process, run the program and its test in it, and end it."""
    tell = -1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgid(0, 0)
        stdin, say, tell = streams
        for stream, place in ((stdin, 0), (say, 1), (say, 2)):
            os.dup2(stream, place)
        kept = secrets.randbelow(200) + 20
        tell = kept if os.dup2(tell, kept) else tell
        os.closerange(3, kept)
        os.closerange(kept + 1, 256)
        os.chdir(folder)
        os.write(tell, f"{' '.join(_limit(job, libc))}\n".encode())
        why = _run(job["program"], test)
        for stream_object in (sys.stdout, sys.stderr):
            stream_object.flush()
        os.write(tell, (why or token).encode()[:_LONGEST_WHY])
    except BaseException as error:  # noqa: BLE001 - there is nobody above
        with contextlib.suppress(BaseException):
            os.write(tell, f"{type(error).__name__}: {error}".encode()[:_LONGEST_WHY])
    os._exit(0)


def _run(program: str, test: Mapping[str, Any]) -> str:
    """Run the program, then the test's asserts; say what it raised."""
    name = "__main__" if "output" in test else "answer"
    module = types.ModuleType(name)
    sys.modules[name] = module
    sys.argv = ["answer.py"]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (as long as the process)
    try:
        exec(compile(program, "answer.py", "exec"), vars(module))  # noqa: S102 - what it is for (that is what this is for)
        if "asserts" in test:
            exec(compile(test["asserts"], "test.py", "exec"), vars(module))  # noqa: S102 - what it is for
    except SystemExit as error:
        if "asserts" in test or error.code not in (None, 0):
            return f"SystemExit: {error.code}"
    except BaseException as error:  # noqa: BLE001 - whatever it is, it fails the test
        return f"{type(error).__name__}: {error}"
    return ""


def _limit(job: Mapping[str, Any], libc: ctypes.CDLL) -> list[str]:
    """Limit what this process can take and do; name the means that work here."""
    cpu = int(job["timeout_s"]) + 1
    for kind, value in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, job["memory_mb"] * _MB),
        (resource.RLIMIT_FSIZE, job["file_mb"] * _MB),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_NPROC, 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # a lower limit is there already
            resource.setrlimit(kind, (value, value))
    if sys.platform != "linux":
        return []
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    means = {"files": _only_these_files(libc), "calls": _deny_calls(libc)}
    return [name for name, works in means.items() if works]


def _only_these_files(libc: ctypes.CDLL) -> bool:
    """Let files be read in Python's folders and the system's, and changed in the working folder alone, by Landlock."""
    syscall = libc.syscall
    version = syscall(_LANDLOCK_CREATE, None, 0, 1)
    rights = _READS | _WRITES | (_TRUNCATE if version >= _KNOWS_TRUNCATE else 0)
    ruleset = syscall(_LANDLOCK_CREATE, struct.pack("Q", rights), 8, 0)
    if ruleset < 0:
        return False
    allowed_at = dict.fromkeys((*_SYSTEM, sys.prefix, sys.base_prefix, *sys.path), _READS)
    allowed_at |= {**dict.fromkeys(_DEVICES, 0x6), ".": rights}  # 0x6: reading and writing a file
    for path, allowed in allowed_at.items():
        if not path or not os.path.exists(path):
            continue
        place = os.open(path, os.O_PATH)
        known = 0xFFFF if os.path.isdir(path) else 0x7
        rule = struct.pack("=Qi", allowed & known, place)
        syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0)
        os.close(place)
    restricted: int = syscall(_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)
    return restricted == 0


def _deny_calls(libc: ctypes.CDLL) -> bool:
    """Make the calls of `_DENIED` fail, by a seccomp filter."""
    architecture, numbers = _DENIED.get(platform.machine(), (0, ()))
    if not numbers:
        return False
    load, equal, at_least, end = 0x20, 0x15, 0x35, 0x06
    code = [(load, 0, 0, 4), (equal, 1, 0, architecture), (end, 0, 0, 0x80000000), (load, 0, 0, 0)]
    code.append((at_least, len(numbers) + 1, 0, 0x40000000))  # another numbering of the same calls
    code += [(equal, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
    code += [(end, 0, 0, 0x7FFF0000), (end, 0, 0, 0x00050001)]  # allow; fail with EPERM
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    header = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(program))
    return bool(libc.prctl(_PR_SET_SECCOMP, 2, header, 0, 0) == 0)


if __name__ == "__main__":
    main()
