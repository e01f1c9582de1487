"""Table of all registered components: which package registered a name, and how to import and build it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from agentrl_core.config.invocation import command_line, pip_install
from agentrl_core.config.nearest import did_you_mean
from agentrl_core.errors import PluginError
from agentrl_core.plugins.catalog import providers
from agentrl_core.plugins.discovery import canonical
from agentrl_core.plugins.kinds import KINDS
from agentrl_core.plugins.options import Where, bind, check_together, construct, parameters_of, place
from agentrl_core.plugins.references import Reference, is_reference, one_line, resolve, user_folders

if TYPE_CHECKING:
    from agentrl_core.config.component import Component
    from agentrl_core.plugins.kinds import Kind
    from agentrl_core.plugins.manager import PluginManager


@attrs.frozen(kw_only=True)
class Entry:
    """One registered component."""

    kind: str
    name: str
    distribution: str
    """Package that registered it; empty for an object named by its path."""
    version: str
    value: object
    """The component itself, or its location as "module:attr"."""
    summary: str = ""

    @property
    def path(self) -> str:
        """Location of the component as `module:attr`."""
        if isinstance(self.value, str):
            return self.value
        holder = self.value if hasattr(self.value, "__qualname__") else type(self.value)
        return f"{holder.__module__}:{getattr(holder, '__qualname__', '')}"


@attrs.define(kw_only=True, eq=False)
class Package:
    """An installed distribution that plugs in, and the result of loading it."""

    distribution: str
    version: str
    requires: str = ""
    """Range of agentrl-core that it declares, `>=0.1,<0.2`; empty for none."""
    status: Literal["ok", "error", "blocked"] = "ok"
    reason: str = ""
    """One line: the error, or the setting that blocks the package."""
    error: BaseException | None = None
    entries: list[Entry] = attrs.field(factory=list)
    """Components that it registered; for a blocked package, those that its metadata declares."""
    hooks: list[str] = attrs.field(factory=list)
    """Other hooks that it implements."""
    notes: list[str] = attrs.field(factory=list)
    """Near misses: names that are almost a hook or a kind."""

    def fail(self, error: BaseException, reason: str = "") -> None:
        """Mark the package as broken; the first error counts."""
        if self.error is None:
            self.status, self.error = "error", error
            self.reason = reason or (str(error) if isinstance(error, PluginError) else one_line(error))

    @property
    def trouble(self) -> str:
        """Reason why a package that is not `ok` cannot be used, as a verb phrase."""
        return f"is blocked by {self.reason}" if self.status == "blocked" else f"failed to load: {self.reason}"


PROGRAM = Package(distribution="python", version="")
"""Holds the components that the running program registered itself, by `agentrl_core.register_scorer`."""


class Registry:
    """Components of the installed packages and of the program, and objects that a config names by their path.

    A reference is one of `module:attr`, `file.py:attr`, `pkg.mod.Attr`, `distribution/name` and a bare name. A bare
    name that two packages use is refused. Relative files start from `base_dir`.
    """

    def __init__(self, packages: Iterable[Package], hooks: PluginManager) -> None:
        self.packages: Sequence[Package] = tuple(packages)
        """All packages that were found, sorted by name."""
        self._sources = (*self.packages, PROGRAM)
        self.hooks = hooks
        """Calls `adapt_agent` and the lifecycle hooks of the packages that loaded."""

    @property
    def modules(self) -> set[str]:
        """Top-level modules of the packages: those of their hooks, and those in which they say their components are."""
        hooks = (getattr(plugin, "__module__", None) or plugin.__name__ for plugin in self.hooks.get_plugins())
        components = (
            entry.value for package in self.packages for entry in package.entries if isinstance(entry.value, str)
        )
        return {re.split(r"[.:]", name)[0] for name in (*hooks, *components)}

    def entries(self, kind: str) -> list[Entry]:
        """Return the components of one kind from the packages that loaded, sorted by name."""
        found = (entry for package in self._sources if package.status == "ok" for entry in package.entries)
        return sorted(
            (entry for entry in found if entry.kind == kind), key=lambda entry: (entry.name, entry.distribution)
        )

    def find(self, kind: str, ref: str, *, base_dir: Path | None = None, where: Where = "") -> Entry:
        """Return the component that `ref` names; imports it only if it is named by its path.

        Raises `PluginError` if it is unknown (with the nearest name), ambiguous (with the unambiguous names), or of a
        package that is broken (with the original error) or blocked.
        """
        prefix = _prefix(where)
        if is_reference(ref):
            found = _resolve(ref, user_folders(base_dir), prefix)
            return Entry(kind=kind, name=ref, distribution="", version="", value=found.value)
        distribution, slash, name = ref.rpartition("/")
        if slash and "." in name:  # no component's name has a dot
            stem, _, attr = name.partition(".")
            raise PluginError(
                f"{prefix}'{ref}' is neither the name of a component, as package/name, nor a place in code; if it is a "
                f"file, write {distribution}/{stem}.py:{attr}"
            )
        if slash:
            return self._find_in(self.package(distribution, where=where), kind, name, prefix)
        named = [(package, entry) for package in self._sources for entry in _named(package, kind, name)]
        # A blocked package does not make a name ambiguous. If only blocked ones have the name, the error says which.
        usable = [(package, entry) for package, entry in named if package.status != "blocked"]
        # Never pick one silently: which package wins would depend on the installation.
        if len(usable) > 1:
            raise PluginError(f"{prefix}{_ambiguity([entry for _, entry in usable])}")
        for package, entry in usable or named:
            _refuse_unusable(package, f"{prefix}{KINDS[kind].singular} '{entry.name}'")
            return entry
        raise self._unknown(kind, name, prefix)

    def load(self, kind: str, ref: str, *, base_dir: Path | None = None, where: Where = "") -> Any:
        """Import the component that `ref` names. Raises `PluginError` as `find` does, or if the import fails."""
        entry = self.find(kind, ref, base_dir=base_dir, where=where)
        prefix = _prefix(where)
        value = entry.value
        if isinstance(value, str) and entry.distribution:
            source = f"{KINDS[kind].singular} '{entry.name}' comes from {entry.distribution} {entry.version}"
            value = _resolve(value, (), f"{prefix}{source}, which failed to load: ").value
        if not callable(value) and KINDS[kind].is_callable:
            found = f"{type(value).__name__} {value!r:.60}"
            raise PluginError(f"{prefix}'{ref}' is {found}, which cannot be called as a {KINDS[kind].singular}")
        return value

    def build(
        self, kind: str, component: Component, *, where: Where = "", base_dir: Path | None = None, **arguments: Any
    ) -> Any:
        """Construct a component from its options, and from those of `arguments` that its signature accepts.

        A class becomes an instance; a function gets its keyword-only options bound, and becomes a component by the
        `from_function` of the kind, if it has that. Raises `PluginError` as `load` does and for an object that is no
        component of the kind, and `ConfigError` for the options; messages start with `where`.
        """
        facts = KINDS[kind]
        target, arguments = self._target(facts, component, where, base_dir, arguments)
        where = where or _unplaced(facts, component)
        built = construct(target, component.options, name=component.use, where=where, injected=arguments)
        return _checked(built, facts, component.use, place(where))

    def check(self, kind: str, component: Component, *, where: Where = "", base_dir: Path | None = None) -> None:
        """Raise the errors of `build` that are known without building: of import and options, and a missing method.

        Values that the constructor refuses, and what a function builds, are not known before `build`; except for those
        that a class refuses in its static method `check_options(**options)`, by a `ValueError`.
        """
        facts = KINDS[kind]
        target, arguments = self._target(facts, component, where, base_dir, dict.fromkeys(facts.arguments))
        where = where or _unplaced(facts, component)
        values = bind(target, component.options, name=component.use, where=where, injected=arguments)
        check_together(
            target, {key: values[key] for key in component.options if key in values}, name=component.use, where=where
        )
        if inspect.isclass(target) and not hasattr(target, "__getattr__"):  # its instances may have any method
            _refuse_without_method(target, facts, component.use, place(where))

    def describe(self, kind: str, ref: str, *, base_dir: Path | None = None) -> str:
        """Return the origin of `ref`: `dist==version module:attr`, or `module:attr (file)` if it is in no package."""
        if is_reference(ref):
            found = _resolve(ref, user_folders(base_dir))
            return f"{found.path} ({found.file})" if found.file else found.path
        entry = self.find(kind, ref)
        return f"{entry.distribution}=={entry.version} {entry.path}" if entry.version else entry.path

    def clashes(self) -> list[str]:
        """Return one line for each name that two packages use."""
        names: dict[tuple[str, str], list[Entry]] = {}
        for package in self._sources:
            for entry in package.entries if package.status == "ok" else ():
                names.setdefault((entry.kind, entry.name), []).append(entry)
        return [_ambiguity(entries) for entries in names.values() if len(entries) > 1]

    def package(self, distribution: str, *, where: Where = "") -> Package:
        """Return an installed package by any spelling of its name. Raises `PluginError` with the nearest name."""
        wanted = canonical(distribution)
        for package in self._sources:
            if canonical(package.distribution) == wanted:
                return package
        hint = did_you_mean(wanted, [canonical(package.distribution) for package in self.packages])
        raise PluginError(f"{_prefix(where)}no package '{distribution}' that plugs into agentrl is installed{hint}")

    def _target(
        self, kind: Kind, component: Component, where: Where, base_dir: Path | None, arguments: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Import a component; return it with the arguments that it gets beside its options."""
        target = self.load(kind.name, component.use, base_dir=base_dir, where=where)
        if kind.only_declared:
            declared = parameters_of(target)[0]
            arguments = {name: value for name, value in arguments.items() if name in declared}
        return target, arguments

    def _find_in(self, package: Package, kind: str, name: str, prefix: str) -> Entry:
        _refuse_unusable(package, f"{prefix}{KINDS[kind].singular} '{name}'")
        for entry in _named(package, kind, name):
            return entry
        known = [entry.name for entry in package.entries if entry.kind == kind]
        hint = did_you_mean(name, known) or (f" (it has {', '.join(sorted(known))})" if known else "")
        raise PluginError(
            f"{prefix}{package.distribution} {package.version} has no {KINDS[kind].singular} '{name}'{hint}"
        )

    def _unknown(self, kind: str, name: str, prefix: str) -> PluginError:
        """Return the error for an unknown name, with the nearest one, unusable packages, and the package to install."""
        # Commands of `agentrl plugins` have names like `plugins-check`, which nobody can call.
        known = sorted({entry.name for entry in self.entries(kind) if not entry.name.startswith("plugins-")})
        hint = did_you_mean(name, known) or (f" (known: {', '.join(known)})" if known else "")
        absent = [package for package in self.packages if package.status != "ok"]
        others = "".join(f"; {package.distribution} {package.version} {package.trouble}" for package in absent)
        package = providers(kind).get(name)
        if package and package not in [canonical(item.distribution) for item in self.packages if item.status == "ok"]:
            others += f"; {pip_install(package)}"
        elif kind != "commands" and not others and "did you mean" not in hint:
            new = command_line("plugins", "new", "agentrl-NAME", "--kind", KINDS[kind].singular.replace(" ", "-"))
            others = f"; one of your own can be named as file.py:Name, or be a package: {new}"
        error = PluginError(f"{prefix}no {KINDS[kind].singular} named '{name}'{hint}{others}")
        error.__cause__ = next((package.error for package in absent if package.error is not None), None)
        return error


