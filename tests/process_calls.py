"""Functions that `test_processes.py` calls in worker processes."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path


def add(a, b):
    return a + b


def write_where_answers_go(data, times=1, then=None):
    """Write to the socket of the worker itself."""
    connection = next(item for item in gc.get_objects() if type(item) is Connection)
    for _ in range(times):
        os.write(connection.fileno(), data)
    if then == "leave":
        os._exit(0)
    if then == "hang":
        time.sleep(600)
    if then == "follow":  # write once more when the call is over
        send = connection.send_bytes
        Connection.send_bytes = lambda self, answer: (send(answer), os.write(self.fileno(), data))
    return 1.0


class Unreadable:
    """Can be read back nowhere but in its own process."""

    def __reduce__(self):
        return _own_process, (os.getpid(),)


def _own_process(number):
    if number != os.getpid():
        raise ZeroDivisionError("read elsewhere")


def give_what_cannot_be_read():
    return Unreadable()


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


def _with_a_silent_child(path):
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    path.write_text(str(child.pid))


def die_with_a_child(path):
    _with_a_silent_child(path)
    os.kill(os.getpid(), signal.SIGKILL)


def die_later_with_a_child(path):
    _with_a_silent_child(path)
    threading.Timer(0.2, os._exit, [1]).start()


def say_without_end():
    sys.stdout.write("x" * 20_000)
    sys.stdout.flush()


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


def read_start_environment():
    """Return the environment that the process was started with; every process of this user can read it."""
    return Path("/proc/self/environ").read_bytes()
