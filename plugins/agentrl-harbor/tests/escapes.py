"""Attempts to leave a local sandbox: shell commands that print ESCAPED if they succeed, and calls that must be refused.

Variables: `MOUNT`, a folder of the machine that the sandbox sees read-only; `SECRET`, a file that it does not see;
`VICTIM`, a process of the machine; `ABSTRACT` and `PORT`, sockets on which the machine listens.
"""

import json
from pathlib import Path

from agentrl_harbor.local import Local
from agentrl_harbor.task_dir import TaskDir

SAY = "&& echo ESCAPED"

SHELL = {
    # mounts
    "remount the folder of the machine": f'mount -o remount,bind,rw "$MOUNT" && echo HACKED > "$MOUNT/tool" {SAY}',
    "remount /usr": f"mount -o remount,bind,rw /usr; touch /usr/bin/planted {SAY}",
    "remount /usr with its file system": f"mount -o remount,rw /usr; touch /usr/bin/planted {SAY}",
    "remount /bin": f"mount -o remount,bind,rw /bin; touch /bin/planted {SAY}",
    "write without a remount": f'echo HACKED > "$MOUNT/tool" {SAY}',
    "bind the folder a second time": f'mkdir -p /m && mount --bind "$MOUNT" /m && echo HACKED > /m/tool {SAY}',
    "bind the folder with its submounts": f'mkdir -p /m; mount --rbind "$MOUNT" /m && echo HACKED > /m/tool {SAY}',
    "move a mount": f'mkdir -p /m && mount --move "$MOUNT" /m {SAY}',
    "unmount the folder": f'umount "$MOUNT" {SAY}',
    "unmount it lazily": f'umount -l "$MOUNT" {SAY}',
    "unmount everything": f"umount -a -l; umount -l /usr {SAY}",
    "mount over the interpreter": f"cp /bin/ls /tmp/py; mount --bind /tmp/py /usr/bin/env {SAY}",
    "a file system in memory on /tests": f"mkdir -p /tests; mount -t tmpfs none /tests {SAY}",
    "a second /proc": f"mkdir -p /m; mount -t proc proc /m {SAY}",
    "sysfs": f"mkdir -p /m; mount -t sysfs sysfs /m {SAY}",
    "an overlay over /usr": f"mkdir -p /u /w; mount -t overlay o -o lowerdir=/usr,upperdir=/u,workdir=/w /usr {SAY}",
    "the machine's disk": f"mkdir -p /m; for d in /dev/vda /dev/sda1 /dev/nvme0n1p1; do mount $d /m {SAY}; done",
    "make mounts shared": f"mount --make-rshared / {SAY}",
    # namespaces
    "a new user namespace": f"unshare --user --map-root-user true {SAY}",
    "a new mount namespace": f"unshare --mount true {SAY}",
    "both, then a remount": f'unshare -Urm mount -o remount,bind,rw "$MOUNT" {SAY}',
    "the first process's namespaces": f"nsenter --target 1 --mount --pid --net true {SAY}",
    "the first process's user namespace": f"nsenter --target 1 --user true {SAY}",
    "pivot_root": f"mkdir -p /n/o; mount --bind /n /n; cd /n; pivot_root . o {SAY}",
    "chroot and back": 'python3 -c \'import os,sys; os.makedirs("/j",exist_ok=True); d=os.open("/",0); os.chroot("/j");'
    ' os.fchdir(d); [os.chdir("..") for _ in range(60)]; os.chroot("."); print(open(sys.argv[1]).read())\' "$SECRET"'
    f" {SAY}",
    # /proc
    "root of the first process": f'cat "/proc/1/root$SECRET" {SAY}; ls /proc/1/root/ {SAY}',
    "roots of all processes": f'for p in /proc/[0-9]*; do cat "$p/root$SECRET" {SAY}; done',
    "working folders of all processes": 'for p in /proc/[0-9]*; do (cd "$p/cwd" && cat "../../../../../..$SECRET"'
    f" {SAY}); done",
    "open files of the first process": f"ls /proc/1/fd {SAY}; for n in $(seq 0 30); do (exec 9<>/proc/1/fd/$n) {SAY}; done",
    "memory of the first process": f"head -c 1 /proc/1/mem {SAY}; (exec 9</proc/1/mem) {SAY}",
    "variables of the first process": f"cat /proc/1/environ {SAY}",
    "core_pattern": f"(exec 9>>/proc/sys/kernel/core_pattern) {SAY}",
    "core_pattern after a remount": f"mount -o remount,bind,rw /proc/sys; (exec 9>>/proc/sys/kernel/core_pattern) {SAY}",
    "core_pattern below an unmounted /proc/sys": f"umount -l /proc/sys; (exec 9>>/proc/sys/kernel/core_pattern) {SAY}",
    "name of the module loader": f"(exec 9>>/proc/sys/kernel/modprobe) {SAY}",
    "limits on namespaces": f"(exec 9>>/proc/sys/user/max_user_namespaces) {SAY}",
    "caches of the machine": f"(exec 9>>/proc/sys/vm/drop_caches) {SAY}",
    "sysrq": f"(exec 9>>/proc/sysrq-trigger) {SAY}",
    "memory of the kernel": f"head -c 1 /proc/kcore {SAY}; head -c 1 /dev/mem {SAY}; head -c 1 /dev/kmsg {SAY}",
    "messages of the kernel": f"dmesg {SAY}",
    # devices and files
    "the machine's disk by its number": f"mknod /d b 254 0; mknod /e b 8 0; head -c 1 /d {SAY}; head -c 1 /e {SAY}",
    "memory by its number": f"mknod /mem c 1 1; head -c 1 /mem {SAY}",
    "a device that is not there": f"ls /dev/vda /dev/sda /dev/fuse /dev/kvm /dev/net/tun {SAY}; ls /sys/kernel {SAY}",
    "mode of the machine's /dev/null": f"chmod 000 /dev/null {SAY}; chown 0 /dev/null {SAY}; rm /dev/null {SAY}",
    "a link out": f'ln -sf "$SECRET" /l; cat /l {SAY}',
    "a hard link to a file of the machine": f'ln "$MOUNT/tool" /app/tool {SAY}; ln /usr/bin/env /app/env {SAY}',
    "a setuid copy": f'cp /usr/bin/env /app/env && chmod 4755 /app/env; grep -q "NoNewPrivs:.0" /proc/self/status {SAY}',
    "mode of a file of the machine": f'chmod 777 "$MOUNT/tool" {SAY}; touch "$MOUNT/tool" {SAY}',
    "swap": f"head -c 40960 /dev/zero > /s; mkswap /s; swapon /s {SAY}",
    "groups of processes": f"find / -xdev -name cgroup.procs 2>/dev/null | grep . {SAY}; ls /sys/fs/cgroup {SAY}",
    "the container engine's socket": f"ls /run/docker.sock /var/run/docker.sock /run/containerd {SAY}",
    "a library in every program": f"echo /app/evil.so > /etc/ld.so.preload {SAY}",
    "the same in a new /etc": f"mv /etc /old {SAY}",
    "the same by a new loader": f"mv /lib64 /old {SAY}; rm -rf /lib64 {SAY}; echo > /etc/ld.so.cache {SAY}",
    "core files": f"ulimit -c unlimited {SAY}; ulimit -c 100 {SAY}",
    "descriptors of the trainer": f"[ $(ls /proc/self/fd | wc -l) -gt 4 ] {SAY}",
    # processes and sockets
    "kill a process of the machine": f'kill -9 "$VICTIM" {SAY}',
    "stop the first process": f"for s in $(seq 1 64); do kill -$s 1; done; sleep 0.05; grep -q 'State:.[TtZX]' /proc/1/status {SAY}",
    "kill everything": "sleep 1000 & kill -9 -1; kill -9 -1",
    "trace the first process": f"command -v strace && timeout 1 strace -p 1 {SAY}",
    "the machine's loopback": f'timeout 1 bash -c "exec 3<>/dev/tcp/127.0.0.1/$PORT" {SAY}',
    "an abstract socket of the machine": "python3 -c 'import os,socket; s=socket.socket(socket.AF_UNIX);"
    f' s.connect("\\0"+os.environ["ABSTRACT"])\' {SAY}',
    "a raw socket": f"python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)' {SAY}",
    "settings of the network": f"ip link add v type veth {SAY}; ip addr add 10.9.9.9/8 dev lo {SAY}",
    "name of the machine": f"hostname other {SAY}",
    "a module of the sandbox's files in the first process": "mkdir -p /planted; for p in $(tr '\\0' ' ' < /proc/1/cmdline); do"
    ' mkdir -p $(dirname $p)/../lib/python3/encodings; echo \'open("/planted/x","w")\' >'
    f" $(dirname $p)/../lib/python3/encodings/ascii.py; done; [ -e /planted/x ] {SAY}",
}
"""What is tried -> command."""

