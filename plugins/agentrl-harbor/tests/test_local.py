"""Sandboxes of namespaces: what they have, what they keep apart, and how they end."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agentrl_core.errors import EnvironmentLostError, ToolServerError
from agentrl_harbor.local import Local
from agentrl_harbor.sandbox import UnusableError, pack_file, read_file
from agentrl_harbor.task_dir import TaskDir

pytestmark = pytest.mark.usefixtures("needs_local")


@contextlib.asynccontextmanager
async def opened(folder, **options):
    provider = Local(**options)
    await provider.start()
    try:
        sandbox = await provider.open(TaskDir.read(folder).environment)
        yield sandbox
        await sandbox.close()
    finally:
        await provider.close()


def outputs(folder, *commands, timeout_s=30, **options):
    """Run commands in a new sandbox, and return what they print."""

    async def scenario():
        async with opened(folder, **options) as sandbox:
            return [
                (await sandbox.run(item, timeout_s=timeout_s, limit_bytes=10_000)).text.strip() for item in commands
            ]

    return asyncio.run(scenario())


def test_a_sandbox_has_what_the_dockerfile_makes(make_task):
    *found, top = outputs(make_task(), "pwd", "cat words.txt", "echo $GREETING $HOME", "id -u", "ls /")
    assert found == ["/app", "one two", "hello /root", "0"]
    assert {"app", "bin", "dev", "etc", "logs", "proc", "root", "tmp", "usr"} <= set(top.split())


def test_a_sandbox_sees_no_files_processes_or_secrets_of_this_machine(make_task, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTRL_TEST_SECRET", "hidden")
    (tmp_path / "private").write_text("hidden")
    found = outputs(
        make_task(),
        f"cat {tmp_path}/private /etc/shadow /root/.bashrc",
        "cat /proc/*/environ | tr '\\0' '\\n'; env",
        "touch /usr/planted; touch /bin/planted",
        f"ls /proc | grep -c '^[0-9]'; kill -9 {os.getpid()} && echo killed",
        "mount -o remount,rw /usr; umount /usr; ls /.old",
    )
    assert "hidden" not in "".join(found)
    assert "Read-only" in found[2]
    assert int(found[3].split()[0]) < 10
    assert "killed" not in found[3]
    assert not Path("/usr/planted").exists()


def test_a_sandbox_has_no_network_but_its_own_loopback(make_task):
    reach = "timeout 2 bash -c 'exec 3<>/dev/tcp/{0}' && echo yes || echo no"
    with subprocess.Popen(
        [sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"], stdout=subprocess.PIPE
    ) as web:
        try:
            port = int(web.stdout.readline().split()[5])
        except (IndexError, ValueError):
            port = 1
        (reached,) = outputs(make_task(), reach.format(f"127.0.0.1/{port}"))
        web.kill()
    assert reached.endswith("no")
    (own,) = outputs(make_task(), "cat /proc/net/dev | grep -c :")
    assert own == "1"


def test_background_processes_go_on_and_end_with_the_sandbox(make_task):
    started, kept = outputs(make_task(), "(sleep 1234 & echo begun)", "pgrep -c -f 'sleep 1234'")
    assert started == "begun"
    assert kept != "0"
    assert not [item for item in psutil.process_iter(["cmdline"]) if item.info["cmdline"] == ["sleep", "1234"]]


def test_a_command_that_never_ends_is_ended_with_its_children(make_task):
    async def scenario():
        async with opened(make_task()) as sandbox:
            ended = await sandbox.run("echo begun; sleep 1000 | cat", timeout_s=0.5, limit_bytes=100)
            assert (ended.status, ended.text) == (None, "begun\n")
            left = await sandbox.run("pgrep -c sleep || true", timeout_s=30, limit_bytes=100)
            assert left.text.strip() == "0"

    asyncio.run(scenario())


def test_a_command_that_cannot_be_started_is_told(make_task):
    async def scenario():
        async with opened(make_task()) as sandbox:
            ended = await sandbox.run("true" + " " * 200_000, timeout_s=30, limit_bytes=1000)
            assert ended.status == 126
            assert "Argument list too long" in ended.text
            ended = await sandbox.run("true", timeout_s=30, limit_bytes=1000, workdir="/none")
            assert (ended.status, "No such file" in ended.text) == (126, True)

    asyncio.run(scenario())


def test_output_is_bounded(make_task):
    async def scenario():
        async with opened(make_task()) as sandbox:
            ended = await sandbox.run("head -c 5000000 /dev/zero", timeout_s=30, limit_bytes=1000)
            assert (ended.status, len(ended.output), ended.cut) == (0, 1000, True)

    asyncio.run(scenario())


def test_files_are_put_and_read_in_the_sandbox_alone(make_task, tmp_path):
    (tmp_path / "private").write_text("hidden")

    async def scenario():
        async with opened(make_task()) as sandbox:
            await sandbox.put(pack_file("note", b"text"), "/app/new/folder")
            assert await read_file(sandbox, "/app/new/folder/note", limit_bytes=100) == b"text"
            assert await read_file(sandbox, "/app/missing", limit_bytes=100) is None
            await sandbox.run(f"ln -s {tmp_path} out; ln -s {tmp_path}/private file", timeout_s=30, limit_bytes=100)
            assert await read_file(sandbox, "/app/file", limit_bytes=100) is None
            await sandbox.put(pack_file("planted", b"x"), "/app/dangling/../here")
            with pytest.raises(UnusableError):
                await sandbox.put(pack_file("planted", b"x"), "/app/out")
            await sandbox.run("head -c 100000 /dev/zero > large", timeout_s=30, limit_bytes=100)
            with pytest.raises(ValueError, match="larger than 100 bytes"):
                await read_file(sandbox, "/app/large", limit_bytes=100)

    asyncio.run(scenario())
    assert not (tmp_path / "planted").exists()


def test_a_killed_sandbox_is_an_environment_that_is_lost(make_task):
    async def scenario():
        async with opened(make_task()) as sandbox:
            sandbox._inside._process.kill()
            await asyncio.to_thread(sandbox._inside._process.wait)
            with pytest.raises(EnvironmentLostError):
                await sandbox.run("true", timeout_s=30, limit_bytes=100)

    asyncio.run(scenario())


def test_sandboxes_end_with_a_killed_run_and_its_folder_is_removed_by_the_next(make_task, tmp_path):
    folder = make_task()
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom agentrl_harbor.local import Local\n"
        "from agentrl_harbor.task_dir import TaskDir\n"
        "async def main():\n"
        "    provider = Local(parent=sys.argv[2]); await provider.start()\n"
        "    sandbox = await provider.open(TaskDir.read(Path(sys.argv[1])).environment)\n"
        "    print(sandbox._inside._process.pid, flush=True)\n"
        "    await sandbox.run('sleep 1000', timeout_s=1000, limit_bytes=10)\n"
        "asyncio.run(main())\n"
    )
    parent = tmp_path / "sandboxes"
    parent.mkdir()
    command = [sys.executable, "-c", code, str(folder), str(parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        inside = psutil.Process(int(process.stdout.readline()))
        processes = [inside, *inside.children()]
        process.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert alive == []
    assert len(list(parent.iterdir())) == 1

    async def scenario():
        provider = Local(parent=str(parent))
        await provider.start()
        await provider.close()

    asyncio.run(scenario())
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize(
    ("dockerfile", "config", "reason"),
    [
        ("FROM a\nRUN apt-get install x\n", "", "cannot do `RUN apt-get"),
        ("FROM a\nADD http://x /y\n", "", "cannot do `ADD"),
        ("FROM a AS build\nFROM b\nCOPY --from=build /x /x\n", "", "cannot do `FROM b`"),
        ("FROM a\nUSER agent\n", "", "cannot do `USER"),
        ("FROM a\nCOPY missing /x\n", "", "cannot do `COPY"),
        ("FROM a\n", '[environment]\ndocker_image = "x"\n', "has no images"),
        ("FROM a\n", '[agent]\nuser = "agent"\n', "only the user root"),
    ],
)
def test_tasks_that_need_a_container_are_refused(make_task, dockerfile, config, reason):
    task = TaskDir.read(make_task(config=config, environment__Dockerfile=dockerfile))
    assert reason in Local().refusal(task)


def test_what_is_installed_need_not_be_installed(make_task):
    task = TaskDir.read(make_task(environment__Dockerfile="FROM a\nRUN apt-get install \\\n  x\n"))
    assert Local().refusal(task)
    assert Local(assume_installed=True).refusal(task) == ""


def test_no_network_is_refused_with_the_machines_network(make_task):
    task = TaskDir.read(make_task(config='[environment]\nnetwork_mode = "no-network"\n'))
    assert Local().refusal(task) == ""
    assert "network_mode" in Local(host_network=True).refusal(task)


def test_mounts_are_seen_read_only(make_task, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("seen")
    mount = str(tmp_path / "data")
    assert outputs(make_task(), f"cat {mount}/file", f"touch {mount}/new && echo made", mounts=[mount])[0] == "seen"
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["file"]
    with pytest.raises(ToolServerError, match="no folder"):
        outputs(make_task(), "true", mounts=["/does/not/exist"])


def test_a_dockerfile_cannot_write_outside_of_its_sandbox(make_task):
    with pytest.raises(EnvironmentLostError, match="read-only"):
        outputs(make_task(environment__Dockerfile="FROM a\nCOPY words.txt /usr/share/planted\n"), "true")
    (found,) = outputs(make_task(environment__Dockerfile="FROM a\nCOPY words.txt ../../../planted\n"), "ls /planted")
    assert found == "/planted"
    assert not Path("/planted").exists()


def test_sandboxes_that_are_left_end_with_their_provider(make_task):
    async def scenario():
        provider = Local()
        await provider.start()
        sandboxes = await asyncio.gather(*(provider.open(TaskDir.read(make_task()).environment) for _ in range(8)))
        results = await asyncio.gather(*(item.run("pwd", timeout_s=60, limit_bytes=100) for item in sandboxes))
        assert {item.text for item in results} == {"/app\n"}
        await provider.close()
        assert all(item._inside.has_ended and not item._root.exists() for item in sandboxes)

    asyncio.run(scenario())