def _checked(built: Any, kind: Kind, name: str, where: str) -> Any:
    """Return a built component, made of it if it is a function; raise `PluginError` if it is none of its kind."""
    if kind.from_function:
        built = resolve(kind.from_function).value(built, name, where=where)  # type: ignore[operator]  # a function
    _refuse_without_method(built, kind, name, where)
    if kind.problem and (problem := resolve(kind.problem).value(built)):  # type: ignore[operator]  # a function
        raise PluginError(f"{where}: '{name}': {problem}")
    return built


def _refuse_without_method(built: Any, kind: Kind, name: str, where: str) -> None:
    """Raise `PluginError` if a component, or its class, lacks the method of its kind."""
    if kind.method and not callable(getattr(built, kind.method, None)):
        found = getattr(built, "__qualname__", type(built).__qualname__)
        raise PluginError(
            f"{where}: '{name}' builds {found}, which has no method `{kind.method}`; expected a class or an object "
            f"with `{kind.method}(…)`"
        )


def _unplaced(kind: Kind, component: Component) -> Where:
    """Return the place for messages about a component that stands in no config."""
    return lambda option: f"{kind.singular}.{option}" if option else f"{kind.singular} '{component.use}'"


def _named(package: Package, kind: str, name: str) -> list[Entry]:
    return [entry for entry in package.entries if (entry.kind, entry.name) == (kind, name)]


def _refuse_unusable(package: Package, what: str) -> None:
    if package.status != "ok":
        raise PluginError(
            f"{what} comes from {package.distribution} {package.version}, which {package.trouble}"
        ) from package.error


def _ambiguity(entries: Sequence[Entry]) -> str:
    owners = " and ".join(entry.distribution for entry in entries)
    spellings = " or ".join(f"{entry.distribution}/{entry.name}" for entry in entries)
    return f"{KINDS[entries[0].kind].singular} '{entries[0].name}' is registered by {owners}; write {spellings}"


def _prefix(where: Where) -> str:
    return f"{place(where)}: " if where else ""


def _resolve(ref: str, folders: Sequence[Path], prefix: str = "") -> Reference:
    try:
        return resolve(ref, folders)
    except PluginError as error:
        raise PluginError(f"{prefix}{error}") from (error.__cause__ or error)
