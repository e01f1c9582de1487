"""Servers of other projects in the gateway's benchmark, each in its own environment, all with the same upstream.

litellm and verifiers come from PyPI. rLLM's gateway and agent-lightning's server are installed from a checkout, named
by `AGENTRL_BENCH_RLLM` and `AGENTRL_BENCH_AGL`. agent-lightning needs Python 3.12: `AGENTRL_BENCH_PYTHON312`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from tests.benchmarks.environment import UnavailableError, environment
from tests.benchmarks.gateway.model import model_dir
from tests.benchmarks.gateway.process import Server
from tests.benchmarks.gateway.raw_client import Target
from tests.benchmarks.report import FOLDER

_START_S = 120
_KEY = "sk-benchmark-0123456789-abcdefghij"


class Contender(ABC):
    """One server under test."""

    name: ClassVar[str]
    model: ClassVar[str] = "mock"
    chat: ClassVar[str] = "/chat/completions"
    server: Server
    url: str

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.folder = (FOLDER / "peers" / self.name).absolute()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.start()

    @abstractmethod
    def start(self) -> None:
        """Start the server; also after it was killed."""

    @abstractmethod
    def open(self, count: int) -> list[Target]:
        """Open sessions; where their chat completions go."""

    def records(self, target: Target) -> str:
        """Return what was recorded of a session as text; empty where nothing is."""
        return ""

    def reopen(self) -> None:
        """Start again after a crash, on the same store."""
        self.server.kill()
        self.start()

    def target(self, path: str, **headers: str) -> Target:
        """Return an address on this server."""
        split = urlsplit(self.url)
        return Target(host=str(split.hostname), port=int(split.port or 0), path=path, headers=tuple(headers.items()))


class InProcess(Contender):
    """Our gateway with an engine in its process."""

    name = "agentrl"
    model = "default"

    def start(self) -> None:
        arguments = ["--model", str(model_dir()), "--folder", str(self.folder), *self._more()]
        self.server = Server.of_module("tests.benchmarks.gateway.serve", *arguments, log=self.folder / "log")
        self.url = self.server.read()["url"]

    def say_call(self) -> None:
        self.server.ask(do="say_call")

    def _more(self) -> list[str]:
        return []

    def open(self, count: int) -> list[Target]:
        opened = self.server.ask(do="open", count=count)
        return [
            self.target(f"{urlsplit(item['url']).path}/v1/chat/completions", authorization=f"Bearer {item['key']}")
            for item in opened
        ]

    def records(self, target: Target) -> str:
        return str(self.server.ask(do="records"))


class BeforeUpstream(InProcess):
    """Our gateway before the same upstream as the others."""

    name = "agentrl-upstream"

    def _more(self) -> list[str]:
        return ["--upstream", self.upstream]


class Rllm(Contender):
    """rLLM's model gateway."""

    name = "rllm"

    def start(self) -> None:
        port = _free_port()
        command = [
            _environment(self.name, "AGENTRL_BENCH_RLLM", "rllm-model-gateway") / "bin/rllm-model-gateway",
            *("--host", "127.0.0.1", "--port", port, "--worker", f"{self.upstream}/v1"),
            *("--store", "sqlite", "--db-path", self.folder / "traces.db", "--model", self.model),
        ]
        self.server, self.url = _start(command, port, self.folder, "/health")

    def open(self, count: int) -> list[Target]:
        found = [_call(f"{self.url}/sessions", {})["session_id"] for _ in range(count)]
        return [self.target(f"/sessions/{session}/v1/chat/completions") for session in found]

    def records(self, target: Target) -> str:
        _call(f"{self.url}/admin/flush", {})
        return json.dumps(_call(f"{self.url}{target.path.removesuffix('/v1/chat/completions')}/traces"))


class AgentLightning(Contender):
    """agent-lightning's server."""

    name = "agent-lightning"

    def start(self) -> None:
        port = _free_port()
        binary = _environment("agl", "AGENTRL_BENCH_AGL", "", python=_python_312) / "bin/agl-server"
        command = [binary, "host=127.0.0.1", f"port={port}", f"default_proxy.model_name={self.model}"]
        self.server, self.url = _start(command, port, self.folder, "/healthz")
        _call(f"{self.url}/api/models", [{"model": self.model, "endpoint": f"{self.upstream}/v1"}])

    def open(self, count: int) -> list[Target]:
        found = _call(f"{self.url}/api/rollouts", [{"input": {}} for _ in range(count)])
        path = "/proxy/rollout/{}/attempt/0/mode/train/openai/v1/chat/completions"
        return [self.target(path.format(item["rollout_id"])) for item in found]

    def records(self, target: Target) -> str:
        return json.dumps(_call(f"{self.url}/api/rollouts/{target.path.split('/')[3]}/events"))


class Verifiers(Contender):
    """verifiers' interception server."""

    name = "verifiers"

    def start(self) -> None:
        python = environment(self.name, "verifiers") / "bin/python"
        script = Path(__file__).with_name("verifiers_server.py")
        self.server = Server(
            [str(python), str(script), self.upstream], log=self.folder / "log", env={"MOCK_KEY": "x", "PYTHONPATH": ""}
        )
        self.url = self.server.read()["url"]

    def open(self, count: int) -> list[Target]:
        found = self.server.ask(do="open", count=count)
        return [self.target("/v1/chat/completions", authorization=f"Bearer {secret}") for secret in found]

    def records(self, target: Target) -> str:
        return str(self.server.ask(do="traces"))


class LiteLLM(Contender):
    """LiteLLM's proxy; it keeps no sessions."""

    name = "litellm"

    def start(self) -> None:
        port = _free_port()
        entry = {"model": "openai/mock", "api_base": f"{self.upstream}/v1", "api_key": "x"}
        config = {
            "model_list": [{"model_name": self.model, "litellm_params": entry}],
            "general_settings": {"master_key": _KEY},
        }
        path = self.folder / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        command = [environment(self.name, "litellm[proxy]") / "bin/litellm", "--config", path]
        env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}
        self.server, self.url = _start(
            [*command, "--host", "127.0.0.1", "--port", port], port, self.folder, "/health/liveliness", env
        )

    def open(self, count: int) -> list[Target]:
        return [self.target("/v1/chat/completions", authorization=f"Bearer {_KEY}")] * count


PEERS: tuple[type[Contender], ...] = (Rllm, AgentLightning, Verifiers, LiteLLM)


def _environment(name: str, checkout: str, package: str, *, python: Callable[[], str] = lambda: sys.executable) -> Path:
    """Return the environment of a peer that is installed from a checkout."""
    if checkout not in os.environ:
        raise UnavailableError(f"set {checkout} to a checkout of its repository")
    return environment(name, Path(os.environ[checkout]) / package, python=python())


def _python_312() -> str:
    found = os.environ.get("AGENTRL_BENCH_PYTHON312")
    if found is None and sys.version_info < (3, 12):
        raise UnavailableError("it needs Python 3.12: set AGENTRL_BENCH_PYTHON312 to one")
    return found or sys.executable


def _start(
    command: list[Any], port: str, folder: Path, health: str, env: dict[str, str] | None = None
) -> tuple[Server, str]:
    """Start a server and wait until it answers."""
    url = f"http://127.0.0.1:{port}"
    env = {"PYTHONPATH": "", **(env or {})}
    server = Server([str(item) for item in command], log=folder / "log", env=env, answers=False)
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and server.alive:
        try:
            urllib.request.urlopen(url + health, timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.25)
        else:
            return server, url
    server.close()
    raise UnavailableError(f"it did not start: {server.log_tail()[-300:]}")


def _call(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def _free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])
