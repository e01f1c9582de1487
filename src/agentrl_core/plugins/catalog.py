"""Packages that provide what is not installed: hints for errors, from `catalog.json`.

The file maps kind -> name -> package. It is written from the `[tool.agentrl.provides]` tables of the packages in
`plugins/`, by `python -m tests.plugins.catalog`, so that no code of core has to name a package; `plugins/README.md`
lists the keys of such a table. Packages of others are not in it: of them only what is installed is known.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping
from importlib.resources import files

from agentrl_core.config.invocation import pip_install


def install_hint(kind: str, name: str) -> str:
    """Return the command that installs the package of a component; empty where none is known.

    `kind` is a kind of component, `commands`, or `frameworks` for the top-level module of an agent framework.
    """
    package = providers(kind).get(name)
    return pip_install(package) if package else ""


def default_scorer() -> str:
    """Return the scorer of tasks where neither the task nor the config names one."""
    return next(iter(providers("default_scorer")))


def of_another_interpreter() -> Collection[str]:
    """Return the frameworks that need an interpreter of their own: their dependencies rule out those of others."""
    return providers("of_another_interpreter").keys()


@functools.cache
def providers(kind: str) -> Mapping[str, str]:
    """Return the names of one kind that known packages provide -> the package."""
    catalog: Mapping[str, Mapping[str, str]] = json.loads(
        files("agentrl_core.plugins").joinpath("catalog.json").read_text(encoding="utf-8")
    )
    return catalog.get(kind, {})
