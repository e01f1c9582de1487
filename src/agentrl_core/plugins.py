"""Find the installed packages that plug in, load them apart from each other, and call their hooks.

One pass over the metadata of all distributions finds two doors: the group `agentrl` names light modules with hook
implementations, imported here one by one; the groups `agentrl.<kind>` name single components, imported on use.
What a package does wrong is kept with it and stops nothing but its own use.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any, Literal

import attrs
import pluggy

from agentrl_core import hookspecs
from agentrl_core.errors import AgentRLError, PluginError, RunError
from agentrl_core.nearest import did_you_mean
from agentrl_core.references import one_line
from agentrl_core.registry import KINDS, Entry, Package, Registry, canonical

logger = logging.getLogger(__name__)

CORE = "agentrl-core"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_LAZY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_CORE_REQUIREMENT = re.compile(r"agentrl[-_.]core\s*(?:\[[^]]*])?\s*\(?([^;)]*)", re.IGNORECASE)
_UNKNOWN_ARGUMENTS = re.compile(r"Argument\(s\) {(.+)} are declared in the hookimpl")


def load_registry(
    block: Collection[str] = (),
    *,
    on_error: Literal["stop", "warn"] = "stop",
    environ: Mapping[str, str] = os.environ,
) -> Registry:
    """Discover the installed packages and let each register what it has.

    `block` names distributions that are left out, as do `AGENTRL_BLOCK_PLUGINS=a,b` and, by naming the only ones
    to load, `AGENTRL_LOAD_PLUGINS=a,b` (empty: none); core always loads. `AGENTRL_TRACE_PLUGINS=1` prints hook
    calls to stderr. `on_error` decides what a lifecycle hook that raises does to the run.
    """
    manager = PluginManager(on_error=on_error, trace=environ.get("AGENTRL_TRACE_PLUGINS", "") not in ("", "0"))
    blocked = _block_rule(block, environ)
    for item in _with_core(find_distributions()):
        manager.add(item, blocked_by="" if item.is_core else blocked(canonical(item.name)))
    return Registry(sorted(manager.packages, key=lambda package: package.distribution), manager)


def declared_commands(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Commands that packages declare under `agentrl.commands` -> the package; from metadata, importing nothing."""
    blocked = _block_rule((), environ)
    return {
        point.name: item.name
        for item in find_distributions()
        for point in item.entry_points
        if point.group == f"{hookspecs.PROJECT}.commands" and not blocked(canonical(item.name))
    }


def _with_core(found: list[Distribution]) -> list[Distribution]:
    """Make sure that core is there: a checkout on the import path has no metadata, or stale ones."""
    if any(item.is_core and item.has_hooks for item in found):
        return found
    own = EntryPoint(name=CORE, value="agentrl_core.builtins", group=hookspecs.PROJECT)
    core = Distribution(name=CORE, version=core_version(), requires="", entry_points=[own])
    return [core, *(item for item in found if not item.is_core)]


def core_version() -> str:
    """The installed version of agentrl-core; "unknown" for a checkout that is not installed."""
    try:
        return version(CORE)
    except PackageNotFoundError:
        return "unknown"


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

    @property
    def has_hooks(self) -> bool:
        """Whether it names a hook module."""
        return any(point.group == hookspecs.PROJECT for point in self.entry_points)


def find_distributions() -> list[Distribution]:
    """The distributions that declare entry points of agentrl, from metadata alone, by name."""
    points: dict[str, list[EntryPoint]] = {}
    found = entry_points()
    for group in found.groups:
        if group == hookspecs.PROJECT or group.startswith(f"{hookspecs.PROJECT}."):
            for point in found.select(group=group):
                points.setdefault(_distribution_name(point), []).append(point)
    return [_distribution(name, points[name]) for name in sorted(points)]


def _distribution_name(point: EntryPoint) -> str:
    # A damaged dist-info folder has no name: the module still tells whose it is.
    return (point.dist.name if point.dist else None) or point.value.partition(":")[0]


def _distribution(name: str, points: list[EntryPoint]) -> Distribution:
    dist = points[0].dist
    requirements = (_CORE_REQUIREMENT.match(item) for item in (dist.requires if dist else None) or ())
    ranges = [match[1].strip() for match in requirements if match]
    return Distribution(
        name=name,
        version=(dist.version if dist else None) or "unknown",
        requires=ranges[0] if ranges else "",
        entry_points=points,
    )


