"""Tools that an episode has: names as the model sees them, each with the server and the session that it calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.config.nearest import did_you_mean
from agentrl_core.tools.schemas import prefixed

if TYPE_CHECKING:
    from agentrl_core.api.tools import ToolMiddleware, ToolServer, ToolSession, ToolSpec
    from agentrl_core.tools.health import Health

_MOST_NAMES = 30
"""Names of tools that a message lists."""


@attrs.frozen(kw_only=True, eq=False)
class NamedServer:
    """A tool server of the run."""

    name: str
    prefix: str
    timeout_s: float
    server: ToolServer
    health: Health


@attrs.frozen(kw_only=True, eq=False)
class NamedMiddleware:
    """A tool middleware of the run."""

    name: str
    """Its `use` in the config."""
    middleware: ToolMiddleware


@attrs.frozen(kw_only=True, eq=False)
class ServerTools:
    """Tools of one server in one episode."""

    server: NamedServer
    session: ToolSession
    specs: Sequence[ToolSpec]
    changes: int = 0
    """`changes` of the session when the tools were listed."""


@attrs.frozen(kw_only=True, eq=False)
class Tool:
    """A tool that can be called."""

    server: NamedServer
    session: ToolSession
    spec: ToolSpec
    """Under its name on the server."""
    shown: ToolSpec
    """Under the name that the model uses."""


@attrs.frozen(kw_only=True, eq=False)
class Listing:
    """All tools of an episode."""

    by_name: dict[str, Tool]
    """Tools by the name that the model uses."""
    offered: tuple[ToolSpec, ...]
    """Tools that the model is offered; middleware may have added or removed some."""

    @property
    def offered_twice(self) -> str:
        """Name that two of the offered tools have, because middleware renamed one; empty if there is none."""
        counts = Counter(spec.name for spec in self.offered)
        return next((name for name, count in counts.items() if count > 1), "")

    def unknown(self, name: str) -> str:
        """Return the message for a name that no tool has."""
        known = sorted(spec.name for spec in self.offered)
        more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
        listed = f"; the tools are: {', '.join(known[:_MOST_NAMES])}{more}" if known else "; there are no tools"
        return f"there is no tool '{name[:100]}'{did_you_mean(name[:100], known)}{listed}"


def list_all(parts: Iterable[ServerTools], middleware: Sequence[NamedMiddleware]) -> Listing:
    """Return the tools of all servers, as middleware offers them; their names must not clash."""
    by_name = {}
    for part in parts:
        for spec in part.specs:
            shown = prefixed(spec, part.server.prefix)
            by_name[shown.name] = Tool(server=part.server, session=part.session, spec=spec, shown=shown)
    offered: Sequence[ToolSpec] = tuple(tool.shown for tool in by_name.values())
    for item in reversed(middleware):
        change: Callable[[Sequence[ToolSpec]], Sequence[ToolSpec]] | Any = getattr(item.middleware, "tools", None)
        if change is not None:
            offered = tuple(change(offered))
    return Listing(by_name=by_name, offered=tuple(offered))


def clash(lists: Iterable[tuple[NamedServer, Sequence[ToolSpec]]]) -> str:
    """Return a message about two servers whose tools have one name; empty if there are none."""
    owners: dict[str, str] = {}
    for server, specs in lists:
        for spec in specs:
            name = server.prefix + spec.name
            if name in owners:
                return (
                    f"the tool servers '{owners[name]}' and '{server.name}' both have a tool '{name}': give one of "
                    "their entries in tools.servers a `prefix`, such as `prefix: other_`"
                )
            owners[name] = server.name
    return ""
