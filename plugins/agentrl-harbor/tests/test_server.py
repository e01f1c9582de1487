"""Episodes with the tools and the scorer: from the agent's first command to the verifier's reward."""

import asyncio
import contextlib
import json
import os

import pytest

from agentrl_core import Task
from agentrl_core.api.scoring import ScoreRequest
from agentrl_core.api.tools import ToolEpisode
from agentrl_core.errors import EnvironmentLostError, EpisodeError, ToolServerError
from agentrl_core.types import Record
from agentrl_harbor import server as module
from agentrl_harbor.scorer import Harbor
from agentrl_harbor.server import HarborTools
from agentrl_testing.tool_servers import ToolServerSuite

pytestmark = pytest.mark.usefixtures("needs_local")


def row(folder):
    return {"id": folder.name, "task_dir": str(folder), "query": "", "messages": []}


def episode(folder, record_id="r1"):
    return ToolEpisode(record_id=record_id, task_id=folder.name, data=row(folder))


async def call(session, name, timeout_s=30, **arguments):
    return (await session.call(name, json.loads(json.dumps(arguments)), timeout_s=timeout_s)).text


@pytest.mark.parametrize(
    ("data", "told"), [({}, "there is no task: .*; `--task ID` names one"), ({"id": "t"}, "task 't' has no `task_dir`")]
)
def test_an_episode_without_a_task_directory_is_refused(data, told):
    async def opened():
        async with started() as server:
            await server.open(ToolEpisode(record_id="r1", task_id="", data=data))

    with pytest.raises(ToolServerError, match=told):
        asyncio.run(opened())


class TestConformance(ToolServerSuite):
    @pytest.fixture
    def server(self):
        return HarborTools(provider="local")

    @pytest.fixture
    def data(self, make_task):
        return row(make_task())

    @pytest.fixture
    def example(self):
        return "bash", {"command": "cat words.txt"}

    @pytest.fixture
    def changes(self):
        write = ("write_file", {"path": "words.txt", "text": "x"})
        return [(write, ("read_file", {"path": "words.txt"})), (("bash", {"command": "> /tmp/x"}), LIST)]


LIST = ("bash", {"command": "ls /tmp"})


@contextlib.asynccontextmanager
async def started(**options):
    server = HarborTools(provider="local", **options)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
    assert module.STARTED == []


def request(folder, record_id="r1"):
    record = Record(id=record_id, run_id="run", task_id=folder.name, group_id="g", sample_index=0)
    task = Task(id=folder.name, data=row(folder), scorer="harbor")
    return ScoreRequest(answer="", reference=None, task=task, messages=(), record=record)


def outcome(folder, *commands, scorer=None, **options):
    """Run commands in an episode and return what the scorer gives."""

    async def scenario():
        async with started(**options) as server:
            session = await server.open(episode(folder))
            for command in commands:
                await call(session, "bash", command=command)
            await session.close()
            return await (scorer or Harbor())(request(folder))

    return asyncio.run(scenario())


def test_the_verifier_rewards_what_the_agent_did(make_task):
    folder = make_task()
    assert outcome(folder, "printf 'Hello, world!' > hello.txt").value == 1
    assert outcome(folder, "printf wrong > hello.txt").value == 0
    assert outcome(folder).value == 0


