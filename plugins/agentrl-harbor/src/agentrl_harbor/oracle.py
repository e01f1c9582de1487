"""Examination of tasks by `agentrl doctor`: Harbor's oracle plays one of them, and all verifiers are read.

A verifier that cannot do its work here often writes a reward of 0, which nobody can tell from that of a bad agent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from agentrl_core.errors import EnvironmentLostError, ToolServerError
from agentrl_harbor.sandbox import Provider, UnusableError, pack
from agentrl_harbor.task_config import resolved
from agentrl_harbor.verifier import NoVerdictError, Verdict, verify

if TYPE_CHECKING:
    from agentrl_harbor.server import HarborTools
    from agentrl_harbor.task_dir import TaskDir

_SOLUTION: Final = "/solution"
_SOLVE_S: Final = 600.0
"""Longest time of a solution whose task has no `agent.timeout_sec`."""
_SHOWN_CHARS: Final = 300
_ONLINE: Final = re.compile(
    r"\b(apt-get|apt install|curl|wget|uvx|pip3?|npm|git clone)\b(?!.*(?:--no-index|localhost|127\.0\.0\.1))"
)
"""Programs of test scripts that fetch something."""


async def problems_of(server: HarborTools, provider: Provider, tasks: Sequence[TaskDir]) -> list[str]:
    """Return what is wrong with tasks, each as a text that says what to do."""
    refused = [(task, refusal) for task in tasks if (refusal := provider.refusal(task))]
    problems = [f"{task.path}: {refusal}{_more(len(refused))}" for task, refusal in refused[:1]]
    left = [task for task in tasks if not provider.refusal(task)]
    offline = [task for task in left if not provider.has_network(task.verifier_environment or task.environment)]
    if online := [(task, words) for task in offline if (words := _fetches(task))]:
        task, words = online[0]
        problems.append(
            f"{task.tests}/test.sh uses {' and '.join(words)}, and there is no network here{_more(len(online))}: "
            "install what it needs before, give the sandboxes a network, or leave the task out by `exclude`"
        )
    solved = next((task for task in left if (task.path / "solution" / "solve.sh").is_file()), None)
    try:
        return problems if solved is None else problems + await _problems_of_playing(server, solved)
    except (EnvironmentLostError, ToolServerError) as error:
        return [*problems, f"{solved.path if solved else ''}: the oracle could not be played: {error}"]


async def _problems_of_playing(server: HarborTools, task: TaskDir) -> list[str]:
    """Compare the reward of the task's own solution with that of doing nothing."""
    try:
        solved = await _played(server, task, solves=True)
    except (NoVerdictError, UnusableError) as error:
        return [f"{task.path}: its own solution/solve.sh gets no reward: {error}{_end_of(error)}"]
    try:
        idle = await _played(server, task, solves=False)
    except NoVerdictError:
        return []  # a verifier that says nothing of an unsolved task
    if any(value > idle.rewards.get(name, value) for name, value in solved.rewards.items()):
        return []
    told = (
        f"{task.path}: its own solution/solve.sh gets the reward {_shown(solved)}, and doing nothing {_shown(idle)}, "
        "so nothing can be learned from it; see whether its tests can run here, and if they need what the solution "
        "has started, set keep_processes = true in [metadata.agentrl] of its task.toml; the verifier's output ends: "
    )
    return [told + (solved.output[-_SHOWN_CHARS:] or "(nothing)")]


async def _played(server: HarborTools, task: TaskDir, *, solves: bool) -> Verdict:
    """Return the verdict on a new sandbox, in which the task's solution may have run."""
    opened = await server.open_sandbox_of(task)
    try:
        if solves:
            config = task.config
            await opened.sandbox.put(pack(task.path / "solution"), _SOLUTION)
            try:
                env = {"DEBIAN_FRONTEND": "noninteractive", **resolved(config.solution_env)}
            except ValueError as error:
                raise EnvironmentLostError(str(error)) from error
            await opened.sandbox.run(
                f"{_SOLUTION}/solve.sh > /logs/agent/oracle.txt 2>&1", timeout_s=config.agent_timeout_s or _SOLVE_S,
                limit_bytes=1000, env=env, user=config.agent_user,
            )  # fmt: skip
        return await verify(task, opened.sandbox, server.open_sandbox)
    finally:
        await server.discard(opened)


def _fetches(task: TaskDir) -> list[str]:
    """Return the programs of a task's test script that fetch something, in their order."""
    script = task.tests / "test.sh"
    lines = script.read_text(encoding="utf-8", errors="replace").splitlines() if script.is_file() else []
    found = (match[1] for line in lines if not line.lstrip().startswith("#") for match in _ONLINE.finditer(line))
    return list(dict.fromkeys(found))


def _more(number: int) -> str:
    return f" (one of {number} such tasks)" if number > 1 else ""


def _shown(verdict: Verdict) -> str:
    if len(verdict.rewards) == 1:
        return f"{next(iter(verdict.rewards.values())):g}"
    return ", ".join(f"{name} {value:g}" for name, value in verdict.rewards.items())


def _end_of(error: Exception) -> str:
    output = getattr(error, "details", {}).get("verifier", "")
    return f"; the verifier's output ends: {output[-_SHOWN_CHARS:]}" if output else ""
