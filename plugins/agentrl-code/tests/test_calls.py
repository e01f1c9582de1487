"""System calls that no program needs: none of them works, whoever asks, and nothing comes of the attempt."""

import platform
import sys

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="the numbers are those of Linux on x86_64"
)

_LIBC = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def won(result):
    if result is None or result >= 0: exec(SOLVE, globals())
"""


def _call(number, arguments="0, 0, 0, 0, 0, 0"):
    return f"{_LIBC}won(libc.syscall({number}, {arguments}))"


# x86_64: arguments with which each would work outside of a sandbox, as far as that needs no root
CALLS = {
    "fork": _call(57),
    "vfork": "import os\nos.posix_spawn('/bin/true', ['true'], {{}})\n{solve}",
    "clone": _call(56, "17, 0, 0, 0, 0"),
    "clone_parent": _call(56, "0x8011, 0, 0, 0, 0"),
    "clone_thread_newuser": _call(56, "0x103d0f00, 0, 0, 0, 0"),
    "clone3": _call(435, "(ctypes.c_uint64 * 11)(0, 0, 0, 0, 17), 88"),
    "execve": _call(59, "b'/bin/true', 0, 0"),
    "execveat": _call(322, "-100, b'/bin/true', 0, 0, 0"),
    "kill": _call(62, "{pid}, 19"),
    "kill_all": _call(62, "-1, 9"),
    "kill_parent": _call(62, "os.getppid() or 1, 9"),
    "tkill": _call(200, "{pid}, 19"),
    "tgkill": _call(234, "{pid}, {pid}, 19"),
    "rt_sigqueueinfo": _call(129, "{pid}, 19, struct.pack('iii', 19, 0, -1) + bytes(116)"),
    "rt_tgsigqueueinfo": _call(297, "{pid}, {pid}, 19, struct.pack('iii', 19, 0, -1) + bytes(116)"),
    "pidfd_open": _call(434, "{pid}, 0"),
    "pidfd_send_signal": _call(424, "libc.syscall(434, {pid}, 0), 19, 0, 0"),
    "pidfd_getfd": _call(438, "libc.syscall(434, {pid}, 0), 1, 0"),
    "ptrace_attach": _call(101, "16, {pid}, 0, 0"),
    "ptrace_traceme": _call(101, "0, 0, 0, 0"),
    "process_vm_readv": _call(310, "{pid}, 0, 0, 0, 0, 0"),
    "process_vm_writev": _call(311, "{pid}, 0, 0, 0, 0, 0"),
    "kcmp": _call(312, "os.getpid(), os.getpid(), 0, 0, 1"),
    "prlimit_other": _call(302, "{pid}, 7, struct.pack('QQ', 1, 1), 0"),
    "setpriority": _call(141, "0, {pid}, 19"),
    "setpriority_self": _call(141, "0, 0, 19"),
    "ioprio_set": _call(251, "1, 0, 0x6000"),
    "sched_setaffinity": _call(203, "0, 8, struct.pack('Q', 1)"),
    "sched_setscheduler": _call(144, "0, 3, struct.pack('i', 0)"),
    "F_SETOWN": _call(72, "1, 8, {pid}"),
    "F_SETSIG": _call(72, "1, 10, 9"),
    "F_SETOWN_EX": _call(72, "1, 15, struct.pack('ii', 1, {pid})"),
    "F_SETLEASE": _call(72, "os.open('x', 66), 1024, 0"),
    "F_NOTIFY": _call(72, "os.open('.', 0), 1026, 1"),
    "F_SETPIPE_SZ": _call(72, "1, 1031, 1 << 20"),
    "O_ASYNC": _call(72, "1, 4, 0x2000"),
    "FIOASYNC": _call(16, "1, 0x5452, struct.pack('i', 1)"),
    "TIOCSTI": _call(16, "0, 0x5412, b'x'"),
    "shmget": _call(29, "0, 4096, 0o1600"),
    "msgget": _call(68, "0, 0o1600"),
    "semget": _call(64, "0, 1, 0o1600"),
    "mq_open": _call(240, "b'agentrl-cheat', 66, 0o600, 0"),
    "memfd_create": _call(319, "b'x', 0"),
    "memfd_secret": _call(447, "0"),
    "userfaultfd": _call(323, "1"),
    "io_uring_setup": _call(425, "1, bytes(120)"),
    "bpf": _call(321, "0, struct.pack('IIIII', 2, 4, 4, 1, 0) + bytes(100), 72"),
    "perf_event_open": _call(298, "struct.pack('IIQ', 1, 112, 0) + bytes(96), 0, -1, -1, 0"),
    "add_key": _call(248, "b'user', b'agentrl-cheat', b'x', 1, -4"),
    "keyctl": _call(250, "0, -3, 1"),
    "request_key": _call(249, "b'user', b'agentrl-cheat', 0, -4"),
    "mount": _call(165, "b'none', b'.', b'tmpfs', 0, 0"),
    "umount2": _call(166, "b'.', 2"),
    "open_tree": _call(428, "-100, b'.', 1"),
    "fsopen": _call(430, "b'tmpfs', 0"),
    "unshare_user": _call(272, "0x10000000"),
    "unshare_files": _call(272, "0x400"),
    "setns": _call(308, "0, 0"),
    "chroot": _call(161, "b'.'"),
    "pivot_root": _call(155, "b'.', b'.'"),
    "socket_inet": _call(41, "2, 1, 0"),
    "socket_unix": _call(41, "1, 1, 0"),
    "socket_netlink": _call(41, "16, 3, 0"),
    "socket_vsock": _call(41, "40, 1, 0"),
    "socketpair_dgram": _call(53, "1, 2, 0, bytes(8)"),
    "prctl_pdeathsig": _call(157, "1, 9, 0, 0, 0"),
    "prctl_subreaper": _call(157, "36, 1, 0, 0, 0"),
    "prctl_ptracer": _call(157, "0x59616d61, -1, 0, 0, 0"),
    "prctl_undumpable": _call(157, "4, 0, 0, 0, 0"),
    "seccomp": _call(317, "0, 0, 0"),
    "landlock": _call(444, "struct.pack('Q', 1), 8, 0"),
    "personality": _call(135, "0x0040000"),
    "setuid": _call(105, "0"),
    "setresuid_same": _call(117, "-1, -1, -1"),
    "setgroups": _call(116, "0, 0"),
    "capset": _call(126, "struct.pack('Ii', 0x20080522, 0), bytes(24)"),
    "setsid": _call(112),
    "setpgid": _call(109, "0, 0"),
    "chmod": _call(90, "b'{file}', 0o777"),
    "fchmod": _call(91, "os.open('x', 66), 0o777"),
    "fchmodat": _call(268, "-100, b'{file}', 0o777"),
    "fchmodat2": _call(452, "-100, b'{file}', 0o777, 0"),
    "chown": _call(92, "b'{file}', -1, -1"),
    "utimensat": _call(280, "-100, b'{file}', 0, 0"),
    "setxattr": _call(188, "b'{file}', b'user.x', b'x', 1, 0"),
    "link": _call(86, "b'{file}', b'linked'"),
    "symlink": _call(88, "b'{file}', b'linked'"),
    "mkfifo": _call(133, "b'fifo', 0o10600, 0"),
    "mknod": _call(133, "b'zero', 0o20600, 0x105"),
    "truncate": _call(76, "b'{file}', 0"),
    "name_to_handle_at": _call(303, "-100, b'.', struct.pack('Ii', 128, 0) + bytes(128), bytes(8), 0"),
    "open_by_handle_at": _call(304, "-100, bytes(136), 0"),
    "fanotify_init": _call(300, "0x200, 0"),
    "inotify_init1": _call(294, "0"),
    "timer_create": _call(222, "0, 0, bytes(8)"),
    "timerfd_create": _call(283, "0, 0"),
    "eventfd2": _call(290, "0, 0"),
    "signalfd4": _call(289, "-1, bytes(8), 8, 0"),
    "mlock": _call(149, "id(libc) & ~4095, 4096"),
    "vmsplice": _call(278, "1, 0, 0, 0"),
    "splice": _call(275, "0, 0, 1, 0, 0, 0"),
    "sendfile": _call(40, "1, 0, 0, 0"),
    "sync": _call(162),
    "acct": _call(163, "0"),
    "sethostname": _call(170, "b'x', 1"),
    "modify_ldt": _call(154, "0, bytes(16), 16"),
    "move_pages": _call(279, "0, 0, 0, 0, 0, 0"),
    "process_mrelease": _call(448, "0, 0"),
    "x32_fork": _call(0x40000000 + 57),
    "unknown": _call(999),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_refused(machine, name):
    machine.cheat(CALLS[name])


def test_they_are_refused_to_everybody(any_machine):
    attempts = "".join(f"try:\n    exec({code!r}, globals())\nexcept OSError: pass\n" for code in CALLS.values())
    any_machine.cheat(attempts)