# (call's number on x86_64, on aarch64, arguments); all must fail with EPERM, or ENOSYS where the kernel lacks them
CALLS = {
    "mount": (165, 40, ("none", "/tmp", "tmpfs", 0, 0)),
    "umount2": (166, 39, ("/usr", 2)),
    "pivot_root": (155, 41, ("/app", "/app")),
    "open_tree": (428, 428, (-100, "/usr", 1)),
    "move_mount": (429, 429, (-100, "/usr", -100, "/app", 0)),
    "fsopen": (430, 430, ("tmpfs", 0)),
    "fspick": (433, 433, (-100, "/usr", 0)),
    "mount_setattr": (442, 442, (-100, "/usr", 0, 0, 0)),
    "unshare users": (272, 97, (0x10000000,)),
    "unshare mounts": (272, 97, (0x20000,)),
    "unshare times": (272, 97, (0x80,)),
    "clone users": (56, 220, (0x10000011, 0, 0, 0, 0)),
    "clone3": (435, 435, (0, 0)),
    "setns": (308, 268, (0, 0)),
    "keyctl": (250, 219, (0, -3, 0, 0, 0)),
    "add_key": (248, 217, ("user", "agentrl", "x", 1, -3)),
    "request_key": (249, 218, ("user", "agentrl", 0, -3)),
    "bpf": (321, 280, (0, 0, 0)),
    "perf_event_open": (298, 241, (0, 0, -1, -1, 0)),
    "userfaultfd": (323, 282, (1,)),
    "io_uring_setup": (425, 425, (1, 0)),
    "open_by_handle_at": (304, 265, (-100, 0, 0)),
    "syslog": (103, 116, (3, 0, 0)),
    "init_module": (175, 105, (0, 0, "")),
    "delete_module": (176, 106, ("loop", 0)),
    "kexec_load": (246, 104, (0, 0, 0, 0)),
    "swapoff": (168, 225, ("/dev/vda",)),
    "reboot": (169, 142, (0xFEE1DEAD, 672274793, 0x1234567, 0)),
    "settimeofday": (164, 170, (0, 0)),
    "sethostname": (170, 161, ("x", 1)),
    "acct": (163, 89, ("/app/acct",)),
    "ptrace the first process": (101, 117, (16, 1, 0, 0)),
    "capset": (126, 91, ("\x22\x05\x08\x20" + "\0" * 4, "\xff" * 12 + "\xff" * 12)),
    "TIOCSTI": (16, 29, (1, 0x5412, "x")),
    "TIOCLINUX": (16, 29, (1, 0x541C, "x")),
}
"""Calls that must be refused."""

