"""Attempts of an agent to get a reward, or no score in place of 0, by what it leaves for the verifier."""

import asyncio
import io
import tarfile

import pytest

from agentrl_core import Task
from agentrl_core.api.scoring import ScoreRequest
from agentrl_core.api.tools import ToolEpisode
from agentrl_core.errors import EpisodeError
from agentrl_core.types import Record
from agentrl_harbor.scorer import Harbor
from agentrl_harbor.server import HarborTools
from agentrl_harbor.verifier import NoVerdictError, _check_names

pytestmark = pytest.mark.usefixtures("needs_local")

# The agent's own program is a part of this test, as in many tasks.
TEST = """#!/bin/bash
sleep 0.1
[ ! -e work.sh ] || bash work.sh
if [ "$(cat hello.txt)" = "Hello, world!" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
sleep 0.1
"""
LOOP = "setsid bash -c 'trap \"\" TERM HUP INT; while :; do {}; sleep 0.01; done' >/dev/null 2>&1 &"
WRITE = "[ -e /logs/verifier/reward.txt ] && echo 1 > /logs/verifier/reward.txt"
FORGED = {
    "writes the reward in the background": LOOP.format(WRITE),
    "writes reward.json in the background": LOOP.format("echo 1 > /logs/verifier/reward.json"),
    "replaces the test": LOOP.format(
        '[ -e /tests/test.sh ] && echo "echo 1 > /logs/verifier/reward.txt" > /tests/test.sh'
    ),
    "reads the answer in the test": LOOP.format(
        'w=$(sed -n "s/.*= \\"\\(Hello.*\\)\\" ].*/\\1/p" /tests/test.sh) && printf "%s" "$w" > /app/hello.txt'
    ),
    "does so from two processes that guard each other": f"cat > /g.sh <<'E'\n{WRITE}; sleep 0.01; setsid bash /g.sh & disown\n"
    "E\nsetsid bash /g.sh >/dev/null 2>&1 & setsid bash /g.sh >/dev/null 2>&1 &",
    "stops the first process": "kill -9 -1; kill -STOP 1; kill -9 1; " + LOOP.format(WRITE),
    "links the logs elsewhere": "rm -rf /logs/verifier; mkdir /mine; ln -s /mine /logs/verifier; "
    + LOOP.format("echo 1 > /mine/reward.json"),
    "links all logs elsewhere": "rm -rf /logs; mkdir -p /mine/verifier; ln -s /mine /logs; echo 1 > /mine/verifier/reward.json",
    "links the tests elsewhere": "rm -rf /tests; mkdir /mine; ln -s /mine /tests; echo 'echo 1 > /logs/verifier/reward.txt' "
    "> /mine/test.sh; chmod 555 /mine /mine/test.sh",
    "binds another interpreter": "cp /bin/true /tmp/t; mount --bind /tmp/t /bin/bash; cp /bin/true /bin/bash; mv /bin /old",
    "has a library loaded": "echo /app/evil.so > /etc/ld.so.preload; mv /etc /old; mv /lib64 /old",
    "prepares a reward": "echo 1 > /logs/verifier/reward.json; chmod 444 /logs/verifier/reward.json; chmod 555 /logs/verifier",
    "opens the logs before": "exec 9>/logs/verifier/reward.txt; (sleep 1; echo 1 >&9) & ",
}
"""What an agent does to get 1 without a solution -> command."""
SPOILED = {
    "a file system in memory over the logs": "mount -t tmpfs none /logs/verifier; mount -t tmpfs none /tests",
    "a fifo as its answer": "mkfifo hello.txt",
    "a fifo in place of the tests": "rm -rf /tests; mkfifo /tests; rm -rf /logs; mkfifo /logs",
    "half a reward": LOOP.format('printf "{" > /logs/verifier/reward.json'),
    "half a reward by the tested program": "echo 'printf \"{\" > /logs/verifier/reward.json' > work.sh",
    "not a number": "echo 'echo NaN > /logs/verifier/reward.json' > work.sh",
    "a large reward": "echo 'echo 1e308 > /logs/verifier/reward.json' > work.sh",
    "an integer of 4,000 digits": "echo 'python3 -c \"print(10**4000)\" > /logs/verifier/reward.json' > work.sh",
    "a deep reward": 'echo \'head -c 90000 /dev/zero | tr "\\0" "[" > /logs/verifier/reward.json\' > work.sh',
    "a reward of another name": 'echo \'echo "{\\"a\\": 1, \\"b\\": 1}" > /logs/verifier/reward.json\' > work.sh',
    "a test that never ends": "echo 'sleep 1000' > work.sh",
    "a test that is killed": "echo 'kill -9 -1; kill -9 $PPID $$' > work.sh",
    "no working folder": "cd /; rm -rf /app",
    "nothing left": "rm -rf --no-preserve-root / 2>/dev/null",
    "all processes ended": "kill -9 -1; kill -INT 1; kill -TERM 1",
    "no room for processes": "ulimit -u 1; " + LOOP.format(":"),
}
"""What an agent does so that its 0 does not count -> command."""
HONEST = {
    "hello": "printf 'Hello, world!' > hello.txt",
    "with a program": "echo 'printf \"Hello, world!\" > hello.txt' > work.sh",
}