def _block_rule(block: Collection[str], environ: Mapping[str, str]) -> Callable[[str], str]:
    """From a distribution's canonical name to what blocks it; empty for nothing."""
    configured = {canonical(name) for name in block}
    by_variable = _names(environ.get("AGENTRL_BLOCK_PLUGINS", ""))
    only = _names(environ["AGENTRL_LOAD_PLUGINS"]) if "AGENTRL_LOAD_PLUGINS" in environ else None

    def blocked_by(name: str) -> str:
        if name in by_variable:
            return "AGENTRL_BLOCK_PLUGINS"
        if only is not None and name not in only:
            return "AGENTRL_LOAD_PLUGINS"
        return "plugins.block" if name in configured else ""

    return blocked_by


def _names(text: str) -> set[str]:
    return {canonical(name) for name in text.split(",") if name.strip()}


class PluginManager(pluggy.PluginManager):
    """Registers packages one by one and calls hooks implementation by implementation.

    pluggy's own `hook.name(…)` ends at the first implementation that raises and does not tell whose it was.
    """

    def __init__(self, *, on_error: Literal["stop", "warn"] = "stop", trace: bool = False) -> None:
        super().__init__(hookspecs.PROJECT)
        self.add_hookspecs(hookspecs)
        self.packages: list[Package] = []
        self._owners: dict[str, Package] = {}
        self._on_error, self._trace = on_error, trace

    def add(self, item: Distribution, *, blocked_by: str = "") -> Package:
        """Load a distribution: import its hook modules, and take note of its direct entry points."""
        package = Package(distribution=item.name, version=item.version, requires=item.requires)
        self.packages.append(package)
        if blocked_by:
            package.status, package.reason = "blocked", blocked_by
        for point in item.entry_points:
            try:
                if point.group != hookspecs.PROJECT:
                    self._add_direct(package, point)
                elif not blocked_by:
                    self.add_module(package, point.load(), point.name)
            except (Exception, SystemExit) as error:
                package.fail(error)
        return package

    def add_module(self, package: Package, plugin: object, name: str) -> None:
        """Register one module, class or object of a package that carries hook implementations.

        Raises what the implementations raise, and `PluginError` for those that fit no hook.
        """
        self._note_near_misses(package, plugin)
        unique = f"{package.distribution}:{name}"
        try:
            self.register(plugin, unique)
        except pluggy.PluginValidationError as error:
            raise PluginError(_explain(error, package)) from error
        self._owners[unique] = package
        for hook_name, implementation in self._implementations(unique):
            if implementation.wrapper or implementation.hookwrapper:
                raise PluginError(
                    f"{hook_name} is a hook wrapper, which agentrl does not call; write a plain @hookimpl"
                )
            kind = hook_name.removeprefix("register_")
            if kind in KINDS:
                self._call(implementation, hook_name, {"register": registrar(package, kind)})
            else:
                package.hooks.append(hook_name)

    def adapt_agent(self, agent: object, options: Mapping[str, Any]) -> Any:
        """The first workflow that a package makes of `agent`; None if no package knows it."""
        for implementation in self._calling_order("adapt_agent"):
            workflow = self._call_named(implementation, "adapt_agent", {"agent": agent, "options": options})
            if workflow is not None:
                return workflow
        return None

    def notify(self, hook_name: str, **arguments: object) -> None:
        """Call a lifecycle hook of every package.

        One that raises stops the run: an `AgentRLError` as it is, anything else as `RunError` naming the package;
        with `on_error="warn"` it is logged and the others are still called.
        """
        for implementation in self._calling_order(hook_name):
            try:
                self._call_named(implementation, hook_name, arguments)
            except AgentRLError:
                if self._on_error == "stop":
                    raise
                logger.warning("%s raised", hook_name, exc_info=True)

    def _add_direct(self, package: Package, point: EntryPoint) -> None:
        kind = point.group.removeprefix(f"{hookspecs.PROJECT}.")
        if kind in KINDS:
            registrar(package, kind)(point.name, point.value)
        else:
            hint = did_you_mean(point.group, [f"{hookspecs.PROJECT}.{known}" for known in KINDS])
            package.notes.append(
                f"entry-point group '{point.group}' is of no known kind{hint}; '{point.name}' is left out"
            )

    def _note_near_misses(self, package: Package, plugin: object) -> None:
        """Take note of functions that look like hook implementations and are none."""
        hooks = [name for name in vars(hookspecs) if self.parse_hookspec_opts(hookspecs, name) is not None]
        own_module = getattr(plugin, "__name__", "")
        for name in dir(plugin):
            options = self.parse_hookimpl_opts(plugin, name)
            called = (options.get("specname") or name) if options else name
            if options and called not in hooks and not options.get("optionalhook"):
                package.notes.append(f"no hook is called '{called}'{did_you_mean(called, hooks)}; it is never called")
            elif not options and name in hooks and getattr(getattr(plugin, name), "__module__", "") == own_module:
                package.notes.append(f"'{name}' lacks @hookimpl; it is never called")

    def _implementations(self, plugin_name: str) -> Iterator[tuple[str, pluggy.HookImpl]]:
        """The implementations of one plugin that have a hook, in the order in which hooks are declared."""
        for caller in vars(self.hook).values():
            if caller.has_spec():
                for implementation in caller.get_hookimpls():
                    if implementation.plugin_name == plugin_name:
                        yield caller.name, implementation

    def _calling_order(self, hook_name: str) -> Iterator[pluggy.HookImpl]:
        """The implementations of one hook by packages that loaded, as pluggy would call them."""
        for implementation in reversed(getattr(self.hook, hook_name).get_hookimpls()):
            if self._owners[implementation.plugin_name].status == "ok":
                yield implementation

    def _call_named(self, implementation: pluggy.HookImpl, hook_name: str, arguments: Mapping[str, object]) -> Any:
        """Call one implementation; say whose it was when it raises."""
        try:
            return self._call(implementation, hook_name, arguments)
        except AgentRLError:
            raise
        except Exception as error:
            package = self._owners[implementation.plugin_name]
            raise RunError(
                f"{hook_name} of {package.distribution} {package.version} raised {one_line(error)}"
            ) from error

    def _call(self, implementation: pluggy.HookImpl, hook_name: str, arguments: Mapping[str, object]) -> Any:
        given = [arguments[name] for name in implementation.argnames]
        if self._trace:
            shown = ", ".join(f"{name}={arguments[name]!r:.80}" for name in implementation.argnames)
            print(f"{implementation.plugin_name} {hook_name}({shown})", file=sys.stderr)  # noqa: T201  # asked for
        return implementation.function(*given)