REPORT = """
import ctypes, errno, json, os, platform, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
column = ("x86_64", "aarch64").index(platform.machine())
libc.prctl(1, 9, 0, 0, 0)
found = {}
for name, call in json.loads(sys.argv[1]).items():
    words = [word.encode("latin-1") if isinstance(word, str) else ctypes.c_long(word) for word in call[2]]
    ctypes.set_errno(0)
    if libc.syscall(ctypes.c_long(call[column]), *words) == 0 and name == "clone users":
        os._exit(0)
    found[name] = errno.errorcode.get(ctypes.get_errno(), "ALLOWED")
pair = [struct.pack("QQ", place, 8) for place in (ctypes.addressof(ctypes.create_string_buffer(8)), 0x400000)]
libc.syscall(ctypes.c_long((310, 270)[column]), 1, pair[0], 1, pair[1], 1, 0)
found["read the first process's memory"] = errno.errorcode[ctypes.get_errno()]
if column == 0:
    libc.syscall(ctypes.c_long(0x40000000 + 165), b"none", b"/tmp", b"tmpfs", 0, 0)
    found["mount by an x32 number"] = errno.errorcode.get(ctypes.get_errno(), "ALLOWED")
    import mmap
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(b"\\x53\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\x5b\\xc3")  # push rbx; mov eax, 20 (getpid); int 0x80; pop; ret
    run = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    found["a 32-bit call"] = errno.errorcode.get(-run(), "ALLOWED")
print(json.dumps(found))
"""
"""Program that makes the calls of its first argument, and prints how each one was refused."""


async def tried(folder, parent, env):
    """Return the output of each attempt in one sandbox, and how calls were refused."""
    provider = Local(mounts=[env["MOUNT"]], parent=parent)
    await provider.start()
    try:
        sandbox = await provider.open(TaskDir.read(Path(folder)).environment)
        env = {**env, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        outputs = {}
        for name, command in SHELL.items():
            ended = await sandbox.run(command, timeout_s=30, limit_bytes=100_000, env=env)
            outputs[name] = f"{ended.text}[{ended.status}]"
        calls = json.dumps(CALLS).replace("'", "'\\''")
        program = REPORT.replace("'", "'\\''")
        ended = await sandbox.run(f"python3 -c '{program}' '{calls}'", timeout_s=30, limit_bytes=100_000)
        try:
            refusals = json.loads(ended.text)
        except ValueError:
            refusals = {"all": ended.text}
        alive = await sandbox.run("echo alive", timeout_s=30, limit_bytes=100)
        return {"outputs": outputs, "refusals": refusals, "alive": alive.text}
    finally:
        await provider.close()
