"""The command line: servers over stdio and HTTP, in processes of their own, and options that are refused."""

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys

import httpx2
import pytest
from mcp import Client, StdioServerParameters

from agentrl_tool_servers import calculator, files, search, sql
from agentrl_tool_servers.command import KEY_ENV
from agentrl_tool_servers.sample_corpus import main as write_corpus


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Name -> (arguments, a call that works, its result)."""
    folder = tmp_path_factory.mktemp("servers")
    write_corpus([str(folder)])
    return {
        "files": ([], ("list_files", {}), r"\(empty\)"),
        "search": ([str(folder / "documents.jsonl")], ("search", {"query": "island"}), r"\[\w+\]: "),
    }


@pytest.mark.parametrize("name", ["files", "search"])
def test_a_server_answers_over_stdio(servers, name):
    arguments, (tool, given), expected = servers[name]
    # PYTHON* variables of the tests: where the packages are
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", f"agentrl_tool_servers.{name}", *arguments], env=dict(os.environ)
    )

    async def scenario():
        async with asyncio.timeout(60), Client(parameters) as client:
            result = await client.call_tool(tool, given)
            assert re.search(expected, result.content[0].text)

    asyncio.run(scenario())


@contextlib.contextmanager
def serving(**environment):
    """Yield the lines that a server over HTTP prints at its start."""
    command = [sys.executable, "-m", "agentrl_tool_servers.calculator", "--http", "0"]
    environment = {name: text for name, text in os.environ.items() if name != KEY_ENV} | environment
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        lines = []
        try:
            while not lines or "listening" not in lines[-1]:
                lines.append(process.stderr.readline())
            yield lines
        finally:
            process.terminate()
            process.communicate(timeout=30)


@pytest.fixture(scope="module")
def url(key):
    with serving(**{KEY_ENV: key}) as [line]:
        yield line.split()[-1]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_server_answers_over_http_in_both_eras(connect_http, url, mode):
    async def scenario():
        async with asyncio.timeout(60), connect_http(url, mode=mode) as client:
            result = await client.call_tool("calculate", {"expression": "2*21"})
            assert result.content[0].text == "42"

    asyncio.run(scenario())


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer"}, {"Authorization": "a key of another"}])
def test_a_request_without_the_key_is_refused(url, headers):
    reply = httpx2.post(url, json={}, headers={"X-Agentrl-Episode": "0123456789abcdef", **headers}, timeout=30)
    assert reply.status_code == 401
    assert "TOOL_SERVER_KEY" in reply.text


def test_without_a_key_the_server_makes_one_and_prints_it():
    with serving() as [made, line]:
        key, url = made.split()[-1], line.split()[-1]
        assert len(key) == 32
        assert httpx2.post(url, json={}, timeout=30).status_code == 401
        assert httpx2.post(url, json={}, headers={"Authorization": key}, timeout=30).status_code != 401


def test_a_short_key_is_refused(monkeypatch, capsys):
    monkeypatch.setenv(KEY_ENV, "secret")
    with pytest.raises(SystemExit) as ended:
        calculator.main(["--http", "0"])
    assert ended.value.code == 2
    assert "TOOL_SERVER_KEY: expected at least 16 characters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("main", "arguments", "reason"),
    [
        (files.main, ["--folder", "/does/not/exist"], "there is no folder"),
        (sql.main, ["/does/not/exist"], "expected a SQLite database"),
        (search.main, ["/does/not/exist"], "No such file"),
        (calculator.main, ["--http", "70000"], "expected a port"),
        (calculator.main, ["--http", "TAKEN"], "choose another"),
    ],
)
def test_wrong_options_end_with_a_reason(main, arguments, reason, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(SystemExit) as ended:
            main([port if item == "TAKEN" else item for item in arguments])
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err
