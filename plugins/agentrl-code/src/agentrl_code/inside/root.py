"""The file system of a program at the level `full`: Python and the system's libraries, read-only, and a writable tmpfs.

It is built in a mount namespace of the sandbox process, out of bind mounts, and becomes its root by `pivot_root`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import struct
from collections.abc import Sequence

HOME = "/box"
"""The program's working directory in its root."""
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
"""A path, an open descriptor of it, and whether it is a folder."""


def open_sources(paths: Sequence[str]) -> list[Source]:
    """Open the paths that the new root will hold, before this process takes an identity that may not reach them."""
    return [(path, os.open(path, os.O_PATH), is_folder) for path, is_folder in outermost(tuple(paths))]


def enter_own_root(libc: ctypes.CDLL, sources: Sequence[Source], size_mb: int) -> None:
    """Replace this process's root by one that holds only `sources`. Raises OSError if the kernel refuses.

    Every source keeps its path. `HOME` belongs to this process's user, holds up to `size_mb` in up to a thousand
    files, and disappears with the namespace. The caller must be in a mount namespace of its own and have all rights
    over it.
    """
    # Private: no mount from here must show up in the machine's own mount table.
    _mount(libc, "none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount(libc, "tmpfs", _BASE, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,nr_inodes=1000,mode=755")
    for path, source, is_folder in sources:
        target = _BASE + path
        os.makedirs(target if is_folder else os.path.dirname(target), exist_ok=True)
        if not is_folder:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        _mount(libc, f"/proc/self/fd/{source}", target, None, _MS_BIND | _MS_REC)
        # A second call, because a new bind mount ignores a read-only flag.
        if path not in DEVICES:
            _make_read_only(libc, target, _AT_RECURSIVE)
        os.close(source)
    os.mkdir(_BASE + HOME)
    bounds = f"size={size_mb}m,nr_inodes={_MAX_FILES},mode=700"
    _mount(libc, "tmpfs", _BASE + HOME, "tmpfs", _MS_NOSUID | _MS_NODEV, bounds)
    os.mkdir(f"{_BASE}/old")
    _checked(libc.syscall(_PIVOT_ROOT[platform.machine()], _BASE.encode(), f"{_BASE}/old".encode()), "pivot_root")
    os.chdir(HOME)
    # The machine's own files are still mounted below the new root; they go here.
    _checked(libc.umount2(b"/old", _MNT_DETACH), "umount2")
    os.rmdir("/old")
    _make_read_only(libc, "/", 0)


@functools.cache
def outermost(paths: tuple[str, ...]) -> list[tuple[str, bool]]:
    """Return the existing paths that lie in none of the others, each with whether it is a folder.

    The target of a symbolic link is included under its own name. The result is cached: the helper process calls this
    once before it runs any program.
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
