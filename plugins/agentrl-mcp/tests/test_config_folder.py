"""Servers beside the config are found from everywhere, and what is not there is named before anything starts."""

import asyncio
import json
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest

from agentrl_core.concurrency.secrecy import environment
from agentrl_core.config import load
from agentrl_core.errors import ConfigError
from agentrl_core.plugins.manager import load_registry
from agentrl_core.run.checks import resolve_agent
from agentrl_core.run.tools import start_problems, tools_without_a_run
from agentrl_mcp.agentdock import AgentDockTools
from agentrl_mcp.tools import MCPTools

RAW = Path(__file__).with_name("raw_server.py")
SCRIPT, MODULE, PACKAGE = ["python", "own.py"], ["python", "-m", "own"], ["python", "-m", "tools.own"]


@pytest.fixture
def project(tmp_path):
    """Folder with a server as a script, as a module and in a package, and with other folders around it."""
    folder = tmp_path / "project"
    (folder / "tools").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    for place in ("own.py", "tools/own.py"):
        shutil.copy(RAW, folder / place)
    return folder


@pytest.mark.parametrize(
    ("cwd", "path"), [("project", "config.yaml"), (".", "project/config.yaml"), ("other", "../project/config.yaml")]
)
@pytest.mark.parametrize(
    ("command", "isolation"),
    [(MODULE, "process"), (MODULE, "shared"), (MODULE, "session"), (PACKAGE, "process"), (SCRIPT, "process")],
)
def test_a_server_beside_the_config_is_found(project, monkeypatch, cwd, path, command, isolation):
    server = {"use": "mcp", "name": "own", "command": command, "isolation": isolation}
    (project / "config.yaml").write_text(json.dumps({"tools": {"servers": [server]}}))
    monkeypatch.chdir(project.parent / cwd)

    async def scenario():
        async with tools_without_a_run(load(path), "", []) as opened:
            return (await opened.call("echo", {"text": "here"})).result.text

    assert asyncio.run(scenario()) == "here"


MISSING = "command: there is no"


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"command": ["python", "owm.py"]}, f"{MISSING} owm.py beside the config, in FOLDER (did you mean own.py?)"),
        ({"command": ["python", "-u", "gone/it.py"]}, f"{MISSING} gone/it.py beside the config, in FOLDER"),
        ({"command": ["node", "/none/index.js"]}, f"{MISSING} /none/index.js"),
        ({"command": ["pyhton", "own.py"]}, f"{MISSING} program 'pyhton' on the PATH (did you mean python?)"),
        ({"command": ["bin/serve"]}, f"{MISSING} bin/serve beside the config, in FOLDER"),
    ],
)
def test_a_server_that_is_not_there_is_named_with_its_line(project, monkeypatch, server, said):
    monkeypatch.setenv("PATH", str(project / "bin"))
    (project / "bin").mkdir()
    (project / "bin" / "node").touch(mode=0o755)
    (project / "config.yaml").write_text(f"tools:\n  servers:\n    - {json.dumps({'use': 'mcp', **server})}\n")
    monkeypatch.chdir(project)
    (found,) = start_problems(load("config.yaml"))
    assert found == f"config.yaml:3: tools.servers.0: {said}".replace("FOLDER", str(project))


@pytest.mark.parametrize(
    "command",
    [
        ["python", "own.py"],
        ["python", "-m", "own", "--out", "new.py"],
        ["python3", "tools/own.py", "new.py"],
        ["sh", "-c", "exec python own.py"],
        [sys.executable, "-S", "own.py"],
    ],
)
def test_a_server_that_may_be_there_is_not_refused(project, command):
    MCPTools(command=command, config_dir=project).check_start(connect=True)


@pytest.mark.parametrize("tools", [MCPTools, AgentDockTools])
def test_a_server_at_an_address_is_waited_for(tools):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        tools(url=url).check_start(connect=True)
    tools(url=url).check_start(connect=False)
    with pytest.raises(ConfigError, match=r"^url: no connection to http://127.0.0.1:\d+ within 0.05 s .*; start the"):
        tools(url=url, start_timeout_s=0.05).check_start(connect=True)


def test_a_key_that_is_missing_is_named_before_the_run():
    with pytest.raises(ConfigError, match=r"^headers_env: the environment has no NO_SUCH_KEY"):
        MCPTools(url="http://127.0.0.1:9/mcp", headers_env={"a": "NO_SUCH_KEY"}).check_start(connect=True)


LOOK = """
import os
from pathlib import Path

Path(f"seen-{os.getpid()}").write_text(" ".join(sorted({"SEARCH_KEY", "CLIENT_SECRET", "OPEN"} & {*os.environ})))

class Look:
    def run(self, data, **_):
        return 1.0
"""


def test_an_agents_process_does_not_get_the_keys_of_servers(tmp_path, monkeypatch):
    monkeypatch.setattr("agentrl_core.concurrency.secrecy._withheld", set())
    monkeypatch.setattr("agentrl_core.concurrency.secrecy._masked", set())
    monkeypatch.chdir(tmp_path)
    for name in ("SEARCH_KEY", "CLIENT_SECRET", "OPEN"):
        monkeypatch.setenv(name, "hush-hush")
    Path("look.py").write_text(LOOK, encoding="utf-8")
    url = "http://127.0.0.1:9/mcp"
    servers = [
        {"use": "mcp", "name": "keyed", "url": url, "headers_env": {"Authorization": "SEARCH_KEY"}},
        {"use": "mcp", "name": "login", "url": url, "oauth": {"client_secret_env": "CLIENT_SECRET"}},
        {"use": "mcp", "name": "wrong", "url": url, "headers_env": ["OPEN"], "oauth": "OPEN"},
    ]
    config = {"workflow": "look.py:Look", "rollout": {"agent": {"mode": "subproc"}}, "tools": {"servers": servers}}
    Path("config.yaml").write_text(json.dumps(config))
    loaded = load("config.yaml")
    resolve_agent(loaded, load_registry(), loaded.run.workflow).close_now()
    seen = {path.name: path.read_text() for path in Path.cwd().glob("seen-*")}
    seen.pop(f"seen-{os.getpid()}", None)
    assert set(seen.values()) == {"OPEN"}
    assert not {"SEARCH_KEY", "CLIENT_SECRET"} & environment().keys()