def test_the_agent_sees_no_tests_and_its_own_reward_does_not_count(make_task):
    folder = make_task()

    async def scenario():
        async with started() as server:
            session = await server.open(episode(folder))
            assert "No such file" in await call(session, "bash", command="ls /tests /solution")
            await call(
                session, "bash", command="mkdir -p /tests; echo 1 > /logs/verifier/reward.txt; echo x > /tests/x"
            )
            await session.close()
            score = await Harbor()(request(folder))
            assert score.value == 0

    asyncio.run(scenario())
    planted = make_task(
        "planted", tests__test_DOT_sh="[ ! -e /tests/x ]; echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    )
    assert outcome(planted, "mkdir -p /tests; echo x > /tests/x").value == 1


def test_tools_show_what_models_need(make_task):
    folder = make_task()

    async def scenario():
        async with started(output_chars=50, command_timeout_s=1) as server:
            session = await server.open(episode(folder))
            assert [spec.name for spec in await session.list_tools()] == ["bash", "read_file", "write_file"]
            assert await call(session, "bash", command="true") == "(no output)"
            assert await call(session, "bash", command="echo out; echo err >&2; exit 2") == "out\nerr\n\n[exit code 2]"
            assert (await call(session, "bash", command="seq 100")).endswith("[the output is longer and was cut]")
            assert await call(session, "bash", command="echo a; sleep 60") == "a\n\n[ended after 1 s]"
            assert await call(session, "write_file", path="new/file.txt", text="text") == "wrote new/file.txt"
            assert await call(session, "read_file", path="new/file.txt") == "text"
            assert await call(session, "read_file", path="/app/new/file.txt") == "text"
            assert await call(session, "read_file", path="none") == "there is no file none"
            assert "could not be copied" in await call(session, "write_file", path="/proc/x/y", text="")
            await session.close()

    asyncio.run(scenario())


def test_time_of_the_agent_is_limited_and_the_verifier_still_runs(make_task):
    folder = make_task(config="[agent]\ntimeout_sec = 0.3\n")

    async def scenario():
        async with started() as server:
            session = await server.open(episode(folder))
            await call(session, "bash", command="printf 'Hello, world!' > hello.txt")
            assert "[ended after" in await call(session, "bash", command="sleep 60")
            result = await session.call("bash", {"command": "true"}, timeout_s=30)
            assert (result.text, result.is_error) == ("the time for this task is up", True)
            await session.close()
            assert (await Harbor()(request(folder))).value == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 1\n", "exit code 1 and wrote neither"),
        ("echo nonsense > /logs/verifier/reward.txt\n", "reward.txt: could not convert"),
        ("echo nan > /logs/verifier/reward.txt\n", "expected finite numbers"),
        (": > /logs/verifier/reward.txt\n", "could not convert"),
        ('echo \'{"a": "1"}\' > /logs/verifier/reward.json\n', "expected finite numbers"),
        ("echo '{}' > /logs/verifier/reward.json\n", "has no reward"),
        ("echo '{' > /logs/verifier/reward.json\n", "reward.json: Expecting"),
        ('echo \'{"a": 1, "b": 2}\' > /logs/verifier/reward.json\n', "the rewards a, b, but no 'reward'"),
        ("head -c 1000000 /dev/zero > /logs/verifier/reward.txt\n", "larger than"),
        ("sleep 60\n", "did not end within"),
    ],
)
def test_a_verifier_without_a_reward_is_no_score(make_task, script, reason):
    folder = make_task(config="[verifier]\ntimeout_sec = 1\n", tests__test_DOT_sh=f"#!/bin/sh\necho said\n{script}")
    with pytest.raises(EpisodeError, match=reason) as caught:
        outcome(folder)
    assert caught.value.reason == "no_score"
    if "but no" not in reason:
        assert caught.value.details == {"verifier": "said"}
        zero = outcome(folder, scorer=Harbor(without_reward="zero"))
        assert zero.value == 0
        assert reason in zero.details["why"] or "convert" in reason or "Expecting" in reason


@pytest.mark.parametrize("mode", ["shared", "separate"])
def test_a_test_script_need_not_be_executable(make_task, mode):
    """In a verifier's own image too, where the Dockerfile brings the tests with their modes."""
    own = {} if mode == "shared" else {"tests__Dockerfile": "FROM a\nCOPY . /tests/\n"}
    folder = make_task(config=f'[verifier]\nenvironment_mode = "{mode}"\n', **own,
                       tests__test_DOT_sh="#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")  # fmt: skip
    assert not os.access(folder / "tests" / "test.sh", os.X_OK)
    assert outcome(folder).value == 1


def test_several_rewards_are_parts(make_task):
    folder = make_task(tests__test_DOT_sh='echo \'{"speed": 0.5, "right": 1}\' > /logs/verifier/reward.json\n')
    score = outcome(folder, scorer=Harbor(reward="speed"))
    assert (score.value, score.parts) == (0.5, {"speed": 0.5, "right": 1})


