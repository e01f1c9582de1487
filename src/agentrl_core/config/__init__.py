"""Config files of `run` and `sft`: read YAML and `a.b=c` overrides, and return checked attrs objects.

`load` takes a file and `parse` a mapping; `load_as` and `parse_as` do the same for `SftConfig`; `dump` is the reverse.
All problems of a config are reported together, each with file and line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl_core.config.loading import LoadedConfig, load, load_as, parse, parse_as
    from agentrl_core.config.structure import dump, dump_without_passwords

__all__ = ["LoadedConfig", "dump", "dump_without_passwords", "load", "load_as", "parse", "parse_as"]


def __getattr__(name: str) -> Any:
    """Import on use: the registry needs only the schema, and `agentrl --help` needs neither YAML nor cattrs."""
    if name in ("dump", "dump_without_passwords"):
        from agentrl_core.config import structure

        return getattr(structure, name)
    if name in __all__:
        from agentrl_core.config import loading

        return getattr(loading, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
