"""Environment variables that begin like agentrl's own and mean nothing: misspelt ones would be ignored in silence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agentrl_core.config.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_KNOWN = ("AGENTRL_ADMIN_KEY", "AGENTRL_BLOCK_PLUGINS", "AGENTRL_LOAD_PLUGINS", "AGENTRL_TRACE_PLUGINS")
_OTHERS = re.compile(r"AGENTRL_SUBPROC_WORKER|AGENTRL_\w+_PYTHON|AGENTRL_BENCH_\w+")
"""Set by a run for its workers; read by the tests of plugins with an interpreter of their own, and by benchmarks."""


def unknown_variables(environment: Iterable[str], named: Collection[str]) -> list[str]:
    """Return a note for each variable that nothing reads; `named` are those that a config names."""
    return [
        f"the environment variable {name} is unknown and changes nothing{did_you_mean(name, _KNOWN)}"
        for name in sorted(environment)
        if name.startswith("AGENTRL_") and name not in {*_KNOWN, *named} and not _OTHERS.fullmatch(name)
    ]


def named_variables(value: object) -> set[str]:
    """Return all texts inside a config, dumped, that could name a variable."""
    if isinstance(value, dict):
        return set().union(*map(named_variables, value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(named_variables, value))
    return set(re.findall(r"AGENTRL_\w+", value)) if isinstance(value, str) else set()
