"""Read from package metadata which installed distributions plug into agentrl, without importing any of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version

import attrs

CORE = "agentrl-core"
GROUP = "agentrl"
"""Entry-point group of hook modules, and pluggy's name for the project; `agentrl.<kind>` hold single components."""

_CORE_REQUIREMENT = re.compile(r"agentrl[-_.]core(?![\w.-])\s*(?:\[[^]]*])?\s*\(?([^;)]*)", re.IGNORECASE)
"""A requirement on agentrl-core; the group is its version range."""


@attrs.frozen(kw_only=True)
class Distribution:
    """An installed distribution with entry points for agentrl."""

    name: str
    version: str
    requires: str
    """Range of agentrl-core that it declares; empty for none."""
    entry_points: Collection[EntryPoint]

    @property
    def is_core(self) -> bool:
        """True for agentrl-core itself, which cannot be blocked."""
        return canonical(self.name) == CORE


def canonical(distribution: str) -> str:
    """Return a distribution's name in the normal form by which package indexes compare names."""
    return re.sub(r"[-_.]+", "-", distribution.strip()).lower()


def names_core(ref: str, name: str) -> bool:
    """Return whether `ref`, a name with or without its package, means core's own component `name`."""
    distribution, _, bare = ref.rpartition("/")
    return bare == name and (not distribution or canonical(distribution) == CORE)


def core_version() -> str:
    """Return the installed version of agentrl-core; "unknown" for a checkout that is not installed."""
    try:
        return version(CORE)
    except PackageNotFoundError:
        return "unknown"


def find_distributions() -> list[Distribution]:
    """Return the distributions that declare entry points for agentrl, sorted by name, including core."""
    points: dict[str, list[EntryPoint]] = {}
    found = entry_points()
    # `groups` is a set, whose order changes from process to process.
    for group in sorted(found.groups):
        if group == GROUP or group.startswith(f"{GROUP}."):
            for point in found.select(group=group):
                points.setdefault(_distribution_name(point), []).append(point)
    return _with_core([_distribution(name, points[name]) for name in sorted(points)])


def declared_commands(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return command -> package, for the commands that packages declare under `agentrl.commands`."""
    blocked_by = block_rule((), environ)
    return {
        point.name: item.name
        for item in find_distributions()
        for point in item.entry_points
        if point.group == f"{GROUP}.commands" and not blocked_by(item)
    }


def block_rule(block: Collection[str], environ: Mapping[str, str]) -> Callable[[Distribution], str]:
    """Return `blocked_by(distribution)`: the name of the setting that blocks the distribution, or "".

    `block` has names from the config. `AGENTRL_BLOCK_PLUGINS=a,b` adds to them, and `AGENTRL_LOAD_PLUGINS=a,b` names
    the only ones to load. Core is never blocked.
    """
    configured = {canonical(name) for name in block}
    by_variable = _names(environ.get("AGENTRL_BLOCK_PLUGINS", ""))
    only = _names(environ["AGENTRL_LOAD_PLUGINS"]) if "AGENTRL_LOAD_PLUGINS" in environ else None

    def blocked_by(item: Distribution) -> str:
        name = canonical(item.name)
        if item.is_core:
            return ""
        if name in by_variable:
            return "AGENTRL_BLOCK_PLUGINS"
        if only is not None and name not in only:
            return "AGENTRL_LOAD_PLUGINS"
        return "plugins.block" if name in configured else ""

    return blocked_by


def _names(text: str) -> set[str]:
    return {canonical(name) for name in text.split(",") if name.strip()}


def _distribution_name(point: EntryPoint) -> str:
    # A damaged dist-info folder has no name. The module's name still shows which package it is.
    return _header(point, "Name") or point.value.partition(":")[0]


def _header(point: EntryPoint, name: str) -> str:
    """Return a metadata header of the point's distribution; empty if it is missing."""
    headers = point.dist.metadata if point.dist else None
    # Tested first: since Python 3.12, reading a missing header is deprecated.
    return headers[name] if headers is not None and name in headers else ""


def _distribution(name: str, points: list[EntryPoint]) -> Distribution:
    dist = points[0].dist
    requirements = (_CORE_REQUIREMENT.match(item) for item in (dist.requires if dist else None) or ())
    ranges = [match[1].strip() for match in requirements if match]
    return Distribution(
        name=name,
        version=_header(points[0], "Version") or "unknown",
        requires=ranges[0] if ranges else "",
        entry_points=points,
    )


def _with_core(found: list[Distribution]) -> list[Distribution]:
    """Add core if it is missing: a checkout on the import path has no metadata, or outdated metadata."""
    if any(item.is_core and GROUP in {point.group for point in item.entry_points} for item in found):
        return found
    own = EntryPoint(name=CORE, value="agentrl_core.plugins.builtins", group=GROUP)
    core = Distribution(name=CORE, version=core_version(), requires="", entry_points=[own])
    return [core, *(item for item in found if not item.is_core)]
