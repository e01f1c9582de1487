"""Entries of `tools.servers`: the options that every entry may have, apart from those of the server itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.config.validators import Must, positive
from agentrl_core.plugins.options import Where, construct

if TYPE_CHECKING:
    from agentrl_core.config.component import Component

_WORD = re.compile(r"[A-Za-z0-9_-]*")
_word = Must("letters, digits, '_' and '-'", lambda value: _WORD.fullmatch(value) is not None)


@attrs.frozen(kw_only=True)
class CommonOptions:
    """Options that every entry of `tools.servers` may have beside those of its server."""

    name: str = attrs.field(default="", validator=_word)
    """Name in messages, records and traces; empty: `use` with the entry's number."""
    prefix: str = attrs.field(default="", validator=_word)
    """Text before the names of the server's tools, as the model sees them."""
    timeout_s: float | None = attrs.field(default=None, validator=attrs.validators.optional(positive))
    """Longest time in seconds of a call with its retries; None: `tools.timeout_s`."""


_NAMES = frozenset(item.name for item in attrs.fields(CommonOptions))


def common_options(component: Component, index: int, where: Where = "") -> CommonOptions:
    """Return the common options of the entry at `index`, with its name; raises `ConfigError`."""
    given = {key: value for key, value in component.options.items() if key in _NAMES}
    options: CommonOptions = construct(
        CommonOptions, given, name=component.use, where=where or f"tools.servers.{index}", injected={}
    )
    default = f"{re.sub(r'[^A-Za-z0-9_-]+', '_', component.use)}-{index + 1}"
    return attrs.evolve(options, name=options.name or default)


def own_part(component: Component, key: str, where: Where) -> tuple[Component, dict[str, Any]]:
    """Return an entry without the common options, and the arguments that its server gets beside its options.

    `key` is the entry's place in the config, `tools.servers.INDEX`.
    """
    options = common_options(component, int(key.rpartition(".")[2]), where)
    own = {name: value for name, value in component.options.items() if name not in _NAMES}
    return attrs.evolve(component, options=own), {"name": options.name}


def name_clashes(servers: Sequence[Component], where: Callable[[str], str]) -> Iterator[str]:
    """Yield a line for each server whose name another one has."""
    first: dict[str, int] = {}
    for index, component in enumerate(servers):
        name = common_options(component, index).name
        if name in first:
            yield (
                f"{where(f'tools.servers.{index}')}: the name '{name}' is also that of tools.servers.{first[name]}; "
                "give one of the servers another `name`"
            )
        first.setdefault(name, index)
