"""Fixtures that run agents of a file in this process, in workers, and in workers of an interpreter without agentrl."""

import subprocess
import sys
import time

import psutil
import pytest

from agentrl_core.config.sampling_sections import AgentConfig, RolloutConfig
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.subproc.resolving import resolve_in_workers
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.types import Task
from agentrl_testing.workflows import Rehearsal

ASK = '''
"""Agents that need nothing but the standard library."""
import json
import os
import urllib.request


def ask(data, base_url=None, api_key=None):
    body = json.dumps({"model": "default", "messages": data["messages"]}).encode()
    headers = {
        "authorization": f"Bearer {api_key or os.environ['OPENAI_API_KEY']}",
        "content-type": "application/json",
    }
    base_url = f"{base_url}/v1" if base_url else os.environ["OPENAI_BASE_URL"]
    request = urllib.request.Request(f"{base_url}/chat/completions", body, headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)
'''


def is_running(pid):
    """Whether a process is there, and more than a zombie that its parent has not collected."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pid, within_s=10.0):
    """Whether a process ends in time."""
    end = time.monotonic() + within_s
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not is_running(pid)


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory):
    """An interpreter without a single package."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    rehearsal = Rehearsal(tmp_path_factory.mktemp("rehearsal"), lambda prompt: "4")
    yield rehearsal
    rehearsal.close()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def agents(folder, request):
    """Write a module of agents; `agents(code)` returns its file's name, another one in each test."""
    name = f"agents_{abs(hash(request.node.nodeid)):x}.py"

    def write(code):
        (folder / name).write_text(ASK + code, encoding="utf-8")
        return name

    return write


@pytest.fixture
def resolve(folder, bare_python, rehearsal):
    """`resolve(workflow, mode)`: the modes are inline, subproc and python; what is left of workers is ended."""
    made = []

    def resolve(workflow, mode="subproc", *, most=1, timeout_s=60.0, **agent):
        if mode == "inline":
            return resolve_workflow(workflow, registry=load_registry(), base_dir=folder)
        if mode == "python":
            agent.setdefault("python", bare_python)
        config = RolloutConfig(
            timeout_s=timeout_s, agent=AgentConfig(mode="subproc", subproc_max_workers=most, **agent)
        )
        resolved = resolve_in_workers(workflow, registry=load_registry(), base_dir=folder, rollout=config)
        made.append(resolved)
        return resolved

    yield resolve
    for resolved in made:
        rehearsal._loop.run(resolved.close())


@pytest.fixture
def task():
    def make(number=0, **data):
        return Task(
            id=f"t{number}", data={"id": f"t{number}", "messages": [{"role": "user", "content": "2 + 2?"}], **data}
        )

    return make


@pytest.fixture
def play(rehearsal, resolve, task):
    """Run episodes of a workflow, one after another, and return their records."""

    def play(workflow, mode="subproc", *, count=1, timeout_s=60.0, tools=None, **agent):
        resolved = resolve(workflow, mode, **agent) if isinstance(workflow, str) else workflow
        return [
            rehearsal.play(resolved, [task(number)], timeout_s=timeout_s, tools=tools)[0].record
            for number in range(count)
        ]

    return play
