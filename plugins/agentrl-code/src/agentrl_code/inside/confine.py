"""Confinement of a process that is about to run a program: who it is, what it sees, what it may take and call."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
from collections.abc import Mapping
from typing import Any

from agentrl_code.inside import calls, files, root
from agentrl_code.inside.levels import CONFINED, FULL, LIMITS

NOBODY = 65534
_NAMESPACES = 0x10000000 | 0x20000000 | 0x20000 | 0x8000000 | 0x40000000  # user, processes, mounts, IPC, network
_CLONE = {"x86_64": 56, "aarch64": 220}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITIES_3 = 0x20080522
_MB = 1 << 20
_MAX_THREADS, _MAX_DESCRIPTORS, _STACK = 64, 64, 128 * _MB


def clone_into_namespaces() -> int:
    """Fork into new namespaces: 0 in the child, its process id here. Raises OSError where the kernel lets nobody."""
    libc = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock over the call, as os.fork does
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = libc.syscall(_CLONE[os.uname().machine], _NAMESPACES | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    error = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, f"namespaces: {os.strerror(error)}")
    return int(pid)


def map_identity(pid: int, uid: int, gid: int) -> None:
    """Make one user and group of the machine those of a process in a new user namespace, under the same numbers."""
    for name, text in (("setgroups", "deny"), ("gid_map", f"{gid} {gid} 1"), ("uid_map", f"{uid} {uid} 1")):
        with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
            file.write(text)


def confine(job: Mapping[str, Any]) -> None:
    """Give up all that a program need not have, by the job's `level`. Raises OSError where a part of it fails."""
    level = job["level"]
    libc = ctypes.CDLL(None, use_errno=True) if level != LIMITS else None
    if libc is None:
        _become(job)
        os.chdir(job["folder"])
    else:
        _die_first()
        if level == FULL:
            sources = root.open_sources(job["readable"])
            _become(job)
            _be_dumpable(libc)
            root.enter_own_root(libc, sources, job["file_mb"])
            _drop_capabilities(libc)
        else:
            os.chdir(job["folder"])
            _keep_python_readable(job)
            _become(job)
            _be_dumpable(libc)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # another identity forgot it
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _restrict_files(libc, job)
    _limit(job)
    if libc is not None:
        calls.allow_only_these(libc, shared_files=job["level"] != CONFINED)


def _die_first() -> None:
    """Be what the kernel ends first where memory is short, not the trainer."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _become(job: Mapping[str, Any]) -> None:
    """Take the job's identity; one that no name is known for in a new namespace looks as if it had it already."""
    uid, gid = job["uid"], job["gid"]
    if hasattr(os, "setresuid"):
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    else:  # macOS; of root, these set all three
        os.setgid(gid)
        os.setuid(uid)
    if os.geteuid() == 0:
        raise OSError("a program must not run as root")


def _be_dumpable(libc: ctypes.CDLL) -> None:
    """Keep this process's own /proc/self/fd usable under its new identity, for Python's files."""
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header, none = struct.pack("Ii", _CAPABILITIES_3, 0), bytes(24)
    if libc.capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _keep_python_readable(job: Mapping[str, Any]) -> None:
    """Name Python's folders by open descriptors where the new identity could not walk to them, as below /root."""
    if os.geteuid() == job["uid"]:
        return
    for index, path in enumerate(sys.path):
        if os.path.isdir(path) and not reachable(path):
            sys.path[index] = f"/proc/self/fd/{os.open(path, os.O_PATH)}"
    sys.path_importer_cache.clear()


def reachable(path: str) -> bool:
    """Whether any user of the machine can walk to a path and read it."""
    if not os.stat(path).st_mode & 0o004:
        return False
    while path != "/":
        path = os.path.dirname(path)
        if not os.stat(path).st_mode & 0o001:
            return False
    return True


def _restrict_files(libc: ctypes.CDLL, job: Mapping[str, Any]) -> None:
    if job["level"] == FULL:
        if files.landlock_version(libc) < 1:
            return  # its root holds nothing else
        places = {"/": files.READ, root.HOME: files.CHANGE}
    else:
        folders = [path for path in sys.path if path.startswith("/proc/self/fd/")]
        places = {**dict.fromkeys((*job["readable"], *folders), files.READ), ".": files.CHANGE_FLAT}
    files.allow_only_these(libc, places | dict.fromkeys(root.DEVICES, files.DEVICE))


def _limit(job: Mapping[str, Any]) -> None:
    """Bound what this process can take."""
    cpu = int(job["timeout_s"]) + 1
    bounds = {
        "RLIMIT_CPU": cpu,
        "RLIMIT_AS": job["memory_mb"] * _MB,
        "RLIMIT_FSIZE": job["file_mb"] * _MB,
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": _MAX_DESCRIPTORS,
        "RLIMIT_STACK": _STACK,
    }
    if job["level"] == FULL:
        bounds["RLIMIT_NPROC"] = _MAX_THREADS  # counted in its namespace alone
    elif job["level"] == LIMITS:
        bounds["RLIMIT_NPROC"] = 0
    for name, value in bounds.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (bound, bound))
        except (ValueError, OSError) as error:
            if job["level"] != LIMITS:  # macOS refuses some
                raise OSError(0, f"{name}: {error}") from error
