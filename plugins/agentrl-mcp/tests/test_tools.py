"""The tool server `mcp` against real servers: both transports, both eras of the protocol, all kinds of isolation."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agentrl_core.api.tools import ToolEpisode
from agentrl_core.errors import (
    DeliveryUnknownError,
    EnvironmentLostError,
    InvalidResultError,
    ToolNotSentError,
    ToolServerError,
)
from agentrl_mcp.tools import MCPTools

RAW = Path(__file__).with_name("raw_server.py")
ERAS = ("stateless", "handshake")
PLACES = (
    *((place, "process") for place in ("stdio",)),
    *((place, isolation) for place in ("stdio", "http", "http-sse") for isolation in ("session", "shared")),
)


def episode(number=1, **data):
    return ToolEpisode(record_id=f"record-{number}", task_id="t1", data=data)


def raw(*arguments):
    """Return the command of a raw server over stdio."""
    return [sys.executable, "-S", str(RAW), *arguments]


@pytest.fixture
def make(http_server):
    """Function that returns the tool server for a raw server."""

    def tools(place, isolation, era="both", **options):
        if place == "stdio":
            return MCPTools(command=raw("--era", era), isolation=isolation, name="raw", **options)
        server = http_server("--era", era, *(["--sse"] if place == "http-sse" else []))
        return MCPTools(url=server.url, isolation=isolation, name="raw", **options)

    return tools


def run(tools, scenario):
    """Run `scenario(tools)` between start and close."""

    async def drive():
        await tools.start()
        try:
            return await scenario(tools)
        finally:
            await tools.close()

    return asyncio.run(drive())


async def called(session, name, arguments=None, timeout_s=10.0):
    return (await session.call(name, arguments or {}, timeout_s=timeout_s)).text


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("place", "isolation"), PLACES)
def test_a_counter_of_one_record_is_not_seen_in_another_unless_it_is_shared(make, place, isolation, era):
    async def scenario(tools):
        first, second = await tools.open(episode(1)), await tools.open(episode(2))
        counts = [await called(session, "count") for session in (first, first, second, first)]
        await first.close()
        await second.close()
        return counts

    expected = ["1", "2", "3", "4"] if isolation == "shared" else ["1", "2", "1", "3"]
    assert run(make(place, isolation, era), scenario) == expected


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("isolation", ["process", "shared"])
def test_a_file_of_one_record_is_not_seen_in_another_process(make, isolation, era):
    async def scenario(tools):
        first, second = await tools.open(episode(1)), await tools.open(episode(2))
        await called(first, "write", {"text": "secret"})
        found = await called(second, "read")
        folders = [json.loads(await called(session, "seen"))["folder"] for session in (first, second)]
        await first.close()
        later = await tools.open(episode(3))
        found_later = await called(later, "read")
        return found, found_later, folders

    found, later, folders = run(make("stdio", isolation, era), scenario)
    if isolation == "process":
        assert (found, later) == ("nothing", "nothing")
        assert folders[0] != folders[1]
    else:
        assert (found, later) == ("secret", "secret")
    assert not any(map(os.path.exists, folders))


@pytest.mark.parametrize("era", ERAS)
def test_the_episode_travels_in_header_meta_and_url(http_server, era):
    server = http_server("--era", era)

    async def scenario(tools):
        return json.loads(await called(await tools.open(episode(7)), "seen"))

    url = server.url + "/{episode}?lang=en"
    seen = run(MCPTools(url=url, isolation="session"), scenario)
    assert seen["meta"]["agentrl/episode"] == "record-7"
    (headers,) = seen["headers"]
    assert headers["x-agentrl-episode"] == "record-7"
    assert headers["path"] == "/mcp/record-7?lang=en"
    assert ("mcp-session-id" in headers) == (era == "handshake")
    assert headers["mcp-protocol-version"] == ("2025-11-25" if era == "handshake" else "2026-07-28")


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("place", ["stdio", "http"])
def test_a_version_of_the_protocol_can_be_chosen(make, place, version):
    async def scenario(tools):
        seen = json.loads(await called(await tools.open(episode()), "seen"))
        return (seen["meta"] or {}).get("io.modelcontextprotocol/protocolVersion"), seen["headers"]

    stamped, headers = run(make(place, "shared", protocol=version), scenario)
    assert stamped == ("2026-07-28" if version == "2026-07-28" else None)
    assert place == "stdio" or headers[0]["mcp-protocol-version"] == version


@pytest.mark.parametrize("place", ["stdio", "http"])
def test_tools_are_listed_once_with_schema_and_hints_from_all_pages(make, place):
    async def scenario(tools):
        first, second = await tools.open(episode(1)), await tools.open(episode(2))
        assert await first.list_tools() is await second.list_tools()
        return await first.list_tools()

    specs = {spec.name: spec for spec in run(make(place, "session"), scenario)}
    assert len(specs) > 10
    echo = specs["echo"]
    assert echo.read_only
    assert echo.idempotent
    assert echo.parameters["required"] == ["text"]
    assert not specs["count"].repeatable
    assert specs["count"].parameters == {"type": "object", "properties": {}}


def test_a_tool_that_runs_only_as_a_task_is_left_out_with_a_line_in_the_log(make, caplog):
    async def scenario(tools):
        return [spec.name for spec in await tools.list_tools()]

    assert "research" not in run(make("stdio", "shared"), scenario)
    assert "raw: leaves out the tool 'research', which runs only as a task" in caplog.text


@pytest.mark.parametrize("place", ["stdio", "http-sse"])
def test_tools_are_listed_again_when_the_server_says_that_they_changed(make, place):
    async def scenario(tools):
        session = await tools.open(episode())
        before, changes = len(await session.list_tools()), session.changes
        new = await called(session, "grow")
        assert session.changes == changes + 1
        after = await session.list_tools()
        return after[-1].name == new, len(after) - before

    assert run(make(place, "shared"), scenario) == (True, 1)


@pytest.mark.parametrize("place", ["stdio", "http", "http-sse"])
def test_hundreds_of_calls_at_once_get_their_own_results(make, place):
    async def scenario(tools):
        sessions = [await tools.open(episode(number)) for number in range(20)]
        calls = [called(sessions[number % 20], "echo", {"text": str(number)}) for number in range(200)]
        assert await asyncio.gather(*calls) == [str(number) for number in range(200)]

    run(make(place, "session", **({} if place == "stdio" else {"max_connections": 8})), scenario)


@pytest.mark.parametrize("place", ["stdio", "http"])
def test_what_the_model_can_react_to_is_a_result(make, place):
    async def scenario(tools):
        session = await tools.open(episode())
        return [await session.call(name, {}, timeout_s=10) for name in ("fail", "refuse", "nobody")]

    results = run(make(place, "shared"), scenario)
    assert all(result.is_error for result in results)
    assert [result.text for result in results] == ["no such file", "Unknown argument\nuse text", "Unknown tool: nobody"]


@pytest.mark.parametrize("place", ["stdio", "http", "http-sse"])
@pytest.mark.parametrize(
    ("tool", "says"),
    [("wrong_shape", "expected a result with a list `content`"), ("garbage", "not JSON")],
)
def test_an_answer_that_is_no_result_is_named(make, place, tool, says):
    async def scenario(tools):
        session = await tools.open(episode())
        with pytest.raises(InvalidResultError, match=says) as caught:
            await session.call(tool, {}, timeout_s=10)
        assert "\n" not in str(caught.value)
        return await called(session, "echo", {"text": "still here"})

    assert run(make(place, "shared"), scenario) == "still here"


def test_a_stream_that_ends_early_is_continued(make):
    async def scenario(tools):
        session = await tools.open(episode())
        answer = await called(session, "later")
        with pytest.raises(DeliveryUnknownError, match="its stream ended, and the rest has status 405"):
            await session.call("later", {"id": "e2"}, timeout_s=10)
        return answer

    assert run(make("http", "session", "handshake"), scenario) == "at last"


def test_a_response_with_another_id_is_refused(make):
    async def over_http(tools):
        with pytest.raises(InvalidResultError, match="the id of another request"):
            await called(await tools.open(episode()), "other_id")

    async def over_stdio(tools):
        with pytest.raises(DeliveryUnknownError):
            await called(await tools.open(episode()), "other_id", timeout_s=0.2)

    run(make("http", "shared"), over_http)
    run(make("stdio", "shared"), over_stdio)


@pytest.mark.parametrize("place", ["stdio", "http", "http-sse"])
def test_a_result_of_10_mb_arrives_and_one_over_the_limit_is_refused(make, place):
    async def scenario(tools):
        session = await tools.open(episode())
        assert len(await called(session, "big", {"bytes": 10_000_000})) == 10_000_000
        with pytest.raises(InvalidResultError, match="more than 12000000 bytes"):
            await called(session, "big", {"bytes": 13_000_000})
        return await called(session, "echo", {"text": "still here"})

    assert run(make(place, "shared", max_message_bytes=12_000_000), scenario) == "still here"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("place", ["stdio", "http"])
def test_a_call_that_hangs_ends_at_its_deadline_and_its_delivery_is_unknown(make, place, era):
    async def scenario(tools):
        session = await tools.open(episode())
        with pytest.raises(DeliveryUnknownError, match=r"no answer to tools/call within 0\.2 s"):
            await session.call("hang", {}, timeout_s=0.2)
        return await called(session, "echo", {"text": "still here"})

    assert run(make(place, "shared", era), scenario) == "still here"


def test_a_call_that_waits_for_a_connection_was_not_sent(make):
    async def scenario(tools):
        session = await tools.open(episode())
        hanging = asyncio.create_task(session.call("hang", {}, timeout_s=30))
        await asyncio.sleep(0)
        with pytest.raises(ToolNotSentError, match="no connection was free"):
            await session.call("echo", {"text": "x"}, timeout_s=0.1)
        hanging.cancel()
        await asyncio.wait({hanging})

    run(make("http", "shared", max_connections=1), scenario)


def test_output_that_is_no_message_is_passed_over(make, caplog):
    async def scenario(tools):
        return await called(await tools.open(episode()), "say")

    assert run(make("stdio", "shared"), scenario) == "said"
    assert "wrote a line that is not JSON" in caplog.text


@pytest.mark.parametrize("era", ERAS)
def test_the_death_of_an_episodes_process_loses_its_environment_alone(make, era):
    async def scenario(tools):
        first, second = await tools.open(episode(1)), await tools.open(episode(2))
        for _ in range(2):
            with pytest.raises(EnvironmentLostError, match="ended with exit code 5") as caught:
                await first.call("die", {"status": 5}, timeout_s=10)
            assert caught.value.server == "raw"
        return await called(second, "echo", {"text": "still here"})

    assert run(make("stdio", "process", era), scenario) == "still here"


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("isolation", ["shared", "session"])
def test_a_process_of_all_episodes_is_started_again(make, isolation, era):
    async def scenario(tools):
        first, second = await tools.open(episode(1)), await tools.open(episode(2))
        await called(first, "count")
        with pytest.raises(DeliveryUnknownError, match="ended by signal SIGKILL"):
            await asyncio.gather(first.call("hang", {}, timeout_s=10), kill(int(await called(first, "pid"))))
        # An episode that begins now loses nothing; what the server kept for the first one is gone.
        assert await called(second, "count") == "1"
        if isolation == "shared":
            return await called(first, "count") == "2"
        with pytest.raises(EnvironmentLostError, match="a new one was started"):
            await first.call("count", {}, timeout_s=10)
        return True

    async def kill(pid):
        os.kill(pid, signal.SIGKILL)

    assert run(make("stdio", isolation, era), scenario)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("isolation", ["shared", "session"])
def test_a_server_over_http_is_used_again_after_its_restart(http_server, isolation, era):
    server = http_server("--era", era)

    async def scenario(tools):
        first, unused = await tools.open(episode(1)), await tools.open(episode(2))
        await called(first, "count")
        hanging = asyncio.create_task(first.call("hang", {}, timeout_s=20))
        await called(first, "echo", {"text": "x"})
        server.kill()
        with pytest.raises(DeliveryUnknownError, match="the connection ended"):
            await hanging
        with pytest.raises(ToolNotSentError, match="no connection"):
            await first.call("echo", {"text": "x"}, timeout_s=5)
        server.start()
        later = await tools.open(episode(3))
        assert [await called(session, "echo", {"text": "back"}) for session in (unused, later)] == ["back", "back"]
        if (isolation, era) == ("session", "handshake"):
            with pytest.raises(EnvironmentLostError, match="does not know the session"):
                await first.call("count", {}, timeout_s=5)
        else:
            assert await called(first, "count") == "1"
        await first.close()

    run(MCPTools(url=server.url, isolation=isolation), scenario)


def test_a_server_that_starts_late_is_waited_for(http_server):
    server = http_server()
    server.kill()

    async def scenario():
        tools = MCPTools(url=server.url, start_timeout_s=20)
        starting = asyncio.create_task(tools.start())
        await asyncio.sleep(0)
        server.start()
        await starting
        count = await called(await tools.open(episode(1)), "count")
        await tools.close()
        return count

    assert asyncio.run(scenario()) == "1"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": "http://127.0.0.1:9/mcp", "start_timeout_s": 0.1}, r"no connection.*\(http://127.0.0.1:9/mcp\)"),
        ({"command": ["no-such-program"]}, "no-such-program cannot be started: No such file"),
        ({"command": raw("--no-start")}, "ended with exit code 1; it printed last: the key is missing"),
        ({"command": ["sleep", "60"], "start_timeout_s": 0.2}, r"no answer to .* within 0\.2 s|was not ready within"),
        ({"command": ["echo", "hello"]}, "ended with exit code 0"),
        ({"url": "http://127.0.0.1:9/mcp", "headers_env": {"a": "NO_SUCH_KEY"}}, "the environment has no NO_SUCH_KEY"),
    ],
)
def test_a_server_that_is_down_at_the_start_is_named_in_one_line(options, says):
    with pytest.raises(ToolServerError, match=says) as caught:
        run(MCPTools(name="search", **options), None)
    assert str(caught.value).startswith("search: ")
    assert "\n" not in str(caught.value)


def test_a_key_comes_from_the_environment_and_is_never_shown(http_server, monkeypatch):
    monkeypatch.setenv("SEARCH_KEY", "Bearer key-1")
    url = http_server().url.replace("/mcp", "/locked")

    async def scenario(tools):
        assert "key-1" not in repr(tools.__dict__)
        return await called(await tools.open(episode()), "echo", {"text": "open"})

    assert run(MCPTools(url=url, headers_env={"Authorization": "SEARCH_KEY"}), scenario) == "open"
    monkeypatch.setenv("SEARCH_KEY", "Bearer key-2")
    with pytest.raises(ToolServerError, match="HTTP status 401; headers_env") as caught:
        run(MCPTools(url=url, headers_env={"Authorization": "SEARCH_KEY"}, start_timeout_s=0.1), None)
    assert "key-2" not in str(caught.value)


def test_a_proxy_may_have_passed_a_call_on_before_it_lost_the_server(http_server):
    async def scenario(tools):
        session = await tools.open(episode())
        with pytest.raises(ToolNotSentError, match="HTTP status 503"):
            await session.call("refused", {}, timeout_s=5)
        with pytest.raises(DeliveryUnknownError, match="HTTP status 502"):
            await session.call("cut_off", {}, timeout_s=5)

    run(MCPTools(url=http_server().url), scenario)


def test_a_redirect_on_the_same_server_is_followed_once(http_server):
    url = http_server().url.replace("/mcp", "/moved")

    async def scenario(tools):
        return json.loads(await called(await tools.open(episode()), "seen"))["headers"][0]["path"]

    assert run(MCPTools(url=url), scenario) == "/mcp"


def test_a_process_gets_only_the_environment_that_the_config_names(monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET_OF_THE_RUN", "x")
    monkeypatch.setenv("KEY_FOR_SERVER", "y")
    (tmp_path / "report.py").write_text("import os, sys; sys.exit(repr(sorted(os.environ)))")
    command = ["python", "report.py"]
    with pytest.raises(ToolServerError) as caught:
        run(MCPTools(command=command, env={"MODE": "1"}, env_from=["KEY_FOR_SERVER"], config_dir=tmp_path), None)
    assert "SECRET_OF_THE_RUN" not in str(caught.value)
    for name in ("KEY_FOR_SERVER", "MODE", "PATH", "PYTHONPATH"):
        assert f"'{name}'" in str(caught.value)


def test_the_episodes_folder_has_a_placeholder_in_command_and_env(tmp_path):
    report = "import json, os, sys; sys.exit(json.dumps([os.getcwd(), sys.argv[1], os.environ['HOME']]))"
    (tmp_path / "report.py").write_text(report)
    command, env = ["python", "report.py", "{folder}/notes"], {"HOME": "{folder}/home"}
    with pytest.raises(ToolServerError, match="printed last") as caught:
        run(MCPTools(command=command, env=env, config_dir=tmp_path), None)
    folder, argument, home = json.loads(re.search(r"\[.*\]", str(caught.value))[0])
    assert (argument, home) == (f"{folder}/notes", f"{folder}/home")
    assert "agentrl-mcp-" in folder


@pytest.mark.parametrize("place", ["stdio", "http"])
@pytest.mark.parametrize("era", ERAS)
def test_elicitations_are_declined_or_answered_by_a_function(make, place, era, tmp_path):
    (tmp_path / "user.py").write_text(
        "def city(episode, message, schema):\n    return {'city': episode.data['home']}\n"
    )

    async def scenario(tools):
        return json.loads(await called(await tools.open(episode(home="Oslo")), "ask"))

    assert run(make(place, "session", era), scenario) == {"action": "decline"}
    answered = run(make(place, "session", era, elicitation="user.py:city", config_dir=tmp_path), scenario)
    assert answered == {"action": "accept", "content": {"city": "Oslo"}}


@pytest.mark.parametrize("isolation", ["session", "shared"])
@pytest.mark.parametrize("arguments", [{}, {"break": True}], ids=["at once", "after the stream broke"])
def test_a_question_outside_of_the_answer_is_answered(http_server, tmp_path, isolation, arguments):
    (tmp_path / "user.py").write_text(
        "def city(episode, message, schema):\n    return {'city': episode.data['home']}\n"
    )

    async def scenario(tools):
        session = await tools.open(episode(home="Oslo"))
        answer = json.loads(await called(session, "ask_aside", arguments))
        await session.close()
        return answer

    url = http_server("--era", "handshake", "--asks").url
    tools = MCPTools(url=url, isolation=isolation, elicitation="user.py:city", config_dir=tmp_path)
    assert run(tools, scenario) == {"action": "accept", "content": {"city": "Oslo"}}


def test_a_server_is_told_that_it_cannot_ask_where_nothing_listens(http_server):
    async def scenario(tools):
        return await called(await tools.open(episode()), "ask_aside")

    url = http_server("--era", "handshake", "--asks").url
    assert run(MCPTools(url=url), scenario) == "the client cannot be asked"


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("detach", [False, True])
def test_the_end_of_an_episode_ends_its_process_with_all_that_it_started(make, detach):
    async def scenario(tools):
        session = await tools.open(episode())
        pids = [int(await called(session, "pid")), int(await called(session, "spawn", {"detach": detach}))]
        folder = json.loads(await called(session, "seen"))["folder"]
        assert all(map(alive, pids))
        await session.close()
        return any(map(alive, pids)) or Path(folder).exists()

    assert run(make("stdio", "process"), scenario) is False


def test_warm_processes_are_ready_before_the_episode_and_used_once(make):
    async def scenario(tools):
        pids = set()
        for number in range(4):
            session = await tools.open(episode(number))
            pids.add(await called(session, "pid"))
            assert await called(session, "count") == "1"
            await session.close()
        return len(pids)

    assert run(make("stdio", "process", warm=2), scenario) == 4
    assert not [child for child in psutil.Process().children() if "guard.py" in " ".join(child.cmdline())]


KILLED = """
import asyncio
from agentrl_core.api.tools import ToolEpisode
from agentrl_mcp.tools import MCPTools

