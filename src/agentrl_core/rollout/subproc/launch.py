"""Plan the start of agent workers: find the interpreter, its environment, and how the workflow gets to it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import multiprocessing.spawn
import os
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

import agentrl_core
from agentrl_core.concurrency.secrecy import environment
from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError, PluginError
from agentrl_core.plugins.options import place
from agentrl_core.plugins.references import is_reference, user_folders
from agentrl_core.rollout.subproc.inside import start as start_script
from agentrl_core.rollout.subproc.pickling import find_obstacle

if TYPE_CHECKING:
    from agentrl_core.config.sampling_sections import AgentConfig
    from agentrl_core.plugins.options import Where
    from agentrl_core.plugins.registry import Registry

INSIDE = "AGENTRL_SUBPROC_WORKER"
"""Variable that is set in workers: a training script that is imported there must not train again."""
EPISODE_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
"""Environment variables that a worker sets for each episode."""
_FOREIGN = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
"""Variables that would make another interpreter import this one's packages."""


@attrs.frozen(kw_only=True)
class Launch:
    """Everything needed to start a worker; used for each of them."""

    interpreter: str
    own: bool
    """True if the worker runs on this very interpreter."""
    environ: Mapping[str, str] = attrs.field(repr=False)
    start: Mapping[str, Any]
    """The first message to the worker; see `inside.foreign_workflow` for another interpreter."""
    payload: bytes = attrs.field(repr=False)
    memory_mb: int | None
    limit_s: float
    """Longest time until the workflow must be ready."""
    where: str
    """Beginning of each message about the workflow."""

    def pack(self, data: Mapping[str, Any]) -> bytes:
        """Return a task's data as bytes: pickle for this interpreter, JSON for another.

        Raises `TypeError` that names the part that cannot be sent.
        """
        try:
            return pickle.dumps(data, protocol=pickle.HIGHEST_PROTOCOL) if self.own else json.dumps(data).encode()
        except Exception as error:
            obstacle = find_obstacle(data, "data") if self.own else error
            raise TypeError(f"the task's data cannot be sent to the agent's process: {obstacle}") from error


def plan(
    workflow: object,
    *,
    registry: Registry,
    base_dir: Path,
    where: Where,
    agent: AgentConfig,
    agent_where: Callable[[str], str],
    limit_s: float,
    block: Collection[str],
) -> Launch:
    """Return how to start workers for a workflow; raises `UsageError` for faults that show without starting one."""
    options = workflow.options if isinstance(workflow, Component) else {}
    start: dict[str, Any] = {
        "own": agent.python is None,
        "places": {"": place(where), **{option: place(where, option) for option in options}},
    }
    payload = b""
    environ = environment()
    if agent.python is None:
        payload = _pickled(workflow, block, place(where))
        start |= _own_start(payload, base_dir, place(where))
    else:
        # This interpreter's folders hold packages that were built for it.
        environ = {name: text for name, text in environ.items() if name not in _FOREIGN}
        start |= _foreign_start(_named(workflow, place(where)), registry, base_dir, where)
    return Launch(
        interpreter=sys.executable if agent.python is None else find_interpreter(agent.python, base_dir, agent_where),
        own=agent.python is None,
        environ=environ | dict(agent.env) | {INSIDE: "1"},
        start=start,
        payload=payload,
        memory_mb=agent.subproc_max_memory_mb,
        limit_s=limit_s,
        where=place(where),
    )


def find_interpreter(text: str, base_dir: Path, where: Callable[[str], str]) -> str:
    """Return the path of an executable Python; links are kept, because a venv's interpreter is one."""
    found = Path(shutil.which(text) or text) if os.sep not in text else base_dir / Path(text).expanduser()
    path = Path(os.path.abspath(found))  # noqa: PTH100 - `resolve` would follow the link
    if path.is_dir():
        inside = path / "bin" / "python"
        hint = f"; did you mean {inside}?" if inside.exists() else ""
        raise ConfigError(f"{where('python')}: {path} is a folder; expected a Python interpreter{hint}")
    if not path.is_file():
        raise ConfigError(f"{where('python')}: there is no interpreter {path}; create it with python -m venv")
    if not os.access(path, os.X_OK):
        raise ConfigError(f"{where('python')}: {path} cannot be executed; expected a Python interpreter")
    return str(path)


