"""System calls that Python 3.11 does not offer, for a sandbox's processes; they raise OSError if the kernel refuses."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
from collections.abc import Sequence

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
"""Kinds of namespaces, for `unshare` and `enter`."""
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC = 0x1, 0x2, 0x4, 0x8
"""Attributes of mounts."""

_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH, _AT_RECURSIVE, _AT_FDCWD = 2, 0x8000, -100
_MOUNT_SETATTR = 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_CAPABILITIES_3 = 0x20080522
_NUM_CAPABILITIES = 64
_KEPT = (
    0,  # CHOWN
    1,  # DAC_OVERRIDE
    3,  # FOWNER
    4,  # FSETID
    5,  # KILL
    6,  # SETGID
    7,  # SETUID
    8,  # SETPCAP
    10,  # NET_BIND_SERVICE
    18,  # SYS_CHROOT
    31,  # SETFCAP
)
"""Capabilities of commands: those that containers have by default, without MKNOD, NET_RAW and AUDIT_WRITE."""
_SIOCSIFFLAGS, _UP_RUNNING_LOOPBACK = 0x8914, 0x49

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(kinds: int) -> None:
    """Move this process into new namespaces; of NEWPID, only its children."""
    _checked(_libc.unshare(kinds), "namespaces")


def enter(path: str, kind: int) -> None:
    """Move this process into a namespace that exists; of NEWPID, only its children."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _checked(_libc.setns(descriptor, kind), f"setns {path}")
    finally:
        os.close(descriptor)


def make_private() -> None:
    """Keep the mounts of this namespace from showing up in others, and the other way round."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE, "")


def mount(kind: str, target: str, attributes: int, options: str = "") -> None:
    """Mount a new file system, such as proc or tmpfs."""
    _mount(kind, target, kind, attributes, options)  # the numbers of these attributes are those of `mount` too


def bind(source: str, target: str, attributes: int) -> None:
    """Show a file or folder, with all that is mounted below it, in a second place."""
    _mount(source, target, None, _MS_BIND | _MS_REC, "")
    # A second call, because a new bind mount ignores attributes; unlike a remount, it reaches the mounts below.
    packed = struct.pack("QQQQ", attributes, 0, 0, 0)
    result = _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, packed, len(packed))
    _checked(result, f"mount_setattr {target}")


def take_root(folder: str) -> None:
    """Make a mounted folder the root of this mount namespace and of all processes in it; the old root goes."""
    os.chdir(folder)
    # Both in one place: the old root then lies on top of the new one.
    _checked(_libc.syscall(_PIVOT_ROOT[platform.machine()], b".", b"."), "pivot_root")
    _checked(_libc.umount2(b".", _MNT_DETACH), "umount2")
    os.chdir("/")


def be_dumpable(whether: bool) -> None:  # noqa: FBT001 - the call's one argument
    """Let processes of the same user reach this one in /proc, also after a change of identity, or keep them from it."""
    _libc.prctl(_PR_SET_DUMPABLE, int(whether), 0, 0, 0)


def end_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def drop_capabilities() -> None:
    """Give up all capabilities but `_KEPT`, for this process and for programs that it starts, also as root."""
    for number in set(range(_NUM_CAPABILITIES)) - set(_KEPT):
        # EINVAL: the kernel does not know so many.
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0 and ctypes.get_errno() != errno.EINVAL:
            _checked(-1, "the bounding set of capabilities")
    kept = sum(1 << number for number in _KEPT)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    header = struct.pack("Ii", _CAPABILITIES_3, 0)
    _checked(_libc.capset(header, struct.pack("6I", low, low, 0, high, high, 0)), "capset")


def filter_calls(lines: Sequence[tuple[int, int, int, int]]) -> None:
    """Have a program of classic BPF decide about all further system calls of this process and what it starts."""
    compiled = b"".join(struct.pack("HBBI", *line) for line in lines)
    program = ctypes.create_string_buffer(compiled)
    header = struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(program))
    set_no_new_privileges, set_seccomp = 38, 22
    _checked(_libc.prctl(set_no_new_privileges, 1, 0, 0, 0), "no_new_privs")
    _checked(_libc.prctl(set_seccomp, 2, header, 0, 0), "seccomp")


def bring_loopback_up() -> None:
    """Start the loopback device of a new network namespace."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP_RUNNING_LOOPBACK))


def _mount(source: str, target: str, kind: str | None, flags: int, options: str) -> None:
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), options.encode()
    )
    _checked(result, f"mount {target}")


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
