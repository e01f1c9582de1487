import os
import signal
import subprocess
import sys

import psutil
import pytest

pytestmark = pytest.mark.slow  # imports torch


def test_a_program_is_what_a_process_is(warm, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "77")
    arguments = ("config", "check", "missing.yaml")
    done = subprocess.run(
        [sys.executable, "-m", "agentrl_core", *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    with warm.program(*arguments, cwd=tmp_path) as program:
        told, _ = program.communicate()
    assert (program.returncode, told) == (done.returncode, done.stdout + done.stderr)
    assert done.returncode == 2


def test_a_program_has_its_own_pid_and_dies_of_signals(warm, tmp_path):
    (tmp_path / "agent.py").write_text("import os, signal\nprint(os.getpid(), flush=True)\nsignal.pause()\n")
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "query": "b", "answer": "c"}\n')
    (tmp_path / "config.yaml").write_text(
        "model: {use: tiny}\ndata: {train: tasks.jsonl}\nworkflow: agent.py:run\ntrainer: {steps: 1}\n"
    )
    with warm.program("run", "config.yaml", cwd=tmp_path) as program:
        assert int(program.stdout.readline()) == program.pid != os.getpid()
        program.send_signal(signal.SIGKILL)
        assert program.wait() == -signal.SIGKILL
    with warm.program("run", "config.yaml", cwd=tmp_path) as left:
        left.stdout.readline()
    assert not psutil.pid_exists(left.pid)
