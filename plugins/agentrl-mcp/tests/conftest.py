"""Test servers as real processes."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

RAW = Path(__file__).with_name("raw_server.py")


class HttpProcess:
    """A raw server over HTTP, which can be killed and started again on its port."""

    def __init__(self, *arguments):
        self._arguments = arguments
        self.port = 0
        self.process = None
        self.start()

    def start(self):
        command = [sys.executable, "-S", str(RAW), "--http", str(self.port), *self._arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.port = int(self.process.stdout.readline())

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/mcp"


@pytest.fixture
def http_server():
    """Function that starts a raw server over HTTP with these arguments."""
    with contextlib.ExitStack() as stack:

        def start(*arguments):
            server = HttpProcess(*arguments)
            stack.callback(server.kill)
            return server

        yield start
