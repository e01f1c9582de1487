"""The files that a program may open: Landlock, which also scopes its signals and sockets where the kernel can."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_READ, _WRITE_FILE, _READ_FILE = 0xD, 0x2, 0x4
"""Running and reading files and listing folders; writing to a file; reading one."""
_CHANGE = 0x1FF2 & ~(0x40 | 0x200 | 0x400 | 0x800 | 0x1000)
"""Writing, removing and making files and folders; but no devices, sockets, pipes or links."""
_MAKE_FOLDER = 0x80
_ALL_RIGHTS = ((1, 0x1FFF), (2, 0x2000), (3, 0x4000), (5, 0x8000))
"""Version of Landlock -> the rights that it added."""
_TRUNCATE, _NETWORK, _SCOPES = 0x4000, 0x3, 0x3
_FIRST_TRUNCATE, _FIRST_NETWORK, _FIRST_SCOPES = 3, 4, 6
_ONLY_OF_FILES = 0x1 | _WRITE_FILE | _READ_FILE | _TRUNCATE

READ, CHANGE, CHANGE_FLAT, DEVICE = "read", "change", "change files", "device"
"""Permissions for a path and all below it. CHANGE_FLAT creates no folders, so that a size check stays cheap."""


def landlock_version(libc: ctypes.CDLL) -> int:
    """Return the kernel's version of Landlock, at most 0 where it has none."""
    return int(libc.syscall(_CREATE, None, 0, 1))


def allow_only_these(libc: ctypes.CDLL, places: Mapping[str, str]) -> None:
    """Let this thread open nothing but `places`: path -> what may be done there. Raises OSError where that fails."""
    version = landlock_version(libc)
    handled = sum(rights for since, rights in _ALL_RIGHTS if version >= since)
    network = _NETWORK if version >= _FIRST_NETWORK else 0
    scopes = _SCOPES if version >= _FIRST_SCOPES else 0
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
