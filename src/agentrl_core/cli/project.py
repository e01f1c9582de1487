"""Generator of `agentrl init`: a demo that learns within a minute, or a config for an existing agent."""

from __future__ import annotations

import ast
import json
import os
import random
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

from agentrl_core.errors import UsageError
from agentrl_core.plugins.references import is_reference

_LARGEST = 4
"""Largest summand of the demo's tasks, which gives 16 tasks, the number of one training step."""
_DEMONSTRATIONS = 480
_RIGHT = 0.3
"""Share of right demonstrations; the others are off by one, so that reinforcement learning has something to improve."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OWN_TASKS = ({"id": "t1", "query": "What is 6 times 7?", "answer": "42"},)


def write_demo(folder: Path) -> list[Path]:
    """Write config, agent, tasks and demonstrations; return the files; raise `UsageError` if one of them exists."""
    return _write(
        folder,
        {
            "config.yaml": _template("demo_config.yaml"),
            "agent.py": _template("demo_agent.py"),
            "tasks.jsonl": _lines(_demo_tasks()),
            "demos.jsonl": _lines(_demonstrations()),
        },
    )


def write_config(folder: Path, agent: str) -> list[Path]:
    """Write a commented config that names the agent, and a sample task if the folder has no tasks; return the files.

    `agent` is `file.py:name`, with a path from the working directory, or a dotted name. Raises `UsageError` if it is
    neither, if its file does not exist, or if the config exists.
    """
    if not is_reference(agent):
        raise UsageError(f"--agent: expected file.py:name, or my_package.module.Name, found '{agent}'")
    file, colon, name = agent.rpartition(":")
    source = file
    if file.endswith(".py"):
        if not Path(file).is_file():
            raise UsageError(f"--agent: there is no file {file}")
        # Paths in a config are relative to the config's folder.
        file = os.path.relpath(Path(file).expanduser(), folder)
    tasks = "tasks.jsonl"
    scorer = "default_scorer: exact_match"
    values = {
        "workflow": file + colon + name,
        "tasks": tasks,
        "scorer": f"{scorer}      # scores the last reply, because this agent returns no reward; or numeric, …"
        if file and _leaves_scoring(source, name)
        else f"# {scorer}     # scores the last reply if the agent returns no reward; or numeric, …",
    }
    texts = {"config.yaml": Template(_template("project_config.yaml")).substitute(values)}
    if not (folder / tasks).exists():
        texts[tasks] = _lines(iter(_OWN_TASKS))
    return _write(folder, texts)


def _leaves_scoring(file: str, name: str) -> bool:
    """Return whether an agent in a file returns no reward: a framework's object, or code without `return VALUE`.

    Its code is read and not run; if it cannot be read, `doctor` says so.
    """
    try:
        top = ast.parse(Path(file).read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return False
    for node in top:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return True
        if isinstance(node, ast.ClassDef) and node.name == name:
            run = next((item for item in node.body if isinstance(item, _FUNCTIONS) and item.name == "run"), None)
            return run is None or not _returns_reward(run)
        if isinstance(node, _FUNCTIONS) and node.name == name:
            # A function without parameters makes an agent.
            return not (node.args.args or node.args.posonlyargs) or not _returns_reward(node)
    return False


def _returns_reward(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function returns anything but None and an `Answer`, which goes to the scorer."""
    values = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    return any(
        not (isinstance(value, ast.Constant) and value.value is None)
        and not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "Answer")
        for value in values
    )


def _demo_tasks() -> Iterator[Mapping[str, object]]:
    for first in range(1, _LARGEST + 1):
        for second in range(1, _LARGEST + 1):
            messages = [{"role": "user", "content": f"Add {first} and {second}."}]
            yield {"id": f"{first}+{second}", "messages": messages, "answer": str(first + second)}


def _demonstrations() -> Iterator[Mapping[str, object]]:
    chance = random.Random(0)  # noqa: S311  # the same files each time, no secrets
    tasks = list(_demo_tasks())
    for number in range(_DEMONSTRATIONS):
        task = tasks[number % len(tasks)]
        right = int(str(task["answer"]))
        said = right if chance.random() < _RIGHT else right + chance.choice((-1, 1))
        messages: list[object] = list(task["messages"])  # type: ignore[call-overload]
        yield {"messages": [*messages, {"role": "assistant", "content": str(said)}]}


def _lines(rows: Iterator[Mapping[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _template(name: str) -> str:
    return files("agentrl_core.cli").joinpath("templates", f"{name}.txt").read_text(encoding="utf-8")


def _write(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    there = [str(folder / name) for name in texts if (folder / name).exists()]
    if there:
        raise UsageError(f"{', '.join(there)}: exists already; name another folder, or remove the file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror}; name another folder") from error
    return [folder / name for name in texts]
