"""What the metadata of the installed distributions says about plugging in; nothing is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version

import attrs

CORE = "agentrl-core"
GROUP = "agentrl"
"""Entry-point group of hook modules; `agentrl.<kind>` are those of single components."""

_CORE_REQUIREMENT = re.compile(r"agentrl[-_.]core(?![\w.-])\s*(?:\[[^]]*])?\s*\(?([^;)]*)", re.IGNORECASE)


@attrs.frozen(kw_only=True)
class Distribution:
    """What the metadata of one distribution says about plugging in."""

    name: str
    version: str
    requires: str
    """The range of agentrl-core that it declares; empty for none."""
    entry_points: Collection[EntryPoint]

    @property
    def is_core(self) -> bool:
        """Whether this is agentrl-core, which cannot be blocked."""
        return canonical(self.name) == CORE


def canonical(distribution: str) -> str:
    """Return a distribution's name in the spelling by which package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution.strip()).lower()


def core_version() -> str:
    """Return the installed version of agentrl-core; "unknown" for a checkout that is not installed."""
    try:
        return version(CORE)
    except PackageNotFoundError:
        return "unknown"


def find_distributions() -> list[Distribution]:
    """Return the distributions that declare entry points of agentrl, by name, core among them."""
    points: dict[str, list[EntryPoint]] = {}
    found = entry_points()
    for group in sorted(found.groups):  # a set, whose order changes from process to process
        if group == GROUP or group.startswith(f"{GROUP}."):
            for point in found.select(group=group):
                points.setdefault(_distribution_name(point), []).append(point)
    return _with_core([_distribution(name, points[name]) for name in sorted(points)])


def declared_commands(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the commands that packages declare under `agentrl.commands`, each with its package."""
    blocked_by = block_rule((), environ)
    return {
        point.name: item.name
        for item in find_distributions()
        for point in item.entry_points
        if point.group == f"{GROUP}.commands" and not blocked_by(item)
    }


def block_rule(block: Collection[str], environ: Mapping[str, str]) -> Callable[[Distribution], str]:
    """Return the function from a distribution to what blocks it, empty for nothing.

    `block` are names from the config; `AGENTRL_BLOCK_PLUGINS=a,b` adds to them, and `AGENTRL_LOAD_PLUGINS=a,b`
    names the only ones to load. Core is never blocked.
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
    # A damaged dist-info folder has no name: the module still tells whose it is.
    return _header(point, "Name") or point.value.partition(":")[0]


def _header(point: EntryPoint, name: str) -> str:
    """A header of the metadata of the point's distribution, empty where it is missing."""
    headers = point.dist.metadata if point.dist else None
    # Asked first: from Python 3.12 on, to read one that is missing is deprecated.
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
    """Make sure that core is there: a checkout on the import path has no metadata, or stale ones."""
    if any(item.is_core and GROUP in {point.group for point in item.entry_points} for item in found):
        return found
    own = EntryPoint(name=CORE, value="agentrl_core.plugins.builtins", group=GROUP)
    core = Distribution(name=CORE, version=core_version(), requires="", entry_points=[own])
    return [core, *(item for item in found if not item.is_core)]