async def main():
    tools = MCPTools(command={command!r}, warm=2)
    await tools.start()
    session = await tools.open(ToolEpisode(record_id="1", task_id="1", data={{}}))
    for name, arguments in (("pid", {{}}), ("spawn", {{"detach": True}})):
        print((await session.call(name, arguments, timeout_s=10)).text, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_nothing_is_left_when_the_run_is_killed():
    code = KILLED.format(command=raw())
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        pids = [int(process.stdout.readline()) for _ in range(2)]
        guards = [child for child in psutil.Process(process.pid).children() if "guard.py" in " ".join(child.cmdline())]
        folders = [guard.cmdline()[5] for guard in guards]
        assert all(map(alive, pids))
        assert guards
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    psutil.wait_procs(guards, timeout=20)
    assert not any(map(alive, pids))
    assert not any(map(os.path.exists, folders))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "exactly one of `url`, `command` and `server`"),
        ({"url": "http://a/mcp", "command": ["x"]}, "exactly one of"),
        ({"url": "ftp://a/mcp"}, "url: expected http"),
        ({"url": "http://me:pw@a/mcp"}, "must not contain a user name"),
        ({"url": "http://a/mcp", "isolation": "process"}, "isolation: process needs `command`"),
        ({"url": "http://a/{episode}"}, "needs `isolation: session`"),
        ({"url": "http://a/mcp", "env": {"A": "b"}}, "env: only for servers with `command`"),
        ({"command": ["x"], "headers": {"A": "b"}}, "headers: only for servers with `url`"),
        ({"command": ["x"], "warm": -1}, "warm: expected"),
        ({"command": ["x", "{folder}"], "isolation": "shared"}, "needs `isolation: process`"),
        ({"command": ["x"], "env": {"A": "{folder}"}, "isolation": "session"}, "needs `isolation: process`"),
    ],
)
def test_options_that_cannot_work_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        MCPTools(**options)


def test_the_default_isolation_is_the_one_that_needs_no_trust_in_the_server():
    assert MCPTools(command=["x"]).isolation == "process"
    assert MCPTools(url="http://a/mcp").isolation == "shared"
