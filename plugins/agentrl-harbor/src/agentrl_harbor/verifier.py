"""Run a task's verifier after the agent has ended, and read the reward file that it writes.

Whatever keeps the verifier from giving a reward is a `NoVerdictError`, unless the sandbox itself is gone: the agent may
have caused it, and the scorer finds out whether it did.
"""

from __future__ import annotations

import io
import json
import shlex
import tarfile
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import attrs

from agentrl_core.errors import EnvironmentLostError, EpisodeError
from agentrl_harbor.sandbox import TESTS, VERIFIER_LOGS, Sandbox, UnusableError, pack, parent_and_name, read_file
from agentrl_harbor.task_config import resolved

if TYPE_CHECKING:
    from agentrl_harbor.task_dir import Definition, TaskDir

_STDOUT: Final = f"{VERIFIER_LOGS}/test-stdout.txt"
_ARTIFACTS: Final = "/logs/artifacts"
_REWARD_BYTES: Final = 100_000
_LARGEST: Final = 1e9
"""Largest reward; sums of squares over a batch stay finite in 32 bits."""
_ARTIFACT_BYTES: Final = 256_000_000
_SHOWN_CHARS: Final = 2000
"""End of the verifier's output that is stored with the record."""
_TAIL: Final = f"tail -c {4 * _SHOWN_CHARS} {_STDOUT}"
# One command, because each one costs a process: run the tests, name the reward file, show the end of the output.
_TESTS: Final = (
    f"({TESTS}/test.sh) > {_STDOUT} 2>&1; status=$?; [ -e {VERIFIER_LOGS}/reward.json ] && echo json || echo text; "
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

    Before, all processes of the agent end, unless the task keeps them. Raises `NoVerdictError`, and
    `EnvironmentLostError` if the sandbox is gone.
    """
    definition = task.verifier_environment
    try:
        if definition is None:
            return await _run(task, agents, bring_tests=True, keep_processes=task.config.keep_processes)
        await agents.renew((), keep_processes=task.config.keep_processes)
        own = await open_sandbox(definition)
        try:
            await _copy_artifacts(task, agents, own)
            return await _run(task, own, bring_tests=not definition.has_tests, keep_processes=True)
        finally:
            await own.close()
    except UnusableError as error:
        raise NoVerdictError(f"the verifier could not be prepared: {error}") from error


async def _run(task: TaskDir, sandbox: Sandbox, *, bring_tests: bool, keep_processes: bool) -> Verdict:
    config = task.config.verifier
    try:
        env = resolved(config.env)
    except ValueError as error:
        raise EnvironmentLostError(f"{task.path}: {error}") from error
    # What the agent wrote there, such as a reward of its own or a conftest.py, must not count.
    await sandbox.renew((VERIFIER_LOGS, TESTS) if bring_tests else (VERIFIER_LOGS,), keep_processes=keep_processes)
    if bring_tests:
        await sandbox.put(pack(task.tests), TESTS)
    else:  # as Harbor does; `pack` has done it for tests that are brought
        make = f"chmod +x {TESTS}/test.sh"
        await sandbox.run(make, timeout_s=60, limit_bytes=1000, user="root", workdir="/")
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
        data = await read_file(sandbox, f"{VERIFIER_LOGS}/{name}", limit_bytes=_REWARD_BYTES)
        if data is not None:
            return parse(data.decode())
    except (ValueError, RecursionError) as error:
        raise NoVerdictError(f"{VERIFIER_LOGS}/{name}: {error}", output=output) from error
    raise NoVerdictError(
        f"the verifier ended with exit code {status} and wrote neither {VERIFIER_LOGS}/reward.txt nor reward.json",
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
    # Not `isfinite`: it cannot take integers of any length.
    if not isinstance(value, int | float) or not -_LARGEST <= value <= _LARGEST:
        raise ValueError(f"expected finite numbers of at most {_LARGEST:g}, found {value!r:.60}")
    return float(value)


async def _copy_artifacts(task: TaskDir, agents: Sandbox, own: Sandbox) -> None:
    """Bring what the agent has made to the verifier's own sandbox, to the same paths."""
    for path in (_ARTIFACTS, *task.config.artifacts):
        archive = await agents.get(path, limit_bytes=_ARTIFACT_BYTES + 1)
        if archive is None:
            continue
        if len(archive) > _ARTIFACT_BYTES:
            raise NoVerdictError(f"the artifact {path} is larger than {_ARTIFACT_BYTES:,} bytes")
        folder, name = parent_and_name(path)
        _check_names(archive, path, name)
        await own.run(f"rm -rf {shlex.quote(path)}", timeout_s=60, limit_bytes=1000, user="root", workdir="/")
        await own.put(archive, folder)


def _check_names(archive: bytes, path: str, name: str) -> None:
    """Raise `NoVerdictError` if an archive that was made beside the agent would write elsewhere than to its path."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as members:
            names = members.getnames()
    except tarfile.TarError as error:
        raise NoVerdictError(f"the artifact {path} could not be read: {error}") from error
    for found in names:
        if found.split("/")[0] != name or ".." in found.split("/"):
            raise NoVerdictError(f"the artifact {path} has a file elsewhere: {found[:100]}")