def test_a_verifier_of_its_own_sees_artifacts_alone(make_task):
    test = "cat /app/out/*.txt /logs/artifacts/note > /tmp/seen 2>&1; ls /app/hidden >> /tmp/seen 2>&1\ncat /tmp/seen\n"
    test += "grep -q made /tmp/seen && grep -q noted /tmp/seen && grep -q 'hidden.*No such' /tmp/seen\n"
    test += "echo $((1 - $?)) > /logs/verifier/reward.txt\n"
    config = 'artifacts = ["/app/out"]\n[verifier]\nenvironment_mode = "separate"\n'
    folder = make_task(config=config, tests__test_DOT_sh=test)
    commands = "mkdir out; echo made > out/a.txt; echo x > hidden; echo noted > /logs/artifacts/note"
    score = outcome(folder, commands)
    assert score.value == 1, score.details


def test_variables_and_exit_codes_of_the_verifier(make_task, monkeypatch):
    monkeypatch.setenv("AGENTRL_TEST_KEY", "0.25")
    config = '[verifier]\nenv = {KEY = "${AGENTRL_TEST_KEY}"}\n'
    folder = make_task(config=config, tests__test_DOT_sh="echo $KEY > /logs/verifier/reward.txt; exit 7\n")
    assert outcome(folder).value == 0.25


def test_episodes_wait_for_a_place(make_task):
    folder = make_task()

    async def scenario():
        async with started(max_sandboxes=1) as server:
            first = await server.open(episode(folder, "r1"))
            second = asyncio.create_task(server.open(episode(folder, "r2")))
            await first.close()
            assert not second.done()
            await Harbor()(request(folder, "r1"))
            await (await asyncio.wait_for(second, 60)).close()

    asyncio.run(scenario())


def test_a_sandbox_that_no_scorer_asks_for_is_removed(make_task, monkeypatch):
    folder = make_task()
    monkeypatch.setattr(module, "_PARKED_S", 0.01)

    async def scenario():
        async with started(max_sandboxes=1) as server:
            await (await server.open(episode(folder, "r1"))).close()
            await (await asyncio.wait_for(server.open(episode(folder, "r2")), 60)).close()
            # Not the verdict on a new sandbox, in which the agent has done nothing.
            with pytest.raises(EnvironmentLostError, match="was removed before"):
                await Harbor()(request(folder, "r1"))

    asyncio.run(scenario())


def test_an_agent_without_tools_is_verified_on_the_task_as_it_was(make_task):
    folder = make_task()

    async def scenario():
        async with started():
            assert (await Harbor()(request(folder))).value == 0
        with pytest.raises(EpisodeError, match="has no tool server"):
            await Harbor()(request(folder))

    asyncio.run(scenario())


def test_a_lost_sandbox_is_no_zero(make_task):
    folder = make_task()

    async def scenario():
        async with started() as server:
            session = await server.open(episode(folder))
            process = session._opened.sandbox._inside._process
            process.kill()
            await asyncio.to_thread(process.wait)
            with pytest.raises(EnvironmentLostError):
                await call(session, "bash", command="true")
            await session.close()
            with pytest.raises(EnvironmentLostError):
                await Harbor()(request(folder))

    asyncio.run(scenario())


def test_tasks_that_cannot_run_stop_the_run(make_task):
    folder = make_task(environment__Dockerfile="FROM a\nRUN true\n")

    async def scenario():
        async with started() as server:
            with pytest.raises(ToolServerError, match="cannot do `RUN true`"):
                await server.open(episode(folder))
            with pytest.raises(ToolServerError, match="needs tasks of the data set"):
                await server.open_task({"id": "x"})

    asyncio.run(scenario())


def test_a_failing_health_check_loses_the_environment_and_frees_the_place(make_task):
    check = '[environment.healthcheck]\ncommand = "{}"\ninterval_sec = 0.01\nretries = 2\n'
    sick, healthy = make_task("sick", config=check.format("false")), make_task("well", config=check.format("true"))

    async def scenario():
        async with started(max_sandboxes=1) as server:
            with pytest.raises(EnvironmentLostError, match="health check failed"):
                await server.open(episode(sick))
            await (await server.open(episode(healthy))).close()

    asyncio.run(scenario())