def registrar(package: Package, kind: str) -> hookspecs.Register[Any]:
    """The `register` callable of one package and kind."""

    def register(name: str, obj: object, *, summary: str = "") -> None:
        if not _NAME.fullmatch(name):
            raise PluginError(f"{KINDS[kind]} '{name}': a name is lower-case letters, digits, '_' and '-'")
        if isinstance(obj, str) and not _LAZY.fullmatch(obj):
            raise PluginError(f"{KINDS[kind]} '{name}': '{obj}' is not of the form module:attr")
        if any((entry.kind, entry.name) == (kind, name) for entry in package.entries):
            raise PluginError(f"{KINDS[kind]} '{name}' is registered twice")
        package.entries.append(
            Entry(
                kind=kind,
                name=name,
                distribution=package.distribution,
                version=package.version,
                value=obj,
                summary=summary,
            )
        )

    register.__qualname__ = f"register_{kind}"
    return register


def _explain(error: pluggy.PluginValidationError, package: Package) -> str:
    """pluggy's message in the user's terms: an unknown argument means a hook of a later version."""
    unknown = _UNKNOWN_ARGUMENTS.search(str(error))
    hook = re.search(r"for hook '(\w+)'", str(error))
    if unknown is None or hook is None:
        return " ".join(str(error).split())
    declared = f"it declares {CORE}{package.requires}" if package.requires else f"it declares no range of {CORE}"
    return f"written for a newer {CORE} (uses argument {unknown[1]} of {hook[1]}); have {core_version()}, {declared}"
