"""Allowlist of the system calls that a sandboxed program may make, as a seccomp filter.

The filter is classic BPF: a list of instructions that looks at the number of a call and at its arguments. It cannot
follow pointers, so a call whose meaning stands behind a pointer is refused as a whole.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import struct
from collections.abc import Mapping, Sequence

_X86, _ARM = "x86_64", "aarch64"
_AUDIT = {_X86: 0xC000003E, _ARM: 0xC00000B7}
"""Architecture -> AUDIT_ARCH of the kernel: a filter must check it, since call numbers differ between architectures."""
_PR_SET_SECCOMP = 22

# name: (number on x86_64, number on aarch64); None if an architecture does not have the call.
_ALLOWED: Mapping[str, tuple[int | None, int | None]] = {
    # reading and writing
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "close": (3, 57), "close_range": (436, 436), "lseek": (8, 62), "fsync": (74, 82),
    "fdatasync": (75, 83), "ftruncate": (77, 46), "fadvise64": (221, 223), "flock": (73, 32), "dup": (32, 23),
    "dup2": (33, None), "dup3": (292, 24), "pipe": (22, None), "pipe2": (293, 59),
    # files and folders; Landlock and the mount namespace decide which ones
    "fstat": (5, 80), "stat": (4, None), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "creat": (85, None),
    "getdents": (78, None), "getdents64": (217, 61), "readlink": (89, None), "readlinkat": (267, 78),
    "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "mkdir": (83, None), "mkdirat": (258, 34),
    "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38),
    "umask": (95, 166),
    # waiting, on its own descriptors
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22), "sendto": (44, 206),
    "recvfrom": (45, 207), "shutdown": (48, 210), "getsockname": (51, 204), "getpeername": (52, 205),
    "getsockopt": (55, 209),
    # memory
    "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226), "madvise": (28, 233),
    "msync": (26, 227), "brk": (12, 214), "membarrier": (324, 283),
    # signals to itself alone
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "sigaltstack": (131, 132), "pause": (34, None), "alarm": (37, None), "setitimer": (38, 103),
    "getitimer": (36, 102), "restart_syscall": (219, 128),
    # time
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153),
    # reading its own identity, limits and scheduling
    "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173), "getpgrp": (111, None), "getpgid": (121, 155),
    "getsid": (124, 156), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "getresuid": (118, 148), "getresgid": (120, 150), "getgroups": (115, 158), "getrlimit": (97, 163),
    "getrusage": (98, 165), "sysinfo": (99, 179), "uname": (63, 160), "getpriority": (140, 141),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120), "getcpu": (309, 168), "getrandom": (318, 278),
    # threads
    "futex": (202, 98), "set_robust_list": (273, 99), "get_robust_list": (274, 100), "set_tid_address": (218, 96),
    "rseq": (334, 293), "exit": (60, 93), "exit_group": (231, 94),
}  # fmt: skip

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _KILL, _NOT_PERMITTED, _UNKNOWN = 0x7FFF0000, 0x80000000, 0x00050000 | 1, 0x00050000 | 38
_LAST_KNOWN = 450
"""First number that gets ENOSYS ("no such call") in place of EPERM: libraries then fall back to older calls."""
_OTHER_NUMBERING = 0x40000000
"""Bit of x32 call numbers, which reach the same kernel functions by other numbers."""
_CLONE3 = 435

Line = tuple[int, int, int, int]
"""One BPF instruction: operation, lines to skip if the test holds, lines to skip if not, operand."""


def _argument(index: int, mask: int = 0xFFFFFFFF) -> list[Line]:
    # In `struct seccomp_data` the arguments begin at byte 16, with 8 bytes each; this loads the low half.
    return [(_LOAD, 0, 0, 16 + 8 * index), (_AND, 0, 0, mask)]


def _one_of(values: Sequence[int], then: Sequence[Line] = ((_RETURN, 0, 0, _ALLOW),)) -> list[Line]:
    """Continue with `then` if the loaded argument is one of `values`; otherwise refuse the call."""
    tests: list[Line] = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return [*tests, (_RETURN, 0, 0, _NOT_PERMITTED), *then]


_DUPFD, _GETFD, _SETFD, _GETFL, _SETFL, _GETLK, _SETLK, _SETLKW, _DUPFD_CLOEXEC = 0, 1, 2, 3, 4, 5, 6, 7, 1030
_O_ASYNC, _O_TRUNC, _O_ACCMODE = 0x2000, 0x200, 0x3

# The filter looks only at the low halves of these arguments, because the kernel reads them as 32-bit ints.
_CONDITIONAL: dict[tuple[int | None, int | None], list[Line]] = {
    # clone: threads with the flags that glibc and musl use, never processes
    (56, 220): [*_argument(0), *_one_of([0x3D0F00, 0x7D0F00])],
    # fcntl: no owner, signal, lease or notice (F_SETOWN, F_SETSIG, F_SETLEASE, F_NOTIFY), and no O_ASYNC
    (72, 25): [
        *_argument(1),
        (_EQUAL, 0, 4, _SETFL),
        *_argument(2, _O_ASYNC),
        (_EQUAL, 0, 1, 0),
        (_RETURN, 0, 0, _ALLOW),
        *_argument(1),
        *_one_of([_DUPFD, _GETFD, _SETFD, _GETFL, _GETLK, _SETLK, _SETLKW, _DUPFD_CLOEXEC]),
    ],
    # ioctl: terminal attributes and window size (for isatty), bytes that can be read, close-on-exec, blocking
    (16, 29): [*_argument(1), *_one_of([0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451])],
    # prctl: names of threads and of memory
    (157, 167): [*_argument(0), *_one_of([15, 16, 0x53564D41])],
    # renameat2: plain, without replacing, or by exchange; RENAME_WHITEOUT would create a device
    (316, 276): [*_argument(4), *_one_of([0, 1, 2])],
    # prlimit64: only the limits of the process itself
    (302, 261): [*_argument(0), *_one_of([0])],
    # socketpair: only a local stream, which cannot be connected to anything else; asyncio's event loop needs one
    (53, 199): [*_argument(0), *_one_of([1], [*_argument(1, 0xFFF7F7FF), *_one_of([1])])],
}


def _opening(flags: int) -> list[Line]:
    """Allow opening files, except with O_TRUNC and O_RDONLY together: old versions of Landlock let that truncate."""
    return [*_argument(flags, _O_TRUNC | _O_ACCMODE), (_EQUAL, 0, 1, _O_TRUNC), (_RETURN, 0, 0, _NOT_PERMITTED),
            (_RETURN, 0, 0, _ALLOW)]  # fmt: skip


_OPENING: dict[tuple[int | None, int | None], list[Line]] = {(2, None): _opening(1), (257, 56): _opening(2)}


_MAP_SHARED, _NO_FILE = 0x1, 0xFFFFFFFF
_MMAP: dict[tuple[int | None, int | None], list[Line]] = {(9, 222): [(_RETURN, 0, 0, _ALLOW)]}
# No shared mapping of a file. Such a mapping keeps a removed and closed file alive, and writes to it are in no counter,
# so a program could fill the disk unseen. (At the level `full` its file system is a bounded tmpfs.)
_MMAP_WITHOUT_FILES: dict[tuple[int | None, int | None], list[Line]] = {
    (9, 222): [
        *_argument(3, _MAP_SHARED),
        (_EQUAL, 0, 1, 0),
        (_RETURN, 0, 0, _ALLOW),
        *_argument(4),
        *_one_of([_NO_FILE]),
    ]
}


def supported() -> bool:
    """Return whether the allowlist has the call numbers of this machine's architecture."""
    return platform.machine() in _AUDIT


