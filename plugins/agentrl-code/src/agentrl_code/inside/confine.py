"""Confinement of a sandbox process, just before it runs a program: identity, files, limits and system calls.

The order of the steps in `confine` matters: mounting needs rights that are dropped later, and the filter of system
calls comes last, because it refuses the calls of all other steps.
"""

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
# CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNS (mounts), CLONE_NEWIPC, CLONE_NEWNET
_NAMESPACES = 0x10000000 | 0x20000000 | 0x20000 | 0x8000000 | 0x40000000
_CLONE = {"x86_64": 56, "aarch64": 220}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITIES_3 = 0x20080522
_MB = 1 << 20
_MAX_THREADS, _MAX_DESCRIPTORS, _STACK = 64, 64, 128 * _MB


def clone_into_namespaces() -> int:
    """Fork into new namespaces; return 0 in the child and its process id in the parent.

    Raises OSError if the kernel or a container's profile forbids namespaces.
    """
    # PyDLL keeps the interpreter's lock during the call, and the PyOS_ functions do what os.fork does around a fork.
    libc = ctypes.PyDLL(None, use_errno=True)
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
    """Map one user and one group of the machine into a process's user namespace, under the same ids."""
    # The kernel accepts an unprivileged gid_map only after `setgroups` was set to "deny".
    for name, text in (("setgroups", "deny"), ("gid_map", f"{gid} {gid} 1"), ("uid_map", f"{uid} {uid} 1")):
        with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
            file.write(text)


def confine(job: Mapping[str, Any]) -> None:
    """Give up everything that a program does not need, by the job's `level`. Raises OSError if a step fails."""
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
        # After the change of identity, which clears this setting.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _restrict_files(libc, job)
    _limit(job)
    if libc is not None:
        calls.allow_only_these(libc, shared_files=job["level"] != CONFINED)


def _die_first() -> None:
    """Make the kernel kill this process first when memory is short, rather than the trainer."""
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _become(job: Mapping[str, Any]) -> None:
    """Take the job's user and group id, real, effective and saved. Raises OSError if that leaves root."""
    uid, gid = job["uid"], job["gid"]
    # Set without a look at the present ids: in a new user namespace, ids without a mapping already read as nobody's.
    if hasattr(os, "setresuid"):
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    else:  # macOS; of root, these set all three
        os.setgid(gid)
        os.setuid(uid)
    if os.geteuid() == 0:
        raise OSError("a program must not run as root")


def _be_dumpable(libc: ctypes.CDLL) -> None:
    """Keep /proc/self/fd readable after the change of identity: `sys.path` may lead through it."""
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header, none = struct.pack("Ii", _CAPABILITIES_3, 0), bytes(24)
    if libc.capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _keep_python_readable(job: Mapping[str, Any]) -> None:
    """Replace folders of `sys.path` that the new identity cannot reach, such as below /root, by open descriptors."""
    if os.geteuid() == job["uid"]:
        return
    for index, path in enumerate(sys.path):
        if os.path.isdir(path) and not reachable(path):
            sys.path[index] = f"/proc/self/fd/{os.open(path, os.O_PATH)}"
    sys.path_importer_cache.clear()


def reachable(path: str) -> bool:
    """Return whether every user of the machine can read a path and search all folders above it."""
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
            return  # without Landlock the program's own root still holds nothing else
        places = {"/": files.READ, root.HOME: files.CHANGE}
    else:
        folders = [path for path in sys.path if path.startswith("/proc/self/fd/")]
        places = {**dict.fromkeys((*job["readable"], *folders), files.READ), ".": files.CHANGE_FLAT}
    files.allow_only_these(libc, places | dict.fromkeys(root.DEVICES, files.DEVICE))


def _limit(job: Mapping[str, Any]) -> None:
    """Set the resource limits of this process."""
    # One second more than the time limit, which the watching process enforces and reports with a reason.
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
        # This limit counts all threads of a user. Only in a user namespace are those the program's alone.
        bounds["RLIMIT_NPROC"] = _MAX_THREADS
    elif job["level"] == LIMITS:
        bounds["RLIMIT_NPROC"] = 0
    for name, value in bounds.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (bound, bound))
        except (ValueError, OSError) as error:
            # macOS refuses some of these limits, and offers no other level.
            if job["level"] != LIMITS:
                raise OSError(0, f"{name}: {error}") from error
