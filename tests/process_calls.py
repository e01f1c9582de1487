"""What `test_processes.py` calls in worker processes."""

import gc
import os
import subprocess
import sys
import time
from multiprocessing.connection import Connection


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
