"""Agents on the same machine and of the same user do not find the run's admin key."""

import asyncio
import ctypes
import os
import subprocess
import sys

import pytest

from agentrl_core.concurrency.processes import close_workers, run_in_process
from agentrl_core.gateway.online.admin import key_from_environment

SEALED = """
import ctypes
import os
import subprocess

from agentrl_core.concurrency.secrecy import seal

if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as in every process that began as this user

def read(name):
    return subprocess.run(["cat", f"/proc/{os.getpid()}/{name}"], capture_output=True, check=False).stdout

assert b"THE_KEY=of-the-run" in read("environ")
seal()
print(b"THE_KEY" in read("environ"))
for own in ("/proc/self/statm", f"/proc/self/task/{os.getpid()}/schedstat"):
    with open(own) as file:
        assert file.read()
assert os.listdir("/proc/self/fd")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_other_processes_of_the_user_cannot_read_the_environment_of_a_sealed_one():
    done = subprocess.run(
        [sys.executable, "-c", SEALED], env={**os.environ, "THE_KEY": "of-the-run"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_processes_of_scorers_do_not_get_the_admin_key(monkeypatch):
    monkeypatch.setattr("agentrl_core.concurrency.secrecy._withheld", set())
    monkeypatch.setenv("ZOO_ADMIN_KEY", "z" * 32)
    monkeypatch.setenv("ZOO_OTHER", "a lion")
    assert key_from_environment("ZOO_ADMIN_KEY") == "z" * 32
    try:
        found = [asyncio.run(run_in_process(os.getenv, name, timeout_s=30)) for name in ("ZOO_ADMIN_KEY", "ZOO_OTHER")]
    finally:
        close_workers()
    assert found == [None, "a lion"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such setting")
@pytest.mark.parametrize("hidden", [True, False])
def test_a_run_that_starts_agents_on_this_machine_is_sealed_and_says_so_unless_it_is_told_not_to(tmp_path, hidden):
    from agentrl_core.config.sampling_sections import AgentConfig, RolloutConfig
    from agentrl_core.plugins.manager import load_registry
    from agentrl_core.rollout.subproc.resolving import resolve_in_workers

    libc = ctypes.CDLL(None)
    libc.prctl(4, 1, 0, 0, 0)
    (tmp_path / "sealed_agent.py").write_text("def run(data): return 1.0\n")
    config = RolloutConfig(agent=AgentConfig(mode="subproc", python=sys.executable, subproc_hide_run=hidden))
    source = resolve_in_workers("sealed_agent.py:run", registry=load_registry(), base_dir=tmp_path, rollout=config)
    source.close_now()
    assert libc.prctl(3, 0, 0, 0, 0) == (not hidden)
    assert ("no py-spy, no core dump" in source.notice) == hidden
