"""Servers that the engine launches: they are ready when `start` returns, and end with the run, however it ends."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.request import urlopen

import attrs
import pytest

from agentrl_core.api.remote import ServerCommand, ServerLaunch
from agentrl_core.concurrency.secrecy import withhold
from agentrl_core.config.component import Component
from agentrl_core.engines.remote import launching
from agentrl_core.engines.remote.launching import Launch, LaunchedServers
from agentrl_core.errors import ConfigError, EngineError
from agentrl_core.plugins.manager import load_registry
from agentrl_sglang.program import SGLangProgram
from agentrl_vllm.program import FOR_SERVER, VLLMProgram

FAKE = Path(__file__).with_name("fake_program.py")
DEADLINE_S = 60.0


class Fake:
    ready_path = "/health"

    def __init__(self, folder, mode="serve"):
        self.folder, self.mode, self.model_dirs = folder, mode, []

    def command(self, launch):
        self.model_dirs.append(launch.model_dir)
        argv = (launch.python, str(FAKE), str(launch.port), str(self.folder), self.mode)
        return ServerCommand(argv=argv, environ={"FAKE_DEFAULT": "program's"}, python_path=(self.folder,))


def until(condition):
    """Wait for what another process does."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def launch(tmp_path):
    """Make servers of the fake program; they end with the test."""
    made = []

    def make(mode="serve", *, on_end=lambda _: None, **options):
        servers = LaunchedServers(
            Fake(tmp_path, mode),
            Launch(device="cpu", **options),
            name="Fake",
            model_dir=tmp_path,
            dtype="float32",
            log_dir=tmp_path / "logs",
            on_end=on_end,
        )
        made.append(servers)
        return servers

    yield make
    for servers in made:
        servers.close()


def told_by(servers, folder):
    return [json.loads((folder / f"{url.rpartition(':')[2]}.json").read_text()) for url in servers.urls]


def test_servers_are_ready_after_the_start_and_end_with_all_their_processes(launch, tmp_path):
    servers = launch(replicas=2)
    servers.start()
    for url in servers.urls:
        with urlopen(f"{url}/health") as reply:
            assert reply.status == 200
    assert all(url.startswith("http://127.0.0.1:") for url in servers.urls)
    pids = [pid for told in told_by(servers, tmp_path) for pid in told["pids"]]
    assert len(pids) == 4
    servers.close()
    until(lambda: not any(map(is_running, pids)))
    servers.close()  # idempotent
    log = tmp_path / "logs" / "server-1.log"
    assert log.read_text().startswith("serving\n")
    assert log.stat().st_mode & 0o077 == 0


def test_a_server_that_is_still_starting_is_waited_for(launch, tmp_path):
    servers = launch("busy")
    servers.start()
    assert '"GET /health HTTP/1.1" 503' in (tmp_path / "logs" / "server-0.log").read_text()


def test_a_server_that_ends_at_the_start_shows_its_first_error_and_its_last_lines(launch):
    with pytest.raises(
        EngineError, match=r"Fake server 0 has ended with exit code 3; from its log .*server-0\.log"
    ) as e:
        launch("die").start()
    lines = str(e.value).splitlines()[1:]
    assert lines[0].strip() == "RuntimeError: no room for the model"
    assert lines[-1].strip() == "line 39"
    assert len(lines) < 20


def test_a_program_that_is_missing_is_told(launch):
    with pytest.raises(EngineError, match=r"the server cannot be started: .*No such file .*/nowhere/python"):
        launch(python="/nowhere/python").start()


def test_a_server_that_is_never_ready_is_told_with_the_option(launch, tmp_path):
    servers = launch("deaf", ready_s=0.5)
    with pytest.raises(EngineError, match=r"does not take requests after launch\.ready_s = 0\.5 s"):
        servers.start()


