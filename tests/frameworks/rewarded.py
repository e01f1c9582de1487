"""Agents of frameworks that return their reward in one of the forms allowed for a workflow."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path


class Rewarded:
    """Runs the agent of `module`, "pkg.math_agent", that the row names; makes the form that it names of the reward.

    `folder` is that of the package, where it is not installed in this interpreter.
    """

    def __init__(self, *, module: str, folder: str = "") -> None:
        package = module.partition(".")[0]
        if folder:
            spec = importlib.util.spec_from_file_location(
                package, Path(folder) / "__init__.py", submodule_search_locations=[folder]
            )
            sys.modules[package] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[package])
        self.agents = importlib.import_module(module)

    async def run(self, data, **extra_kwargs):
        reward = getattr(self.agents, data["agent"])().run(data, **extra_kwargs)
        if inspect.isawaitable(reward):
            reward = await reward
        return {"float": reward, "dict": {0: reward}, "none": None}[data["form"]]
