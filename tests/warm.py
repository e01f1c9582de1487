"""Server that forks command-line processes with torch already imported, which saves 5 s of CPU time per process.

`python -m tests.warm` is the server. A forked program has its own process, environment, folder, output and exit code
and ends like any process; only its parent is the server.
"""

import contextlib
import importlib
import os
import selectors
import signal
import socket
import subprocess
import sys
from array import array
from contextlib import contextmanager
from pathlib import Path

import orjson

_LARGEST = 2**20
_IMPORTED = ("torch", "transformers.modeling_utils", "agentrl_core.training.learner", "agentrl_core.engines.embedded")
cpu_s = [0.0]
"""Seconds that programs used which have ended: the server waited for them, so this process's times lack them."""


class Server:
    """Forks programs; it ends when its connection is closed, that is with the process that started it."""

    def __init__(self):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.warm", str(theirs.fileno())]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)

    def close(self):
        before = os.times()
        self._socket.close()
        self._process.wait()
        after = os.times()
        # its programs are among these, and are counted already
        cpu_s[0] -= after.children_user - before.children_user + after.children_system - before.children_system

    @contextmanager
    def program(self, *arguments, cwd=None, **variables):
        """Run `agentrl ARGUMENTS` with this process's environment and `variables`; it is killed at the end."""
        read, write = os.pipe()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs, open(read, encoding="utf-8", errors="replace") as output:  # noqa: PTH123 - of a descriptor
            request = {
                "arguments": [str(item) for item in arguments],
                "environment": os.environ | {"OMP_NUM_THREADS": "1"} | variables,
                "folder": str(cwd or Path.cwd()),
            }
            passed = array("i", [write, theirs.fileno()])
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)]
            self._socket.sendmsg([orjson.dumps(request)], ancillary)
            os.close(write)
            theirs.close()
            program = Program(ours, output)
            try:
                yield program
            finally:
                if program.returncode is None:
                    with contextlib.suppress(ProcessLookupError):  # it has ended, and nobody waited for it
                        program.send_signal(signal.SIGKILL)
                    program.wait()


class Program:
    """The part of `subprocess.Popen` that tests use; standard error goes to standard output."""

    def __init__(self, connection, output):
        self._connection = connection
        self.stdout = output
        self.pid = orjson.loads(connection.recv(64))
        self.returncode = None

    def send_signal(self, number):
        os.kill(self.pid, number)

    def wait(self, timeout=None):
        """Return the exit code, negative for a signal."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            told = self._connection.recv(64)
            if not told:
                raise RuntimeError("the server of warm processes has ended")
            status, used_s = orjson.loads(told)
            self.returncode = os.waitstatus_to_exitcode(status)
            cpu_s[0] += used_s
        return self.returncode

    def communicate(self, timeout=None):
        """Read the output to its end, then wait. The timeout is for the wait: each test has its own limit."""
        told = self.stdout.read()
        self.wait(timeout)
        return told, None


def serve(connection):
    """Fork a program for every request, and tell each one's end; returns what the child is to run, in the child."""
    waiting = {}
    wakeup, ended = socket.socketpair()
    for one in (wakeup, ended):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ended.fileno())
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(wakeup, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is wakeup:
                    wakeup.recv(4096)
                    continue
                request, ancillary, *_ = connection.recvmsg(_LARGEST, socket.CMSG_SPACE(2 * array("i").itemsize))
                if not request:
                    sys.exit()
                output, channel = array("i", ancillary[0][2])
                child = os.fork()
                if child == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for one in (connection, wakeup, ended, *waiting.values()):
                        one.close()
                    os.close(channel)
                    return orjson.loads(request), output
                os.close(output)
                waiting[child] = socket.socket(fileno=channel)
                waiting[child].send(orjson.dumps(child))
            while waiting:
                child, status, used = os.wait4(-1, os.WNOHANG)
                if child == 0:
                    break
                with waiting.pop(child) as told, contextlib.suppress(OSError):  # who does not wait goes untold
                    told.send(orjson.dumps([status, used.ru_utime + used.ru_stime]))


def become(request, output):
    """Make this process the program of a request."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)
    sys.argv = ["agentrl", *request["arguments"]]
    sys.path[:] = [item for item in os.environ.get("PYTHONPATH", "").split(os.pathsep) if item] + sys.path


if __name__ == "__main__":
    from agentrl_core.cli import main

    for module in _IMPORTED:
        importlib.import_module(module)
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        become(*serve(asked))
    sys.exit(main())
