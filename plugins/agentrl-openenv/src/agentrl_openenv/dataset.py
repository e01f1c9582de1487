"""The data sets `openenv`, of seeds, and `nemo_gym`, of files of NeMo Gym."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import field, validators

from agentrl_core import Task
from agentrl_core.errors import DataError


@attrs.frozen(kw_only=True)
class OpenEnvTasks:
    """Make one task for each seed of an OpenEnv environment.

    An environment whose `reset` takes other values needs a JSONL file of tasks, with a field `reset` in each row.
    """

    size: int = field(validator=validators.gt(0))
    """Number of tasks."""
    first_seed: int = field(default=0, validator=validators.ge(0))
    """Seed of the first task; the others follow."""
    reset: Mapping[str, Any] = field(factory=dict)
    """Further options of the environment's `reset`."""
    query: str = field(default="Begin.", validator=validators.min_len(1))
    """First message to the policy, if it calls the environment's tools."""

    def __call__(self) -> list[Task]:
        """Return the tasks."""
        tasks = []
        for seed in range(self.first_seed, self.first_seed + self.size):
            messages = [{"role": "user", "content": self.query}]
            data = {"id": f"seed-{seed}", "messages": messages, "reset": {**self.reset, "seed": seed}}
            tasks.append(Task(id=f"seed-{seed}", data=data))
        return tasks


@attrs.frozen(kw_only=True)
class NeMoGymTasks:
    """Read a JSONL file of NeMo Gym, whose rows have `responses_create_params` and what their server verifies."""

    path: str = field(validator=validators.min_len(1))
    """The file, relative to the config."""
    config_dir: Path = field(factory=Path.cwd, converter=Path)

    def __call__(self) -> list[Task]:
        """Return the tasks; raises `DataError` with the file's name and line."""
        path = self.config_dir / Path(self.path).expanduser()
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: {error}") from error
        tasks = [_task(f"{path}:{number}", number, line) for number, line in enumerate(lines, start=1) if line.strip()]
        if not tasks:
            raise DataError(f"{path}: expected at least one row")
        return tasks


def _task(place: str, number: int, line: str) -> Task:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place}: expected a JSON object: {error}") from error
    params = row.get("responses_create_params") if isinstance(row, dict) else None
    if not isinstance(params, dict) or not isinstance(params.get("input"), str | list) or not params["input"]:
        raise DataError(f"{place}: expected an object with `responses_create_params`, which has an `input`")
    task_id = str(row.get("id") or row.get("uuid") or f"row-{number}")
    asked = params["input"]
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else _messages(asked)
    return Task(id=task_id, data={"id": task_id, "messages": messages, "nemo_gym": row})


def _messages(items: list[Any]) -> list[dict[str, Any]]:
    """Return the messages among the input items of the Responses API, for people and traces."""
    found = [{"role": item["role"], "content": item.get("content") or ""} for item in items if "role" in item]
    return found or [{"role": "user", "content": json.dumps(items)}]
