"""Warn of unknown environment variables that begin with AGENTRL_: a misspelt one would be ignored silently."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agentrl_core.config.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_KNOWN = ("AGENTRL_ADMIN_KEY", "AGENTRL_BLOCK_PLUGINS", "AGENTRL_LOAD_PLUGINS", "AGENTRL_TRACE_PLUGINS")
_OTHERS = re.compile(r"AGENTRL_SUBPROC_WORKER|AGENTRL_VLLM|AGENTRL_SGLANG|AGENTRL_\w+_PYTHON|AGENTRL_(BENCH|TEST)_\w+")
"""Variables that no user of a run sets: for a run's worker processes, for tests of plugins that bring another Python
interpreter or a server, and for benchmarks."""


def unknown_variables(environment: Iterable[str], named: Collection[str]) -> list[str]:
    """Return one line for each variable that nothing reads; `named` are the variables that the config refers to."""
    return [
        f"the environment variable {name} is unknown and has no effect{did_you_mean(name, _KNOWN)}"
        for name in sorted(environment)
        if name.startswith("AGENTRL_") and name not in {*_KNOWN, *named} and not _OTHERS.fullmatch(name)
    ]


def named_variables(value: object) -> set[str]:
    """Return every AGENTRL_ name that occurs in the texts of a config, given as plain data."""
    if isinstance(value, dict):
        return set().union(*map(named_variables, value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(named_variables, value))
    return set(re.findall(r"AGENTRL_\w+", value)) if isinstance(value, str) else set()