def _pickled(workflow: object, block: Collection[str], where: str) -> bytes:
    try:
        return pickle.dumps((workflow, tuple(block)), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        name = getattr(workflow, "__qualname__", None) or type(workflow).__qualname__
        obstacle = find_obstacle(workflow, name) or error
        if "<locals>" in name or "<lambda>" in name:
            advice = "move it to the top of a module, or use rollout.agent.mode: inline"
        else:
            advice = "build it in `run`, or name the class in the config (`workflow: my_module.MyAgent`)"
        raise ConfigError(
            f"{where}: {obstacle}. With rollout.agent.mode subproc the workflow is sent to other processes; {advice}"
        ) from error


def _own_start(payload: bytes, base_dir: Path, where: str) -> dict[str, Any]:
    main = None
    # The workflow is defined in the script that was started: the worker imports that script under another name first,
    # as multiprocessing's spawn does.
    if b"__main__" in payload:
        data: dict[str, Any] = multiprocessing.spawn.get_preparation_data("agentrl-worker")
        main = {key: value for key, value in data.items() if key.startswith("init_main_from")}
        if not main:
            raise ConfigError(
                f"{where}: the workflow is defined in an interactive session, which other processes cannot import; "
                "write it to a file, and name it: `workflow: my_agent.py:MyAgent`"
            )
    return {
        "main": main,
        "base_dir": str(base_dir),
        "sys_path": [entry or str(Path.cwd()) for entry in sys.path],
        "skip": [str(Path(agentrl_core.__file__).parent)],
    }


def _named(workflow: object, where: str) -> Component:
    """Return the workflow as a name that another interpreter can look up."""
    if isinstance(workflow, Component):
        return workflow
    module, name = getattr(workflow, "__module__", None), getattr(workflow, "__qualname__", "<>")
    if module is None or module == "__main__" or "<" in name:
        raise ConfigError(
            f"{where}: {type(workflow).__qualname__} cannot be sent to another interpreter (rollout.agent.python); "
            "name it in the config: `workflow: my_agent.py:MyAgent`"
        )
    return Component(f"{module}:{name}")


def _foreign_start(component: Component, registry: Registry, base_dir: Path, where: Where) -> dict[str, Any]:
    try:
        json.dumps(dict(component.options))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{place(where)}: the workflow's options cannot be sent to another interpreter: {error}"
        ) from error
    use = component.use
    if not is_reference(use):
        use = registry.find("workflows", use, base_dir=base_dir, where=where).path
    folders = user_folders(base_dir)
    module = use.partition(":")[0]
    top = "" if module.endswith(".py") else module.partition(".")[0]
    adapters = [
        (package, folder, path) for path in _worker_adapters(registry) if (folder := _home(package := _top(path)))
    ]
    # The interpreter finds the user's own files and its standard library by itself: it needs no folder for them.
    home = "" if not top or _is_in(top, folders) or top in sys.stdlib_module_names else _home(top)
    return {
        "use": use,
        "options": dict(component.options),
        "folders": [str(folder) for folder in folders],
        "packages": ({top: home} if home else {}) | _required_homes([package for package, _, _ in adapters] + [top]),
        "adapters": adapters,
        "sys_path": None,
        "skip": [folder for _, folder, _ in adapters] + ([home] if home else []),
    }


def _required_homes(packages: Iterable[str]) -> dict[str, str]:
    """Return the packages that packages of agentrl require of their siblings, with their folders.

    An interpreter that has no agentrl has none of them either, so they go there too. Never core: a worker must not
    import it.
    """
    required: list[str] = []
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):  # a module of the user's own
            required += importlib.metadata.requires(package.replace("_", "-")) or ()
    found = (re.match(r"agentrl-(?!core\b)[\w-]+", item) for item in required)
    names = [match[0].replace("-", "_") for match in found if match]
    return {name: home for name in names if (home := _home(name))}


def _worker_adapters(registry: Registry) -> list[str]:
    paths = []
    for entry in registry.entries("worker_adapters"):
        if not isinstance(entry.value, str):
            raise PluginError(
                f"worker adapter '{entry.name}' of {entry.distribution} {entry.version} is an object; expected "
                'its path "module:attr", because another interpreter has to import it'
            )
        paths.append(entry.value)
    return paths


def _top(path: str) -> str:
    return path.partition(":")[0].partition(".")[0]


def _home(package: str) -> str:
    """Return the folder of a package, or the file of a module, without importing it; empty if there is none."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return ""
    if spec.submodule_search_locations:
        return str(Path(next(iter(spec.submodule_search_locations))))
    return spec.origin if spec.origin and spec.origin.endswith(".py") else ""


def _is_in(top: str, folders: Sequence[Path]) -> bool:
    return any((folder / top).is_dir() or (folder / f"{top}.py").is_file() for folder in folders)


WORKER = start_script.__file__
"""Script that the worker's interpreter runs."""