def row(folder):
    return {"id": folder.name, "task_dir": str(folder), "query": "", "messages": []}


async def scored(server, folder, record_id, *commands):
    """Return the score of an episode with commands."""
    session = await server.open(ToolEpisode(record_id=record_id, task_id=folder.name, data=row(folder)))
    for command in commands:
        await session.call("bash", {"command": command}, timeout_s=30)
    await session.close()
    record = Record(id=record_id, run_id="run", task_id=folder.name, group_id="g", sample_index=0)
    task = Task(id=folder.name, data=row(folder), scorer="harbor")
    return await Harbor()(ScoreRequest(answer="", reference=None, task=task, messages=(), record=record))


def scores(folder, commands):
    """Return what each command gives, all on one server: a score, or the exception."""

    async def scenario():
        server = HarborTools(provider="local", max_sandboxes=8)
        await server.start()
        try:
            work = (scored(server, folder, f"r{number}", text) for number, text in enumerate(commands))
            return await asyncio.gather(*work, return_exceptions=True)
        finally:
            await server.close()

    return asyncio.run(scenario())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forging") / "task"
    files = {
        "instruction.md": "Write hello.txt.",
        "task.toml": 'schema_version = "1.4"\n[verifier]\ntimeout_sec = 10\n',
        "environment/Dockerfile": "FROM a\nWORKDIR /app\n",
        "tests/test.sh": TEST,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    attempts = {**FORGED, **SPOILED, **HONEST}
    return dict(zip(attempts, scores(folder, attempts.values()), strict=True))


@pytest.mark.parametrize("name", [*FORGED, *SPOILED])
def test_what_an_agent_leaves_for_the_verifier_gets_nothing(found, name):
    score = found[name]
    assert not isinstance(score, BaseException), score
    assert score.value == 0


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_solution_is_rewarded(found, name):
    assert found[name].value == 1


def test_services_stay_if_the_task_says_so(make_task):
    test = "kill -0 $(cat pid) && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
    command = "sleep 1000 >/dev/null 2>&1 & echo $! > pid"
    keeping = make_task("keeping", config="[metadata.agentrl]\nkeep_processes = true\n", tests__test_DOT_sh=test)
    assert [score.value for score in scores(keeping, [command])] == [1]
    assert [score.value for score in scores(make_task("other", tests__test_DOT_sh=test), [command])] == [0]


def test_a_verifier_of_its_own_fails_alone_by_what_the_agent_did(make_task):
    test = "cat /app/out/* > /dev/null; echo 0 > /logs/verifier/reward.txt\n"
    config = 'artifacts = ["/app/out"]\n[verifier]\nenvironment_mode = "separate"\ntimeout_sec = 2\n'
    commands = ["mkdir out; mkfifo out/a", "mkdir out; echo a > out/a"]
    blocked, plain = scores(make_task(config=config, tests__test_DOT_sh=test), commands)
    assert (blocked.value, plain.value) == (0, 0)
    assert "did not end within" in blocked.details["why"]


def test_a_verifier_that_nobody_passes_is_no_score(make_task):
    (found,) = scores(make_task(tests__test_DOT_sh="exit 1\n"), ["true"])
    assert isinstance(found, EpisodeError)
    assert found.reason == "no_score"


@pytest.mark.parametrize("name", ["../tests/test.sh", "verifier/reward.json", "artifacts/../verifier/reward.json"])
def test_an_artifact_writes_only_to_its_own_path(name):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("artifacts/a"))
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(NoVerdictError, match="has a file elsewhere"):
        _check_names(buffer.getvalue(), "/logs/artifacts", "artifacts")
