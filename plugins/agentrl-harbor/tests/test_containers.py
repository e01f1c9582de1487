"""Containers by the command line of Docker or Podman, against a stand-in that checks every option.

Where Docker's real program is installed, it reads the same options, up to the engine that is missing.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_core.errors import EnvironmentLostError, ToolServerError
from agentrl_harbor.containers import Containers
from agentrl_harbor.sandbox import TESTS, VERIFIER_LOGS, UnusableError, pack_file, read_file
from agentrl_harbor.task_dir import TaskDir

FAKE = Path(__file__).with_name("fake_engine.py")


@pytest.fixture
def state(tmp_path, monkeypatch):
    return make_engine("docker", tmp_path, monkeypatch)


def make_engine(name, tmp_path, monkeypatch):
    state, programs = tmp_path / "engine", tmp_path / "bin"
    for folder in (state / "containers", state / "images", programs):
        folder.mkdir(parents=True)
    program = programs / name
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {FAKE} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_ENGINE", str(state))
    return state


@contextlib.asynccontextmanager
async def opened(folder, name="docker"):
    provider = Containers(name)
    await provider.start()
    try:
        yield await provider.open(TaskDir.read(folder).environment)
    finally:
        await provider.close()


def commands(state, name):
    lines = (json.loads(line) for line in (state / "log").read_text().splitlines())
    return [line for line in lines if line[0] == name]


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_commands_run_in_a_container_of_the_built_image(make_task, tmp_path, monkeypatch, name):
    state = make_engine(name, tmp_path, monkeypatch)
    config = (
        '[environment]\ncpus = 1.5\nmemory = "2G"\nnetwork_mode = "no-network"\nenv = {KEY = "${AGENTRL_TEST_KEY}"}\n'
    )
    monkeypatch.setenv("AGENTRL_TEST_KEY", "a secret")

    async def scenario():
        async with opened(make_task(config=config), name) as box:
            ended = await box.run(
                "cat words.txt; echo $KEY $MORE; exit 3", timeout_s=30, limit_bytes=1000, env={"MORE": "m"}
            )
            assert (ended.status, ended.text) == (3, "one two\na secret m\n")

    asyncio.run(scenario())
    (given,) = commands(state, "run")
    for pair in (("--network", "none"), ("--cpus", "1.5"), ("--memory", "2048m"), ("--memory-swap", "2048m")):
        assert given[given.index(pair[0]) + 1] == pair[1]
    assert "a secret" not in (state / "log").read_text()
    assert list((state / "containers").iterdir()) == []


def test_an_image_is_built_once_for_its_content(make_task, state):
    async def scenario():
        provider = Containers("docker")
        await provider.start()
        tasks = [TaskDir.read(make_task(name)) for name in ("a", "b", "c")]
        await asyncio.gather(*(provider.open(task.environment) for task in tasks))
        await provider.open(TaskDir.read(make_task("d", environment__words_DOT_txt="other")).environment)
        await provider.close()

    asyncio.run(scenario())
    assert len(commands(state, "build")) == 2
    assert len(commands(state, "run")) == 4


def test_a_command_that_never_ends_is_killed_in_the_container(make_task, state):
    async def scenario():
        async with opened(make_task()) as box:
            ended = await box.run("echo begun; sleep 4321; echo more", timeout_s=1.5, limit_bytes=1000)
            assert (ended.status, ended.text) == (None, "begun\n")

    asyncio.run(scenario())
    assert subprocess.run(["pgrep", "-f", "^sleep 4321"], check=False, stdout=subprocess.DEVNULL).returncode == 1


def test_files_are_put_and_read(make_task, state):
    async def scenario():
        async with opened(make_task()) as box:
            await box.put(pack_file("note", b"text"), "/app/new/folder")
            assert await read_file(box, "/app/new/folder/note", limit_bytes=100) == b"text"
            assert await read_file(box, "/app/missing", limit_bytes=100) is None
            await box.run("ln -s /etc/passwd link; mkdir folder", timeout_s=30, limit_bytes=100)
            assert await read_file(box, "/app/link", limit_bytes=100) is None
            assert await read_file(box, "/app/folder", limit_bytes=100) is None

    asyncio.run(scenario())


def test_a_container_that_is_gone_is_an_environment_that_is_lost(make_task, state):
    async def scenario():
        async with opened(make_task()) as box:
            assert (await box.run("echo no such container; exit 1", timeout_s=30, limit_bytes=100)).status == 1
            await box._engine.command("rm", "--force", "--volumes", box._name)
            for action in (
                box.run("true", timeout_s=30, limit_bytes=100),
                box.put(pack_file("x", b""), "/app"),
                box.get("/app/words.txt", limit_bytes=1000),
            ):
                with pytest.raises(EnvironmentLostError):
                    await action

    asyncio.run(scenario())


def test_a_container_whose_processes_were_killed_is_started_again(make_task, state):
    async def scenario():
        async with opened(make_task()) as box:
            await box.run("echo kept > kept", timeout_s=30, limit_bytes=100)
            for action in (
                lambda: box.run("true", timeout_s=30, limit_bytes=1000),
                lambda: box.renew((TESTS,), keep_processes=True),
                lambda: box.renew((TESTS,), keep_processes=False),
            ):
                (folder,) = (state / "containers").iterdir()
                os.kill(json.loads((folder / "info").read_text())["pid"], signal.SIGKILL)
                ended = await action()
                assert ended is None or "it was started again" in ended.text
                assert (await box.run("cat kept", timeout_s=30, limit_bytes=100)).text == "kept\n"

    asyncio.run(scenario())


def test_processes_end_and_folders_are_new_before_a_verifier(make_task, state):
    async def scenario():
        async with opened(make_task()) as box:

            async def said(command):
                return (await box.run(command, timeout_s=30, limit_bytes=1000)).text.strip()

            await said("rm -rf /logs/verifier; ln -s /app /logs/verifier; mkdir /tests; echo mine > /tests/test.sh")
            pid = await said("sleep 4322 >/dev/null 2>&1 & echo $!")
            await box.renew((TESTS,), keep_processes=True)
            alive = f"grep -q sleep /proc/{pid}/cmdline && echo alive"  # empty of one that has ended
            assert await said(f"ls /tests; {alive}") == "alive"
            await box.renew((TESTS, VERIFIER_LOGS), keep_processes=False)
            assert "alive" not in await said(alive)
            found = await said("ls -A /tests/ /logs/verifier/; stat -c %a /logs/verifier; ls words.txt")
            assert found.split()[-2:] == ["777", "words.txt"]
            assert "test.sh" not in found

    asyncio.run(scenario())


def test_folders_that_cannot_be_made_are_the_agents_doing(make_task, state):
    async def scenario():
        async with opened(make_task()) as box:
            (state / "fail").write_text("cp")
            with pytest.raises(UnusableError, match="could not be copied"):
                await box.put(pack_file("note", b"text"), "/app")
            (state / "fail").write_text("restart")
            with pytest.raises(EnvironmentLostError, match="is gone"):
                await box.renew((), keep_processes=False)
            (state / "fail").write_text("")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("files", "failing", "reason"),
    [
        ({"environment__Dockerfile": "FROM a\nRUN FAILS\n"}, "", "could not be built: ERROR: failed to solve"),
        ({"config": '[environment]\ndocker_image = "private/x"\n'}, "", "run failed for private/x"),
        ({}, "run", "failed on purpose"),
        ({"config": '[environment]\nenv = {KEY = "${AGENTRL_TEST_MISSING}"}\n'}, "", "AGENTRL_TEST_MISSING"),
        ({"config": '[environment]\nenv = {KEY = "a\\nb"}\n'}, "", "several lines"),
    ],
)
def test_what_does_not_start_says_why_and_leaves_nothing(make_task, state, files, failing, reason):
    async def scenario():
        async with opened(make_task(**files)):
            pass

    (state / "fail").write_text(failing)
    with pytest.raises(EnvironmentLostError, match=reason):
        asyncio.run(scenario())
    assert list((state / "containers").iterdir()) == []


def test_containers_of_a_killed_run_are_removed_by_the_next_and_others_are_not(make_task, state, tmp_path):
    code = (
        "import asyncio, os, signal, sys\nfrom pathlib import Path\nfrom agentrl_harbor.containers import Containers\n"
        "from agentrl_harbor.task_dir import TaskDir\n"
        "async def main():\n"
        "    provider = Containers('docker'); await provider.start()\n"
        "    await provider.open(TaskDir.read(Path(sys.argv[1])).environment)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )

    async def scenario():
        async with opened(make_task()) as other:
            subprocess.run([sys.executable, "-c", code, str(make_task())], check=False)
            assert len(list((state / "containers").iterdir())) == 2
            async with opened(make_task("next")):
                assert len(list((state / "containers").iterdir())) == 2
            assert (await other.run("true", timeout_s=30, limit_bytes=100)).status == 0

    asyncio.run(scenario())
    assert list((state / "containers").iterdir()) == []


def test_a_missing_program_or_engine_is_named(state):
    with pytest.raises(ToolServerError, match="no program 'podman'"):
        asyncio.run(Containers("podman").start()) if shutil.which("podman") is None else pytest.skip("it is there")
    (state / "fail").write_text("ps")
    with pytest.raises(ToolServerError, match="docker does not answer: Error response from daemon"):
        asyncio.run(Containers("docker").start())


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker program")
def test_dockers_own_program_knows_the_options(make_task, tmp_path, monkeypatch):
    """Each command that the stand-in has seen gets as far as the engine, which is at an address without one."""
    real = shutil.which("docker")
    state = make_engine("docker", tmp_path, monkeypatch)
    config = '[environment]\ncpus = 1\nmemory_mb = 64\nnetwork_mode = "no-network"\nenv = {A = "b"}\nworkdir = "/app"\n'

    async def scenario():
        async with opened(make_task(config=config)) as box:
            await box.run("sleep 100", timeout_s=0.5, limit_bytes=100, env={"A": "c"}, user="root")
            await box.put(pack_file("note", b"text"), "/app")
            await box.get("/app/note", limit_bytes=10_000)
            await box.renew((TESTS,), keep_processes=False)
            (folder,) = (state / "containers").iterdir()
            os.kill(json.loads((folder / "info").read_text())["pid"], signal.SIGKILL)
            await box.renew((), keep_processes=True)

    asyncio.run(scenario())
    seen = {}
    for line in (state / "log").read_text().splitlines():
        command = json.loads(line)
        seen.setdefault((command[0], tuple(word for word in command if word.startswith("--"))), command)
    assert {name for name, _ in seen} == {
        "ps",
        "image",
        "build",
        "run",
        "exec",
        "cp",
        "inspect",
        "rm",
        "restart",
        "start",
    }
    (tmp_path / "env").write_text("A=b\n")
    for command in seen.values():
        words = [str(tmp_path / "env") if "agentrl-env-" in word else word for word in command]
        ended = subprocess.run(
            [real, "--host", "tcp://127.0.0.1:1", *words], capture_output=True, text=True, check=False, timeout=60,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DOCKER_BUILDKIT": "0"}, input="",
        )  # fmt: skip
        # `cp` first asks for the folder, and says that it is none.
        assert "127.0.0.1:1" in ended.stderr or "must be a directory" in ended.stderr, (command, ended.stderr)
