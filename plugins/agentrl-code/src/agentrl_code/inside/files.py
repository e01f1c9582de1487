"""Restriction of the files that a program may open, by the kernel's Landlock.

Newer versions of Landlock also forbid network connections, and signals and abstract sockets out of the sandbox. Each
version is used as far as the kernel has it.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping

_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""Numbers of the system calls landlock_create_ruleset, landlock_add_rule and landlock_restrict_self."""
_READ, _WRITE_FILE, _READ_FILE = 0xD, 0x2, 0x4
"""Rights to execute and read files and list folders; to write to a file; to read a file."""
_CHANGE = 0x1FF2 & ~(0x40 | 0x200 | 0x400 | 0x800 | 0x1000)
"""Rights to write, remove and create files and folders, but no devices, sockets, pipes or links."""
_MAKE_FOLDER = 0x80
_ALL_RIGHTS = ((1, 0x1FFF), (2, 0x2000), (3, 0x4000), (5, 0x8000))
"""Version of Landlock and the rights that it added. A kernel refuses a ruleset with rights that it does not know."""
_TRUNCATE, _NETWORK, _SCOPES = 0x4000, 0x3, 0x3
_FIRST_TRUNCATE, _FIRST_NETWORK, _FIRST_SCOPES = 3, 4, 6
_ONLY_OF_FILES = 0x1 | _WRITE_FILE | _READ_FILE | _TRUNCATE

READ, CHANGE, CHANGE_FLAT, DEVICE = "read", "change", "change files", "device"
"""Permissions for a path and everything below it. CHANGE_FLAT allows no new folders: checking sizes stays cheap."""


def landlock_version(libc: ctypes.CDLL) -> int:
    """Return the kernel's version of Landlock; 0 or less if it has none."""
    return int(libc.syscall(_CREATE, None, 0, 1))


def allow_only_these(libc: ctypes.CDLL, places: Mapping[str, str]) -> None:
    """Forbid this thread to open anything but `places`, a mapping of path to permission. Raises OSError on failure."""
    version = landlock_version(libc)
    handled = sum(rights for since, rights in _ALL_RIGHTS if version >= since)
    network = _NETWORK if version >= _FIRST_NETWORK else 0
    scopes = _SCOPES if version >= _FIRST_SCOPES else 0
    # `struct landlock_ruleset_attr` has grown: old kernels refuse fields that they do not know.
    size = 24 if version >= _FIRST_SCOPES else 16 if version >= _FIRST_NETWORK else 8
    ruleset = libc.syscall(_CREATE, struct.pack("QQQ", handled, network, scopes), size, 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "Landlock")
    truncate = _TRUNCATE if version >= _FIRST_TRUNCATE else 0
    change = _READ | _CHANGE | truncate
    rights = {READ: _READ, CHANGE: change, CHANGE_FLAT: change & ~_MAKE_FOLDER, DEVICE: _READ_FILE | _WRITE_FILE}
    for path, how in places.items():
        if os.path.exists(path):
            place = os.open(path, os.O_PATH)
            known = handled if os.path.isdir(path) else _ONLY_OF_FILES & handled
            added = libc.syscall(_ADD, ruleset, 1, struct.pack("=Qi", rights[how] & known, place), 0)
            os.close(place)
            if added != 0:
                raise OSError(ctypes.get_errno(), f"Landlock: {path}")
    restricted = libc.syscall(_RESTRICT, ruleset, 0)
    os.close(ruleset)
    if restricted != 0:
        raise OSError(ctypes.get_errno(), "Landlock")