def allow_only_these(libc: ctypes.CDLL, *, shared_files: bool) -> None:
    """Refuse all other system calls to this thread and everything that it starts. Raises OSError if that fails.

    `shared_files` allows shared mappings of files, by which a program writes to a file without a write call.
    """
    compiled = compiled_filter(shared_files=shared_files)
    program = ctypes.create_string_buffer(compiled)
    header = struct.pack("HxxxxxxQ", len(compiled) // 8, ctypes.addressof(program))
    if libc.prctl(_PR_SET_SECCOMP, 2, header, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


@functools.cache
def compiled_filter(*, shared_files: bool) -> bytes:
    """Return this machine's filter as an array of the kernel's `struct sock_filter`."""
    lines = filter_lines(platform.machine(), shared_files=shared_files)
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def filter_lines(machine: str, *, shared_files: bool) -> list[Line]:
    """Return the filter for an architecture as instructions of classic BPF."""
    column = (_X86, _ARM).index(machine)
    lines: list[Line] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT[machine]), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    lines += [(_AT_LEAST, 0, 1, _OTHER_NUMBERING), (_RETURN, 0, 0, _NOT_PERMITTED)]
    # clone3 has its flags behind a pointer. With ENOSYS, libraries fall back to clone, whose flags are checked.
    lines += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _UNKNOWN)]
    for numbers in _ALLOWED.values():
        if numbers[column] is not None:
            lines += [(_EQUAL, 0, 1, numbers[column] or 0), (_RETURN, 0, 0, _ALLOW)]
    mmap = _MMAP if shared_files else _MMAP_WITHOUT_FILES
    for numbers, block in (mmap | _CONDITIONAL | _OPENING).items():
        if numbers[column] is not None:
            lines += [(_EQUAL, 0, len(block), numbers[column] or 0), *block]
    lines += [(_AT_LEAST, 0, 1, _LAST_KNOWN), (_RETURN, 0, 0, _UNKNOWN), (_RETURN, 0, 0, _NOT_PERMITTED)]
    return lines
