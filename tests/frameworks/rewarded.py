"""A framework's agent that gives its reward in one of the forms that a workflow may return."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path


class Rewarded:
    """Runs `agent`, "pkg.math_agent.MathAgent"; of its reward it makes the form that the row names.

    `folder` is that of the agent's package, where it is not installed in this interpreter.
    """

    def __init__(self, *, agent: str, folder: str = "") -> None:
        module, _, name = agent.rpartition(".")
        package = module.partition(".")[0]
        if folder:
            spec = importlib.util.spec_from_file_location(
                package, Path(folder) / "__init__.py", submodule_search_locations=[folder]
            )
            sys.modules[package] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[package])
        self.agent = getattr(importlib.import_module(module), name)()

    async def run(self, data, **extra_kwargs):
        reward = self.agent.run(data, **extra_kwargs)
        if inspect.isawaitable(reward):
            reward = await reward
        return {"float": reward, "dict": {0: reward}, "none": None}[data["form"]]
