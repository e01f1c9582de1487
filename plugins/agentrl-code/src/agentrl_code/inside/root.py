"""A root of a program's own: nothing but Python and the system's libraries, read-only, and a small folder in memory."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import struct
from collections.abc import Sequence

HOME = "/box"
"""The program's own folder in its root."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime")
_BASE = "/tmp"  # noqa: S108 - a folder to mount on, in a mount namespace of the program's own
_MAX_FILES = 1000

_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
_MNT_DETACH, _AT_RECURSIVE, _AT_FDCWD = 2, 0x8000, -100
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 0x1, 0x2
_MOUNT_SETATTR = 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}


Source = tuple[str, int, bool]
"""A path, a descriptor of what is there, and whether that is a folder."""


def open_sources(paths: Sequence[str]) -> list[Source]:
    """Open what a root is to hold, as long as this process may."""
    return [(path, os.open(path, os.O_PATH), is_folder) for path, is_folder in outermost(tuple(paths))]


def enter_own_root(libc: ctypes.CDLL, sources: Sequence[Source], size_mb: int) -> None:
    """Leave the machine's files for a root with `sources` in it. Raises OSError where the kernel lets nobody.

    Everything keeps its path. `HOME` belongs to this process's user, holds `size_mb` and a thousand files, and is gone
    with the namespace. Needs a mount namespace of the caller's own, and the rights over it.
    """
    _mount(libc, "none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount(libc, "tmpfs", _BASE, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,nr_inodes=1000,mode=755")
    for path, source, is_folder in sources:
        target = _BASE + path
        os.makedirs(target if is_folder else os.path.dirname(target), exist_ok=True)
        if not is_folder:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        _mount(libc, f"/proc/self/fd/{source}", target, None, _MS_BIND | _MS_REC)
        if path not in DEVICES:
            _make_read_only(libc, target, _AT_RECURSIVE)
        os.close(source)
    os.mkdir(_BASE + HOME)
    bounds = f"size={size_mb}m,nr_inodes={_MAX_FILES},mode=700"
    _mount(libc, "tmpfs", _BASE + HOME, "tmpfs", _MS_NOSUID | _MS_NODEV, bounds)
    os.mkdir(f"{_BASE}/old")
    _checked(libc.syscall(_PIVOT_ROOT[platform.machine()], _BASE.encode(), f"{_BASE}/old".encode()), "pivot_root")
    os.chdir(HOME)
    _checked(libc.umount2(b"/old", _MNT_DETACH), "umount2")
    os.rmdir("/old")
    _make_read_only(libc, "/", 0)


@functools.cache
def outermost(paths: tuple[str, ...]) -> list[tuple[str, bool]]:
    """Return those that exist and lie in none of the others, and whether each is a folder.

    Where one is a link, what it leads to is there under that name as well. Looked up once, before any program runs.
    """
    found = [path for path in dict.fromkeys(map(os.path.abspath, paths)) if os.path.exists(path)]
    found += [real for real in dict.fromkeys(map(os.path.realpath, found)) if real not in found]
    outer = [path for path in found if not any(path.startswith(other + "/") for other in found)]
    return [(path, os.path.isdir(path)) for path in outer]


def _mount(libc: ctypes.CDLL, source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    result = libc.mount(
        source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), options.encode()
    )
    _checked(result, f"mount {target}")


def _make_read_only(libc: ctypes.CDLL, path: str, flags: int) -> None:
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    result = libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, path.encode(), flags, attributes, len(attributes))
    _checked(result, f"mount_setattr {path}")


def _checked(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
