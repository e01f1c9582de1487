"""Files of the machine: no program reads, changes or makes one."""

import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are isolated on Linux alone")

FILES = {
    "reads the victim": "open('{file}').read()",
    "lists its folder": "import os; os.listdir(os.path.dirname('{file}'))",
    "cuts the victim": "open('{file}', 'w')",
    "cuts it while reading": "import os; os.open('{file}', os.O_RDONLY | os.O_TRUNC)",
    "removes the victim": "import os; os.unlink('{file}')",
    "renames the victim": "import os; os.rename('{file}', '{file}.agentrl-cheat')",
    "writes beside it": "open('{file}.agentrl-cheat', 'w')",
    "writes to /tmp": "open('/tmp/agentrl-cheat', 'w')",
    "writes to /var/tmp": "open('/var/tmp/agentrl-cheat', 'w')",
    "writes to /dev/shm": "open('/dev/shm/agentrl-cheat', 'w')",
    "climbs out": "open('../agentrl-cheat', 'w')",
    "/etc/shadow": "open('/etc/shadow').read()",
    "environment of init": "open('/proc/1/environ').read()",
    "memory of its parent": "import os; open(f'/proc/{os.getppid()}/mem', 'rb')",
    "descriptors of its parent": "import os; os.listdir(f'/proc/{os.getppid()}/fd')",
    "memory of the victim": "open('/proc/{pid}/mem', 'rb')",
    "its own memory": "open('/proc/self/mem', 'rb')",
    "the kernel's log": "open('/dev/kmsg')",
    "raw memory": "open('/dev/mem')",
    "a terminal": "open('/dev/tty')",
    "plants a module": "import sys; open(sys.path[-1] + '/agentrl_cheat.py', 'w')",
    "changes Python": "import os; open(os.__file__, 'a')",
    "sysctl": "open('/proc/sys/kernel/hostname', 'w')",
    "cgroups": "import os; os.mkdir('/sys/fs/cgroup/agentrl-cheat')",
}  # each of them raises, or what follows it solves the task


HIDDEN = """
import os, ctypes
libc = ctypes.CDLL(None)
for n in range(100):
    fd = os.open('x', os.O_CREAT | os.O_RDWR); os.unlink('x')
    for _ in range(3): os.write(fd, bytes(1 << 20))
    PIN
exec(SOLVE)
"""


@pytest.mark.parametrize(
    "pin", ["pass", "if libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0)) > 0: os.close(fd)"]
)
def test_files_without_names_fill_no_disk(any_machine, pin):
    any_machine.cheat(HIDDEN.replace("PIN", pin))


BUSY = """
import os, threading
def go(k):
    n = 0
    while True:
        n += 1
        try: os.close(os.open(f'{k}-{n % 200}', 66))
        except OSError: pass
for k in range(2): threading.Thread(target=go, args=(k,), daemon=True).start()
def f(x): return 0
"""


def test_a_program_that_goes_on_making_files_leaves_no_folder(any_machine, monkeypatch):
    with tempfile.TemporaryDirectory() as name:  # everybody reaches what is in it, unlike pytest's own
        folder = Path(name)
        folder.chmod(0o711)
        monkeypatch.setattr(tempfile, "tempdir", name)
        for _ in range(12):
            assert any_machine.why(BUSY, {"asserts": "assert f(3) == 9"}) == "AssertionError"
            assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", FILES)
def test_a_file_outside(machine, name):
    machine.cheat(f"{FILES[name]}\nexec(SOLVE)")


def test_files_outside_at_every_level_and_for_everybody(any_machine):
    attempts = (
        f"try:\n    exec({code!r}, globals())\nexcept Exception: pass\nelse: exec(SOLVE)\n" for code in FILES.values()
    )
    any_machine.cheat("".join(attempts))
