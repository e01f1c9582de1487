"""Run a task's verifier after the agent has ended, and read the reward file that it writes."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import attrs

from agentrl_core.errors import EnvironmentLostError, EpisodeError
from agentrl_harbor.sandbox import Sandbox, pack, parent_and_name, read_file
from agentrl_harbor.task_config import resolved

if TYPE_CHECKING:
    from agentrl_harbor.task_dir import Definition, TaskDir

_LOGS: Final = "/logs/verifier"
_STDOUT: Final = f"{_LOGS}/test-stdout.txt"
_ARTIFACTS: Final = "/logs/artifacts"
_REWARD_BYTES: Final = 100_000
_ARTIFACT_BYTES: Final = 256_000_000
_SHOWN_CHARS: Final = 2000
"""End of the verifier's output that is stored with the record."""
_TAIL: Final = f"tail -c {4 * _SHOWN_CHARS} {_STDOUT}"
# One command, because each one costs a process: run the tests, name the reward file, show the end of the output.
_TESTS: Final = (
    f"(/tests/test.sh) > {_STDOUT} 2>&1; status=$?; [ -e {_LOGS}/reward.json ] && echo json || echo text; "
    f"{_TAIL}; exit $status"
)


@attrs.frozen(kw_only=True)
class Verdict:
    """Rewards and output of a verifier."""

    rewards: dict[str, float]
    output: str
    """End of its output."""


class NoVerdictError(EpisodeError):
    """The verifier ended without a usable reward, or did not end in time."""

    def __init__(self, message: str, *, output: str = "") -> None:
        super().__init__("no_score", message, details={"verifier": output} if output else None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message and the details."""
        return type(self), (str(self),), {"details": self.details}


async def verify(task: TaskDir, agents: Sandbox, open_sandbox: Callable[[Definition], Awaitable[Sandbox]]) -> Verdict:
    """Run the verifier in the agent's sandbox, or in one of its own if the task says so.

    Raises `NoVerdictError`, and `EnvironmentLostError` if the sandbox is gone.
    """
    definition = task.verifier_environment
    if definition is None:
        return await _run(task, agents, bring_tests=True)
    own = await open_sandbox(definition)
    try:
        await _copy_artifacts(task, agents, own)
        return await _run(task, own, bring_tests=not definition.has_tests)
    finally:
        await own.close()


async def _run(task: TaskDir, sandbox: Sandbox, *, bring_tests: bool) -> Verdict:
    config = task.config.verifier
    # What the agent wrote there, such as a reward of its own or a conftest.py, must not count.
    old = f"{_LOGS} /tests" if bring_tests else _LOGS
    prepare = f"rm -rf {old} && mkdir -p {_LOGS} {_ARTIFACTS} && chmod 777 {_LOGS}"
    ended = await sandbox.run(prepare, timeout_s=60, limit_bytes=1000, user="root", workdir="/")
    if ended.status != 0:
        raise EnvironmentLostError(f"the verifier could not be prepared: {ended.text.strip()[:300]}")
    if bring_tests:
        await sandbox.put(pack(task.tests), "/tests")
    try:
        env = resolved(config.env)
    except ValueError as error:
        raise EnvironmentLostError(f"{task.path}: {error}") from error
    ended = await sandbox.run(
        _TESTS, timeout_s=config.timeout_s, limit_bytes=8 * _SHOWN_CHARS, env=env, user=config.user
    )
    if ended.status is None:
        tail = await sandbox.run(_TAIL, timeout_s=30, limit_bytes=8 * _SHOWN_CHARS, workdir="/")
        raise NoVerdictError(
            f"the verifier did not end within verifier.timeout_sec = {config.timeout_s:g}", output=_shown(tail.text)
        )
    kind, _, output = ended.text.partition("\n")
    return Verdict(rewards=await _rewards(sandbox, kind, _shown(output), ended.status), output=_shown(output))


async def _rewards(sandbox: Sandbox, kind: str, output: str, status: int) -> dict[str, float]:
    """Return the rewards of reward.json, else of reward.txt, as numbers by name; the exit code does not matter."""
    name, parse = ("reward.json", _from_json) if kind == "json" else ("reward.txt", _from_text)
    try:
        data = await read_file(sandbox, f"{_LOGS}/{name}", limit_bytes=_REWARD_BYTES)
        if data is not None:
            return parse(data.decode())
    except ValueError as error:
        raise NoVerdictError(f"{_LOGS}/{name}: {error}", output=output) from error
    raise NoVerdictError(
        f"the verifier ended with exit code {status} and wrote neither {_LOGS}/reward.txt nor reward.json",
        output=output,
    )


def _shown(text: str) -> str:
    return text[-_SHOWN_CHARS:].strip()


def _from_json(text: str) -> dict[str, float]:
    found: Any = json.loads(text)
    items = found if isinstance(found, dict) else {"reward": found}
    if not items:
        raise ValueError("has no reward")
    return {str(name): _number(value) for name, value in items.items()}


def _from_text(text: str) -> dict[str, float]:
    return {"reward": _number(float(text))}


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected finite numbers, found {value!r:.60}")
    return float(value)


async def _copy_artifacts(task: TaskDir, agents: Sandbox, own: Sandbox) -> None:
    """Bring what the agent has made to the verifier's own sandbox, to the same paths."""
    for path in (_ARTIFACTS, *task.config.artifacts):
        archive = await agents.get(path, limit_bytes=_ARTIFACT_BYTES + 1)
        if archive is None:
            continue
        if len(archive) > _ARTIFACT_BYTES:
            raise NoVerdictError(f"the artifact {path} is larger than {_ARTIFACT_BYTES:,} bytes")
        folder, _ = parent_and_name(path)
        await own.run(f"rm -rf {shlex.quote(path)}", timeout_s=60, limit_bytes=1000, user="root", workdir="/")
        await own.put(archive, folder)