def test_a_server_that_is_killed_is_started_again_until_it_has_been_too_often(launch, tmp_path):
    ends = queue.Queue()
    servers = launch(restarts=1, on_end=ends.put)
    servers.start()
    file = tmp_path / f"{servers.urls[0].rpartition(':')[2]}.json"
    for _ in range(2):
        until(file.exists)
        first, worker = told_by(servers, tmp_path)[0]["pids"]
        file.unlink()
        os.kill(first, signal.SIGKILL)
        until(lambda pid=worker: not is_running(pid))
    assert "has ended with signal 9" in ends.get(timeout=DEADLINE_S)
    assert not file.exists()


def test_a_server_is_started_again_with_the_directory_of_the_newest_weights(tmp_path):
    program = Fake(tmp_path)
    ends = queue.Queue()
    options = {"name": "Fake", "model_dir": tmp_path / "version-0", "dtype": "float32", "log_dir": tmp_path}
    servers = LaunchedServers(program, Launch(device="cpu", restarts=1), on_end=ends.put, **options)
    try:
        servers.start()
        file = tmp_path / f"{servers.urls[0].rpartition(':')[2]}.json"
        until(file.exists)
        (first, _), _ = told_by(servers, tmp_path)[0]["pids"], file.unlink()
        servers.restart_from(tmp_path / "version-7")
        os.kill(first, signal.SIGKILL)
        until(file.exists)
        assert [path.name for path in program.model_dirs] == ["version-0", "version-0", "version-7"]
    finally:
        servers.close()


def test_a_server_that_cannot_be_started_again_ends_the_run(launch, tmp_path, monkeypatch):
    ends = queue.Queue()
    servers = launch(restarts=1, on_end=ends.put)
    servers.start()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))
    os.kill(told_by(servers, tmp_path)[0]["pids"][0], signal.SIGKILL)
    assert "server 0 cannot be started again: " in ends.get(timeout=DEADLINE_S)


def test_servers_end_with_a_run_that_is_killed(tmp_path):
    script = f"""
import sys, time
sys.path.insert(0, {str(FAKE.parent)!r})
from pathlib import Path
from test_launching import Fake, Launch, LaunchedServers
folder = Path({str(tmp_path)!r})
servers = LaunchedServers(Fake(folder), Launch(device="cpu"), name="Fake", model_dir=folder, dtype="float32",
                          log_dir=None, on_end=print)
servers.start()
print(servers.urls[0], flush=True)
time.sleep(600)
"""
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with run:
        port = run.stdout.readline().strip().rpartition(":")[2]
        pids = json.loads((tmp_path / f"{port}.json").read_text())["pids"]
        assert all(map(is_running, pids))
        run.kill()
    until(lambda: not any(map(is_running, pids)))


