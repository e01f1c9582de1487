"""Load the plugin packages that `discovery` finds, each on its own, so that one fault stops one package; call hooks.

One pass over the metadata of all distributions finds two kinds of entry points. The group `agentrl` names light modules
with hook implementations, which are imported here one by one. The groups `agentrl.<kind>` name single components, which
are imported on use. A fault of a package is stored with that package and stops only its own use.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Literal

import pluggy

from agentrl_core.config.nearest import did_you_mean
from agentrl_core.errors import AgentRLError, PluginError, RunError
from agentrl_core.plugins import hookspecs
from agentrl_core.plugins.discovery import CORE, GROUP, Distribution, block_rule, core_version, find_distributions
from agentrl_core.plugins.kinds import KINDS
from agentrl_core.plugins.references import one_line
from agentrl_core.plugins.registry import Entry, Package, Registry

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
"""Names of components."""
_LAZY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""Location of a component: `module:attr`."""
_UNKNOWN_ARGUMENTS = re.compile(r"Argument\(s\) {(.+)} are declared in the hookimpl")
"""Part of pluggy's message about arguments that a hook does not have."""


def load_registry(
    block: Collection[str] = (),
    *,
    on_error: Literal["stop", "warn"] = "stop",
    environ: Mapping[str, str] = os.environ,
) -> Registry:
    """Discover the installed packages and let each register its components.

    `block` names distributions to leave out, as do `AGENTRL_BLOCK_PLUGINS=a,b` and, by naming the only ones to load,
    `AGENTRL_LOAD_PLUGINS=a,b` (empty: none); core always loads. `AGENTRL_TRACE_PLUGINS=1` prints hook calls to stderr.
    `on_error` decides whether a lifecycle hook that raises stops the run.
    """
    manager = PluginManager(on_error=on_error, trace=environ.get("AGENTRL_TRACE_PLUGINS", "") not in ("", "0"))
    blocked_by = block_rule(block, environ)
    for item in find_distributions():
        manager.add(item, blocked_by=blocked_by(item))
    return Registry(sorted(manager.packages, key=lambda package: package.distribution), manager)


