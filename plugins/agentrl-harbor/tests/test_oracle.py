"""Examination of tasks for `agentrl doctor`: the oracle, doing nothing, and what test scripts fetch."""

import asyncio
import re

import pytest

from agentrl_core import Task
from agentrl_harbor.server import HarborTools

pytestmark = pytest.mark.usefixtures("needs_local")
SOLVE = "#!/bin/bash\nprintf 'Hello, world!' > hello.txt\n"
NO_NETWORK = "apt-get update\ncurl -LsSf https://x | sh\nuvx pytest && echo 1 > $R || echo 0 > $R\n".replace(
    "$R", "/logs/verifier/reward.txt"
)


def problems(*folders, **options):
    async def scenario():
        server = HarborTools(provider="local", **options)
        await server.start()
        try:
            return await server.examine([Task(id=item.name, data={"task_dir": str(item)}) for item in folders])
        finally:
            await server.close()

    return asyncio.run(scenario())


def test_a_task_that_its_solution_solves_is_fine(make_task):
    assert problems(make_task(solution__solve_DOT_sh=SOLVE)) == []


def test_a_task_without_a_solution_is_not_played(make_task):
    assert problems(make_task()) == []


def test_a_verifier_that_cannot_work_here_is_told(make_task):
    folders = [make_task(name, tests__test_DOT_sh=NO_NETWORK, solution__solve_DOT_sh=SOLVE) for name in ("a", "b")]
    network, played = problems(*folders)
    assert (
        "a/tests/test.sh uses apt-get and curl and uvx, and there is no network here (one of 2 such tasks)" in network
    )
    assert "its own solution/solve.sh gets the reward 0, and doing nothing 0" in played
    assert "uvx: command not found" in played


def test_a_solution_whose_services_end_is_told(make_task):
    test = "kill -0 $(cat pid) && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
    solve = "#!/bin/sh\nsleep 1000 >/dev/null 2>&1 &\necho $! > pid\n"
    (told,) = problems(make_task(tests__test_DOT_sh=test, solution__solve_DOT_sh=solve))
    assert "set keep_processes = true in [metadata.agentrl]" in told


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"tests__test_DOT_sh": "echo broken; exit 1\n"}, "gets no reward: .* wrote neither .* output ends: broken"),
        (
            {"config": '[solution]\nenv = {A = "${AGENTRL_TEST_MISSING}"}\n'},
            "could not be played: .*AGENTRL_TEST_MISSING",
        ),
    ],
)
def test_a_solution_without_a_reward_is_told(make_task, files, told):
    (found,) = problems(make_task(solution__solve_DOT_sh=SOLVE, **files))
    assert re.search(told, found), found


def test_tasks_that_are_refused_are_told_and_others_are_played(make_task):
    refused = make_task("refused", environment__Dockerfile="FROM a\nRUN true\n", solution__solve_DOT_sh=SOLVE)
    (told,) = problems(refused, make_task(solution__solve_DOT_sh=SOLVE))
    assert "cannot do `RUN true`" in told
