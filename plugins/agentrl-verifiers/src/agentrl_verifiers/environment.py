"""Build an environment of verifiers from a config's options; runs in the interpreter that has verifiers.

This module and those that it imports may import the standard library, verifiers and this package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.utils.loaders import default_harness_id, env_config_type, load_environment

if TYPE_CHECKING:
    from verifiers.v1 import Env, EnvConfig, Task

HARNESS = "agentrl_chat"
"""Name under which verifiers finds the harness of this package. It splits ids at dots, so it cannot be a submodule."""
_WITHOUT_PROCESS = ("null", "bash")
"""Harnesses of verifiers that are chat loops, in a process of their own for each episode."""


def build(env: str, args: Mapping[str, Any]) -> Env[EnvConfig]:
    """Return the environment `env` with the options of its config, as `vf-eval` has them under `--env`.

    The agents run in the subprocess runtime unless `args` say otherwise, because verifiers' own default is a paid
    service. An agent that is a plain chat loop runs inside of this process, see `chat.py`.
    """
    from agentrl_verifiers import chat

    sys.modules[HARNESS] = chat
    raw = {**args, "taskset": {**args.get("taskset", {}), "id": env}}
    kind = env_config_type(env, str(raw.get("id") or ""))
    for role, default in _roles(kind):
        seat = dict(raw.get(role) or {})
        pinned = default.harness.id if default.harness is not None else default_harness_id(env)
        if "harness" not in seat and pinned in _WITHOUT_PROCESS:
            seat["harness"] = {"id": HARNESS}
        if "runtime" not in default.model_fields_set:
            seat.setdefault("runtime", {"type": "subprocess"})
        raw[role] = seat
    return load_environment(kind.model_validate(raw))


def task_of(env: Env[EnvConfig], row: Mapping[str, Any]) -> Task:
    """Return the task whose data `rows` has written."""
    kind = type(env.taskset).task_type()
    return kind(kind.data_type().model_validate(row), env.taskset.config.task)


def rows(env: Env[EnvConfig], *, first: int, size: int | None) -> Iterator[dict[str, Any]]:
    """Yield the data of the environment's tasks from position `first` on, as JSON values."""
    if size is None and not env.taskset.bounded:
        raise ValueError(f"the tasks of '{env.config.taskset.id}' never end; set size")
    tasks = env.taskset.skip(first)
    for task in tasks if size is None else tasks.take(size):
        yield task.data.model_dump(mode="json")


def _roles(kind: type[EnvConfig]) -> Iterator[tuple[str, AgentConfig]]:
    for name, field in kind.model_fields.items():
        if isinstance(field.default, AgentConfig):
            yield name, field.default