class PluginManager(pluggy.PluginManager):
    """Registers packages one by one, and calls each implementation of a hook separately.

    pluggy's own `hook.name(…)` stops at the first implementation that raises, and does not say which one it was.
    """

    def __init__(self, *, on_error: Literal["stop", "warn"] = "stop", trace: bool = False) -> None:
        super().__init__(GROUP)
        self.add_hookspecs(hookspecs)
        # pluggy reads specifications from the attributes of an object, and kinds may be added while a program runs.
        self.add_hookspecs(type("Kinds", (), {f"register_{name}": kind.hook for name, kind in KINDS.items()}))
        self.packages: list[Package] = []
        self._owners: dict[str, Package] = {}
        self._on_error, self._trace = on_error, trace

    def add(self, item: Distribution, *, blocked_by: str = "") -> Package:
        """Load a distribution: import its hook modules, and list its direct entry points."""
        package = self.add_package(item.name, item.version, item.requires)
        if blocked_by:
            package.status, package.reason = "blocked", blocked_by
        for point in item.entry_points:
            try:
                if point.group != GROUP:
                    self._add_direct(package, point)
                elif not blocked_by:
                    self.add_module(package, point.load(), point.name)
            except (Exception, SystemExit) as error:  # noqa: BLE001  # any failure is recorded with its package
                package.fail(error)
        return package

    def add_package(self, distribution: str, version: str, requires: str = "") -> Package:
        """Add a package without components."""
        package = Package(distribution=distribution, version=version, requires=requires)
        self.packages.append(package)
        return package

    def add_module(self, package: Package, plugin: object, name: str) -> None:
        """Register one module, class or object of a package that has hook implementations.

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

    def adapt_agent(
        self,
        agent: object,
        options: Mapping[str, Any],
        factory: Callable[[], object] | None = None,
        base_dir: Path | None = None,
    ) -> Any:
        """Return the first workflow that a package makes of `agent`; None if no package knows it.

        An `AgentRLError` of an adapter passes unchanged; any other exception becomes a `PluginError` that names the
        package.
        """
        arguments = {"agent": agent, "options": options, "factory": factory, "base_dir": base_dir}
        return self._first_result("adapt_agent", arguments)

    def serve_tools(self, tools: object, *, host: str, port: int | None) -> Any:
        """Return the coroutine of the first package that serves tools; None if no package does."""
        return self._first_result("serve_tools", {"tools": tools, "host": host, "port": port})

    def _first_result(self, hook_name: str, arguments: Mapping[str, object]) -> Any:
        for implementation in self._calling_order(hook_name):
            try:
                result = self._call(implementation, hook_name, arguments)
            except AgentRLError:
                raise
            except Exception as error:
                raise PluginError(self._blame(implementation, hook_name, error)) from error
            if result is not None:
                return result
        return None

    def notify(self, hook_name: str, **arguments: object) -> None:
        """Call a lifecycle hook of every package.

        An `AgentRLError` that a hook raises is meant to stop the run, and does. Any other exception stops it as a
        `RunError` that names the package; with `on_error="warn"` it is logged, and the other packages are still called.
        """
        for implementation in self._calling_order(hook_name):
            try:
                self._call(implementation, hook_name, arguments)
            except AgentRLError:
                raise
            except Exception as error:
                blame = self._blame(implementation, hook_name, error)
                if self._on_error == "stop":
                    raise RunError(blame) from error
                logger.warning("%s", blame, exc_info=True)

    def _add_direct(self, package: Package, point: EntryPoint) -> None:
        kind = point.group.removeprefix(f"{GROUP}.")
        if kind in KINDS:
            registrar(package, kind)(point.name, point.value)
        else:
            hint = did_you_mean(kind, KINDS)
            package.notes.append(
                f"entry-point group '{point.group}': there is no kind '{kind}'{hint}; '{point.name}' is ignored"
            )

    def _note_near_misses(self, package: Package, plugin: object) -> None:
        """Note functions that look like hook implementations but are none."""
        hooks = [name for name, caller in vars(self.hook).items() if caller.has_spec()]
        own_module = getattr(plugin, "__name__", "")
        for name in dir(plugin):
            options = self.parse_hookimpl_opts(plugin, name)
            called = (options.get("specname") or name) if options else name
            if options and called not in hooks and not options.get("optionalhook"):
                package.notes.append(f"no hook is called '{called}'{did_you_mean(called, hooks)}; it is never called")
            elif not options and name in hooks and getattr(getattr(plugin, name), "__module__", "") == own_module:
                package.notes.append(f"'{name}' lacks @hookimpl; it is never called")

    def _implementations(self, plugin_name: str) -> Iterator[tuple[str, pluggy.HookImpl]]:
        """Yield the implementations of one plugin, each with the name of its hook."""
        for caller in vars(self.hook).values():
            if caller.has_spec():
                for implementation in caller.get_hookimpls():
                    if implementation.plugin_name == plugin_name:
                        yield caller.name, implementation

    def _calling_order(self, hook_name: str) -> Iterator[pluggy.HookImpl]:
        """Yield the implementations of one hook by packages that loaded, in pluggy's calling order."""
        # pluggy lists implementations in the order of registration, and calls the last one first.
        for implementation in reversed(getattr(self.hook, hook_name).get_hookimpls()):
            if self._owners[implementation.plugin_name].status == "ok":
                yield implementation

    def _blame(self, implementation: pluggy.HookImpl, hook_name: str, error: Exception) -> str:
        package = self._owners[implementation.plugin_name]
        return f"{hook_name} of {package.distribution} {package.version} raised {one_line(error)}"

    def _call(self, implementation: pluggy.HookImpl, hook_name: str, arguments: Mapping[str, object]) -> Any:
        given = [arguments[name] for name in implementation.argnames]
        if self._trace:
            shown = ", ".join(f"{name}={arguments[name]!r:.80}" for name in implementation.argnames)
            print(f"{implementation.plugin_name} {hook_name}({shown})", file=sys.stderr)  # noqa: T201  # asked for
        return implementation.function(*given)


def registrar(package: Package, kind: str) -> hookspecs.Register[Any]:
    """Return the `register` callable of one package and kind."""
    singular = KINDS[kind].singular

    def register(name: str, obj: object, *, summary: str = "") -> None:
        if not _NAME.fullmatch(name):
            raise PluginError(f"{singular} '{name}': a name is lower-case letters, digits, '_' and '-'")
        if isinstance(obj, str) and not _LAZY.fullmatch(obj):
            raise PluginError(f"{singular} '{name}': '{obj}' is not of the form module:attr")
        if any((entry.kind, entry.name) == (kind, name) for entry in package.entries):
            raise PluginError(f"{singular} '{name}' is registered twice")
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
    """Return pluggy's message in the user's terms: an unknown argument means a hook of a later version."""
    # pluggy gives the names only in its text. If the wording changes, its own message is shown.
    unknown = _UNKNOWN_ARGUMENTS.search(str(error))
    hook = re.search(r"for hook '(\w+)'", str(error))
    if unknown is None or hook is None:
        return " ".join(str(error).split())
    names = sorted(re.findall(r"'\w+'", unknown[1]))
    arguments = f"{'argument' if len(names) == 1 else 'arguments'} {', '.join(names)}"
    declared = f"it declares {CORE}{package.requires}" if package.requires else f"it declares no range of {CORE}"
    return f"written for a newer {CORE} (uses {arguments} of {hook[1]}); have {core_version()}, {declared}"
