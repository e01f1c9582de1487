"""What `test_processes.py` calls in worker processes."""

import os
import subprocess
import sys
import time


def add(a, b):
    return a + b


def process_id():
    return os.getpid()


def fail(text):
    raise ValueError(text)


class DemandingError(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def fail_oddly():
    raise DemandingError("one", "two")


def give_what_cannot_be_sent():
    return lambda: None


def hang(path):
    path.write_text(str(os.getpid()))
    while True:
        time.sleep(0.01)


def hang_with_a_child(path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    path.write_text(str(child.pid))
    child.wait()


def fork():
    """Return twice."""
    return os.fork() == 0


def die():
    sys.stdout.write("last words\n")
    sys.stdout.flush()
    os._exit(3)


def leave():
    sys.exit(4)


def allocate(megabytes):
    return len(bytearray(megabytes * 2**20))


def talk():
    sys.stdout.write("hello\n")
    return sys.stdin.read()


class Scorer:
    def __init__(self, bonus):
        self.bonus = bonus

    def __call__(self, text):
        return len(text) + self.bonus
