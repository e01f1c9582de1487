"""System calls that commands of a sandbox may not make, as a seccomp filter.

Tasks run any program, so this lists what is refused. Most calls that could harm need a capability that commands do not
have; these here need none, or one that a new user namespace would give.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping

_X86, _ARM = "x86_64", "aarch64"
_AUDIT = {_X86: 0xC000003E, _ARM: 0xC00000B7}
"""Architecture -> AUDIT_ARCH of the kernel: a filter must check it, since call numbers differ between architectures."""

# name: (number on x86_64, number on aarch64)
_REFUSED: Mapping[str, tuple[int, int]] = {
    # keys of the user who runs the trainer: keyrings are inherited, and know no mount or PID namespace
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # interfaces whose kernel code is large and was often broken; tasks do without them in containers as well
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "open_by_handle_at": (304, 265),
    # messages of the machine's kernel
    "syslog": (103, 116),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "setns": (308, 268),
}  # fmt: skip
_CLONE, _UNSHARE, _IOCTL = (56, 220), (272, 97), (16, 29)
_CLONE3 = 435
_NAMESPACES = 0x7E020080
"""Flags of `clone` and `unshare` that make namespaces; 0x80 is CLONE_NEWTIME, which `clone` cannot have."""
_CLONE_NAMESPACES = _NAMESPACES & ~0x80
_TERMINAL = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which type into a terminal that others read."""

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _NOT_PERMITTED, _UNKNOWN = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38
_OTHER_NUMBERING = 0x40000000
"""Bit of x32 call numbers, which reach the same kernel functions by other numbers."""

Line = tuple[int, int, int, int]
"""One instruction of classic BPF: operation, lines to skip if the test holds, lines to skip if not, operand."""


def supported() -> bool:
    """Return whether the numbers of this machine's architecture are known."""
    return platform.machine() in _AUDIT


def filter_lines(machine: str) -> list[Line]:
    """Return the filter for an architecture."""
    column = (_X86, _ARM).index(machine)
    # Programs of another architecture, such as 32-bit ones, reach the same functions by other numbers: none for them.
    lines: list[Line] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT[machine]), (_RETURN, 0, 0, _UNKNOWN), (_LOAD, 0, 0, 0)]
    lines += [(_AT_LEAST, 0, 1, _OTHER_NUMBERING), (_RETURN, 0, 0, _UNKNOWN)]
    # clone3 has its flags behind a pointer. With ENOSYS, libraries fall back to clone, whose flags are checked.
    lines += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _UNKNOWN)]
    for numbers in _REFUSED.values():
        lines += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, _NOT_PERMITTED)]
    for numbers, flags in ((_CLONE, _CLONE_NAMESPACES), (_UNSHARE, _NAMESPACES)):
        lines += [(_EQUAL, 0, 5, numbers[column]), *_argument(0), (_AND, 0, 0, flags), (_EQUAL, 1, 0, 0)]
        lines += [(_RETURN, 0, 0, _NOT_PERMITTED), (_RETURN, 0, 0, _ALLOW)]
    lines += [(_EQUAL, 0, 4, _IOCTL[column]), *_argument(1), (_EQUAL, 1, 0, _TERMINAL[0])]
    lines += [(_EQUAL, 0, 1, _TERMINAL[1]), (_RETURN, 0, 0, _NOT_PERMITTED)]
    return [*lines, (_RETURN, 0, 0, _ALLOW)]


def _argument(index: int) -> list[Line]:
    # In `struct seccomp_data` the arguments begin at byte 16, with 8 bytes each; this loads the low half.
    return [(_LOAD, 0, 0, 16 + 8 * index)]