def test_a_server_gets_our_environment_without_secrets_and_the_users_words_win(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("LAUNCH_TEST_ADMIN_KEY", "secret")
    monkeypatch.setenv("LAUNCH_TEST_OURS", "ours")
    monkeypatch.setenv("PYTHONPATH", "/earlier")
    withhold("LAUNCH_TEST_ADMIN_KEY")
    servers = launch(env={"FAKE_DEFAULT": "user's"})
    servers.start()
    environ = told_by(servers, tmp_path)[0]["environ"]
    assert "LAUNCH_TEST_ADMIN_KEY" not in environ
    assert (environ["LAUNCH_TEST_OURS"], environ["FAKE_DEFAULT"]) == ("ours", "user's")
    assert environ["PYTHONPATH"] == f"{tmp_path}{os.pathsep}/earlier"


def test_gpus_are_shared_out_to_the_servers(monkeypatch):
    monkeypatch.setattr(launching, "_visible_gpus", lambda: ["4", "5", "6", "7"])
    assert launching._placement(Launch()) == ("cuda", [("4",), ("5",), ("6",), ("7",)])
    assert launching._placement(Launch(tp=2)) == ("cuda", [("4", "5"), ("6", "7")])
    assert launching._placement(Launch(gpus=(1, 2, 3), tp=2)) == ("cuda", [("5", "6")])
    assert launching._placement(Launch(gpus=(3,), replicas=1)) == ("cuda", [("7",)])
    assert launching._placement(Launch(device="cpu", replicas=2)) == ("cpu", [(), ()])
    for options, says in [
        ({"tp": 8}, "'replicas' 1 with 'tp' 8 needs 8 GPUs, found 4"),
        ({"gpus": (4,)}, "no GPU 4; torch can use 4"),
        ({"gpus": (1, 1)}, "twice"),
    ]:
        with pytest.raises(ValueError, match=says):
            launching._placement(Launch(**options))
    monkeypatch.setattr(launching, "_visible_gpus", list)
    assert launching._placement(Launch()) == ("cpu", [()])
    with pytest.raises(ValueError, match="about GPUs"):
        launching._placement(Launch(tp=2))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "expected exactly one of the options 'url', 'servers_file' and 'launch'"),
        ({"url": "http://a:1", "launch": {}}, "expected exactly one of"),
        ({"launch": {"replicas": 0}}, "'replicas' must be at least 1"),
        ({"launch": {"gpu_memory": 1.5}}, "'gpu_memory' must be above 0 and at most 1"),
        ({"launch": {"restarts": -1}}, "'restarts' must be at least 0"),
        ({"launch": {"tps": 2}}, r"launch\.tps: unknown option.*tp"),
        ({"launch": {"device": "tpu"}}, r"launch\.device: expected auto or cpu or cuda"),
    ],
)
def test_a_wrong_section_is_told_by_its_option(tmp_path, options, says):
    registry = load_registry(environ={})
    with pytest.raises(ConfigError, match=says):
        registry.build("engines", Component("vllm", options), model_dir=tmp_path)


GIVEN = ServerLaunch(
    python="/envs/v/bin/python",
    model_dir=Path("/models/m"),
    host="127.0.0.1",
    port=8123,
    device="cuda",
    tp=2,
    dtype="bfloat16",
    context_length=4096,
    gpu_memory=0.4,
)


def test_the_command_lines_say_what_training_needs():
    vllm = VLLMProgram().command(GIVEN)
    assert " ".join(vllm.argv) == (
        "/envs/v/bin/python -m vllm.entrypoints.cli.main serve /models/m --served-model-name policy --host 127.0.0.1 "
        "--port 8123 --dtype bfloat16 --tensor-parallel-size 2 --enable-scale-out --logprobs-mode processed_logprobs "
        "--enable-prompt-tokens-details --generation-config vllm --enable-sleep-mode --max-model-len 4096 "
        "--gpu-memory-utilization 0.4"
    )
    assert vllm.environ["VLLM_SERVER_DEV_MODE"] == "1"
    assert vllm.python_path == ()
    sglang = SGLangProgram().command(GIVEN)
    assert " ".join(sglang.argv) == (
        "/envs/v/bin/python -m sglang.launch_server --model-path /models/m --served-model-name policy --host 127.0.0.1 "
        "--port 8123 --dtype bfloat16 --tp-size 2 --device cuda --context-length 4096 --mem-fraction-static 0.4"
    )


def test_vllm_on_the_cpu_gets_the_plugin_that_its_output_layer_needs():
    command = VLLMProgram().command(attrs.evolve(GIVEN, device="cpu", tp=1, gpu_memory=None))
    assert {"--no-enable-chunked-prefill", "--enforce-eager"} <= set(command.argv)
    assert "--enable-sleep-mode" not in command.argv
    assert command.python_path == (FOR_SERVER,)
    entry = next(FOR_SERVER.glob("*.dist-info/entry_points.txt")).read_text()
    assert entry == "[vllm.general_plugins]\nagentrl_cpu = agentrl_vllm_cpu:register\n"


def test_no_thread_is_left():
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch Fake")]
