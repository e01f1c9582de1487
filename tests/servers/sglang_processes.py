"""Processes of the tests: fakes of SGLang, and the real sglang-router in front of them."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
READY_S = 120.0
"""Longest time until a process answers."""


class Fake:
    """A fake SGLang server of a model directory; `port` is that of an earlier one, to come back at its address."""

    def __init__(self, model_dir, log, *options, port=0):
        self.log = Path(log)
        with socket.create_server(("127.0.0.1", port)) as bound, self.log.open("ab") as file:
            # Whoever connects before the process serves waits for it.
            self.port = bound.getsockname()[1]
            command = [sys.executable, "-m", "tests.servers.sglang_fake", "--model-path", str(model_dir), *options]
            self._process = subprocess.Popen(
                [*command, "--fd", str(bound.fileno())],
                pass_fds=[bound.fileno()],
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
                stdout=file,
                stderr=file,
            )
        self.url = f"http://127.0.0.1:{self.port}"

    def count(self, line):
        """Return how often a line of the log contains `line`."""
        return self.log.read_text(encoding="utf-8", errors="replace").count(line)

    def close(self):
        """End the process at once, as a crash would."""
        self._process.kill()
        self._process.wait()


class Router:
    """The real sglang-router in front of `urls`; returns once it lists them all."""

    def __init__(self, urls, log, *, port=0):
        if not port:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
        # Otherwise it counts requests on port 29000, whoever has that.
        with socket.create_server(("127.0.0.1", 0)) as free:
            command += ["--prometheus-port", str(free.getsockname()[1])]
        workers = ["--worker-urls", *urls] if urls else []
        with Path(log).open("ab") as file:
            self._process = subprocess.Popen([*command, *workers], stdout=file, stderr=file)
        deadline = time.monotonic() + READY_S
        while len(self.workers()) < len(urls) or not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError(f"the router did not start: {Path(log).read_text(encoding='utf-8')[-2000:]}")
            time.sleep(0.05)

    def answers(self):
        """Return whether it serves."""
        return self._get("/workers") is not None

    def workers(self):
        """Return its workers, with their ids and addresses."""
        return (self._get("/workers") or {"workers": []})["workers"]

    def _get(self, path, method="GET", body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return json.loads(reply.read() or b"null")
        except urllib.error.URLError:
            return None

    def add(self, url):
        """Register a worker."""
        self._get("/workers", "POST", {"url": url})

    def remove(self, url):
        """Remove a worker."""
        for worker in self.workers():
            if worker["url"] == url:
                self._get(f"/workers/{worker['id']}", "DELETE")

    def close(self):
        """End the process at once."""
        self._process.kill()
        self._process.wait()
