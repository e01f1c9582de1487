"""The data set `harbor`: the task directories in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from agentrl_core import Task
from agentrl_core.errors import DataError
from agentrl_harbor.task_dir import TaskDir

_SHOWN: Final = 10
"""Problems that an error lists."""


def tasks(
    path: str, *, config_dir: Path | None = None, include: Sequence[str] = ("*",), exclude: Sequence[str] = ()
) -> list[Task]:
    """Return the tasks of the directories below `path`, ordered by name; `path` may itself be a task directory.

    A task's id is its path below `path`; `include` and `exclude` are patterns of ids. Its row has the instruction as
    `query`, and `task_dir`. Raises DataError with the problems of all tasks that cannot be run.
    """
    root = (config_dir or Path()) / path
    found = [root] if (root / "task.toml").is_file() else sorted(item.parent for item in root.rglob("task.toml"))
    if not found:
        raise DataError(f"{root}: expected task directories (instruction.md, task.toml, environment/, tests/)")
    names = {folder: folder.relative_to(root).as_posix() if folder != root else root.name for folder in found}
    chosen = {
        folder: name
        for folder, name in names.items()
        if any(fnmatch(name, item) for item in include) and not any(fnmatch(name, item) for item in exclude)
    }
    if not chosen:
        raise DataError(f"{root}: `include` and `exclude` leave none of the {len(found)} tasks")
    rows, problems = [], []
    for folder, name in chosen.items():
        try:
            task = TaskDir.read(folder)
        except ValueError as error:
            problems.append(str(error))
        else:
            rows.append(_task(name, task))
    if problems:
        shown = "\n".join(problems[:_SHOWN])
        more = f"\n… and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise DataError(
            f"{len(problems)} of {len(chosen)} tasks cannot be run (leave them out by `exclude`):\n{shown}{more}"
        )
    return rows


def _task(name: str, task: TaskDir) -> Task:
    data = {
        "id": name,
        "query": task.instruction,
        "messages": [{"role": "user", "content": task.instruction}],
        "task_dir": str(task.path),
    }
    return Task(id=name, data=data, scorer="harbor")
