"""Folders of episodes: kept apart, removed when idle or left behind, and never silently empty again."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from agentrl_tool_servers.episodes import EpisodeFolders


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def folders(tmp_path, clock):
    made = EpisodeFolders(lambda path: (path / "start").touch(), idle_s=10, parent=str(tmp_path), clock=clock)
    yield made
    made.close()


def files(folders, episode):
    with folders.use(episode) as path:
        return sorted(file.name for file in path.iterdir())


def test_episodes_have_folders_of_their_own(folders):
    with folders.use("a") as path:
        (path / "mine").touch()
    assert files(folders, "a") == ["mine", "start"]
    assert files(folders, "b") == ["start"]
    assert files(folders, "../a") == ["start"]


def test_an_idle_folder_is_removed_and_the_episode_is_told(folders, clock, tmp_path):
    with folders.use("a") as path:
        pass
    clock.now = 9
    files(folders, "b")
    clock.now = 11
    files(folders, "b")
    assert not path.exists()
    with pytest.raises(ToolError, match="removed after 10 s"):
        files(folders, "a")


def test_a_call_that_runs_keeps_its_folder(folders, clock):
    with folders.use("a") as path:
        clock.now = 100
        files(folders, "b")
        assert path.exists()
    clock.now = 105
    assert files(folders, "a") == ["start"]


def test_calls_of_one_episode_wait_for_each_other(folders):
    inside, second = threading.Event(), threading.Thread(target=lambda: (files(folders, "a"), inside.set()))
    with folders.use("a"):
        second.start()
        assert not inside.is_set()
        assert files(folders, "b") == ["start"]
    second.join(timeout=30)
    assert inside.is_set()


def test_a_failed_copy_is_not_taken_for_a_folder(tmp_path):
    tries = []

    def fill(path):
        (path / "half").touch()
        tries.append(path)
        if len(tries) == 1:
            raise OSError("disk full")

    made = EpisodeFolders(fill, idle_s=10, parent=str(tmp_path))
    with pytest.raises(OSError, match="disk full"):
        files(made, "a")
    assert files(made, "a") == ["half"]
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_a_killed_server_are_removed_by_the_next_one(tmp_path):
    code = (
        "import os, signal, sys; from agentrl_tool_servers.episodes import EpisodeFolders\n"
        "folders = EpisodeFolders(lambda path: None, idle_s=10, parent=sys.argv[1])\n"
        "with folders.use('a'): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    alive = EpisodeFolders(lambda path: None, idle_s=10, parent=str(tmp_path))
    (only,) = tmp_path.iterdir()
    another = EpisodeFolders(lambda path: None, idle_s=10, parent=str(tmp_path))
    assert only.exists()
    for made in (alive, another):
        made.close()
    assert list(tmp_path.iterdir()) == []


def test_a_fork_does_not_remove_the_folders(folders):
    with folders.use("a") as path:
        pass
    if (child := os.fork()) == 0:
        folders.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert path.exists()


def test_the_episode_comes_from_meta_header_or_url(key, tmp_path):
    """All three over HTTP, as a client of agentrl sends them."""
    import httpx2

    command = [sys.executable, "-m", "agentrl_tool_servers.files", "--http", "0"]
    environment = os.environ | {"TMPDIR": str(tmp_path), "TOOL_SERVER_KEY": key}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            url = process.stderr.readline().split()[-1]

            async def call(client, name, headers=None, query="", meta=None, **arguments):
                parameters = {"name": name, "arguments": arguments, "_meta": meta or {}}
                parameters["_meta"] |= {
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                    "io.modelcontextprotocol/clientCapabilities": {},
                }
                standard = {
                    "Authorization": key,
                    "Accept": "application/json, text/event-stream",
                    "MCP-Protocol-Version": "2026-07-28",
                    "Mcp-Method": "tools/call",
                    "Mcp-Name": name,
                }
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": parameters}
                reply = await client.post(url + query, json=body, headers=standard | (headers or {}))
                return reply.json()["result"]["content"][0]["text"]

            async def scenario():
                async with httpx2.AsyncClient(timeout=30) as client:
                    await call(client, "write_file", meta={"agentrl/episode": "e1"}, path="a", text="x")
                    assert await call(client, "list_files", meta={"agentrl/episode": "e1"}) == "a"
                    assert await call(client, "list_files", headers={"X-Agentrl-Episode": "e1"}) == "a"
                    assert await call(client, "list_files", query="?episode=e1") == "a"
                    assert await call(client, "list_files", query="?episode=e2") == "(empty)"
                    assert await call(client, "list_files") == "(empty)"

            asyncio.run(scenario())
        finally:
            process.terminate()
            process.communicate(timeout=30)
    assert list(tmp_path.iterdir()) == []
