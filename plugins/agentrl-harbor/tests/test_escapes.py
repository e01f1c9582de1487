"""Attempts to leave a local sandbox, as root and as an ordinary user: `escapes` has the list."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_core.errors import ToolServerError
from agentrl_harbor import local as module

from . import escapes

USER = 12345
PYTHON = "/usr/bin/python3"
"""Interpreter that a sandbox sees, and that every user can read."""
pytestmark = [
    pytest.mark.usefixtures("needs_local"),
    pytest.mark.skipif(not Path(PYTHON).exists(), reason="no python3"),
]
TRY = """
import asyncio, json, os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import encodings.ascii, encodings.idna
import escapes
from agentrl_harbor import local_sandbox
import ctypes
os.setgroups([]); os.setresgid({user}, {user}, {user}); os.setresuid({user}, {user}, {user})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
local_sandbox._BUILD = ({python!r}, *local_sandbox._BUILD[1:])
print(json.dumps(asyncio.run(escapes.tried(**json.loads(sys.argv[1])))))
"""


@pytest.fixture(scope="module", params=["as this user", "as an ordinary user"])
def attempts(request, tmp_path_factory):
    """Return what all attempts gave; afterwards the machine must be as it was."""
    ordinary = request.param == "as an ordinary user"
    if ordinary and os.geteuid() != 0:
        pytest.skip("this user is an ordinary one")
    base = Path(tmp_path_factory.mktemp("escapes"))
    task, parent, mount = base / "task", base / "sandboxes", base / "mount"
    for folder in (task / "environment", task / "tests", parent, mount):
        folder.mkdir(parents=True)
    (task / "instruction.md").write_text("Escape.")
    (task / "task.toml").write_text('schema_version = "1.4"\n')
    (task / "environment" / "Dockerfile").write_text("FROM a\nWORKDIR /app\n")
    (task / "tests" / "test.sh").write_text("")
    (mount / "tool").write_text("honest")
    (base / "secret").write_text("secret")
    with (
        subprocess.Popen(["sleep", "1000"]) as victim,
        socket.socket() as listening,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        listening.bind(("127.0.0.1", 0))
        abstract.bind(f"\0agentrl-{os.getpid()}")
        for item in (listening, abstract):
            item.listen()
        env = {
            "MOUNT": str(mount), "SECRET": str(base / "secret"), "VICTIM": str(victim.pid),
            "PORT": str(listening.getsockname()[1]), "ABSTRACT": f"agentrl-{os.getpid()}",
        }  # fmt: skip
        given = {"folder": str(task), "parent": str(parent), "env": env}
        try:
            if ordinary:
                given |= _given_away(base, env)
                code = TRY.format(tests=str(Path(__file__).parent), user=USER, python=PYTHON)
                command = [sys.executable, "-c", code, json.dumps(given)]
                ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200)
                assert ended.returncode == 0, ended.stderr
                found = json.loads(ended.stdout)
            else:
                found = asyncio.run(escapes.tried(**given))
            assert victim.poll() is None
        finally:
            victim.kill()
    yield found
    assert Path(given["env"]["MOUNT"], "tool").read_text() == "honest"
    if ordinary:
        shutil.rmtree(Path(given["folder"]).parent)
    assert not list(Path("/usr/bin").glob("planted"))
    assert Path("/dev/null").stat().st_mode & 0o666 == 0o666


def _given_away(base, env):
    """Move all files to a folder of the ordinary user."""
    folder = Path(f"/tmp/agentrl-escapes-{os.getpid()}")
    shutil.copytree(base, folder)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER)
    moved = {**env, "MOUNT": str(folder / "mount"), "SECRET": str(folder / "secret")}
    return {"folder": str(folder / "task"), "parent": str(folder / "sandboxes"), "env": moved}


@pytest.mark.parametrize("name", escapes.SHELL)
def test_an_agent_does_not_get_out(attempts, name):
    assert "ESCAPED" not in attempts["outputs"][name]


@pytest.mark.parametrize(
    "name", [*escapes.CALLS, "read the first process's memory", "mount by an x32 number", "a 32-bit call"]
)
def test_the_kernel_refuses(attempts, name):
    assert attempts["refusals"].get(name, "ENOSYS") in {"EPERM", "ENOSYS"}, attempts["refusals"]


def test_a_sandbox_survives_all_of_them(attempts):
    assert attempts["alive"] == "alive\n"


def test_root_of_a_namespace_without_other_users_is_refused(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "         0       1000          1\n")
    with pytest.raises(ToolServerError, match="does not run tasks as root"):
        module._own_ids()
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "0 1000 1\n1 100000 65536\n")
    assert module._own_ids() == module.Ids(first_user=65534, first_group=65534, count=1, as_root=True)
