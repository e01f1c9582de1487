"""The data set `verifiers`: the tasks of an environment, read in the interpreter that has verifiers."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import field, validators

from agentrl_core import Task
from agentrl_core.errors import DataError

_FOREIGN = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "VIRTUAL_ENV")
"""Variables that would make another interpreter import this one's packages."""
_LONGEST = 600
"""Characters of an error that are shown, its end."""


@attrs.frozen(kw_only=True)
class VerifiersTasks:
    """Read the tasks of the environment `env` with the interpreter `python`."""

    env: str = field(validator=validators.min_len(1))
    """Name of the environment: an installed package, or a folder or module beside the config."""
    args: Mapping[str, Any] = field(factory=dict)
    """Options of the environment's config; the same as those of the workflow."""
    python: str = field(validator=validators.min_len(1))
    """Interpreter that has verifiers and the environment, relative to the config; that of `rollout.agent.python`."""
    first: int = field(default=0, validator=validators.ge(0))
    """Position of the first task: tasks to evaluate on are those behind the tasks to train on."""
    size: int | None = field(default=None, validator=validators.optional(validators.gt(0)))
    """Number of tasks; None for all."""
    timeout_s: float = field(default=600.0, validator=validators.gt(0))
    """Longest time in seconds: some environments download their data."""
    config_dir: Path = field(factory=Path.cwd, converter=Path)

    def __call__(self) -> list[Task]:
        """Return the tasks. Raises `DataError` if the environment cannot be loaded."""
        rows = self._rows()
        if not rows:
            raise DataError(f"verifiers environment '{self.env}' has no tasks from position {self.first} on")
        return [self._task(self.first + index, row) for index, row in enumerate(rows)]

    def _rows(self) -> list[dict[str, Any]]:
        folder = self.config_dir.absolute()
        wanted = {
            "env": self.env,
            "args": self.args,
            "first": self.first,
            "size": self.size,
            "folders": [str(folder)],
        }
        python = folder / Path(self.python).expanduser() if os.sep in self.python else Path(self.python)
        with tempfile.TemporaryDirectory() as temporary:
            output = Path(temporary) / "tasks.jsonl"
            script = Path(__file__).with_name("listing.py")
            try:
                done = subprocess.run(  # noqa: S603  (the interpreter that the config names)
                    [python, script, json.dumps(wanted), output],
                    cwd=folder,  # so that paths in `args` start from the config
                    check=False,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=self.timeout_s,
                    env={name: value for name, value in os.environ.items() if name not in _FOREIGN},
                )
            except OSError as error:
                raise DataError(f"data set 'verifiers': cannot start {python}: {error}") from error
            except subprocess.TimeoutExpired as error:
                waited = f"did not list its tasks within timeout_s = {self.timeout_s:g} s"
                raise DataError(f"verifiers environment '{self.env}' {waited}") from error
            if done.returncode:
                lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
                raise DataError(f"verifiers environment '{self.env}' (in {python}): {lines[-1][-_LONGEST:]}")
            return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]

    def _task(self, position: int, row: dict[str, Any]) -> Task:
        task_id = f"{self.env}-{position}"
        prompt = row.get("prompt")
        messages = list(prompt) if isinstance(prompt, list) else []
        if not isinstance(prompt, list):
            # An environment whose user speaks first has no prompt; agentrl's tasks have at least one message.
            messages.append({"role": "user", "content": prompt or row.get("description") or row.get("name") or task_id})
        if row.get("system_prompt"):
            messages.insert(0, {"role": "system", "content": row["system_prompt"]})
        answer = row.get("answer")
        data = {"id": task_id, "messages": messages, "verifiers": {"env": self.env, "data": row}}
        return Task(id=task_id, data=data, answer=answer if isinstance(answer, str) else None)
