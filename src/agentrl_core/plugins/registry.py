"""The table of everything that can be named in a config: who registered it, and how to get it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from agentrl_core.config.nearest import did_you_mean
from agentrl_core.errors import PluginError
from agentrl_core.plugins.discovery import canonical
from agentrl_core.plugins.options import Where, construct, place
from agentrl_core.plugins.references import Reference, is_reference, one_line, resolve, user_folders

if TYPE_CHECKING:
    from agentrl_core.config.schema import Component
    from agentrl_core.plugins.manager import PluginManager

KINDS: Mapping[str, str] = {
    "workflows": "workflow",
    "scorers": "scorer",
    "losses": "loss",
    "corrections": "correction",
    "advantages": "advantage",
    "credits": "credit",
    "shapings": "shaping",
    "filters": "filter",
    "engines": "engine",
    "stores": "store",
    "trackers": "tracker",
    "tool_parsers": "tool parser",
    "models": "model",
    "datasets": "dataset",
    "adapters": "adapter",
    "worker_adapters": "worker adapter",
    "commands": "command",
}
"""Kind of component -> what one of them is called."""


@attrs.frozen(kw_only=True)
class Entry:
    """One registered component."""

    kind: str
    name: str
    distribution: str
    """The package that registered it; empty for an object named by its path."""
    version: str
    value: object
    """The component, or the "module:attr" where it is."""
    summary: str = ""

    @property
    def path(self) -> str:
        """`module:attr` of the component."""
        if isinstance(self.value, str):
            return self.value
        holder = self.value if hasattr(self.value, "__qualname__") else type(self.value)
        return f"{holder.__module__}:{getattr(holder, '__qualname__', '')}"


@attrs.define(kw_only=True, eq=False)
class Package:
    """One installed distribution that plugs in, and how that went."""

    distribution: str
    version: str
    requires: str = ""
    """The range of agentrl-core that it declares, `>=0.1,<0.2`; empty for none."""
    status: Literal["ok", "error", "blocked"] = "ok"
    reason: str = ""
    """One line: the error, or what blocks it."""
    error: BaseException | None = None
    entries: list[Entry] = attrs.field(factory=list)
    """What it registered; for a blocked package, what its metadata says that it would."""
    hooks: list[str] = attrs.field(factory=list)
    """The other hooks that it implements."""
    notes: list[str] = attrs.field(factory=list)
    """Near misses: a name that is almost a hook or a kind."""

    def fail(self, error: BaseException, reason: str = "") -> None:
        """Set the package aside; the first error counts."""
        if self.error is None:
            self.status, self.error = "error", error
            self.reason = reason or (str(error) if isinstance(error, PluginError) else one_line(error))

    @property
    def trouble(self) -> str:
        """Why nothing of a package that is not `ok` can be used, as a verb phrase."""
        return f"is blocked by {self.reason}" if self.status == "blocked" else f"failed to load: {self.reason}"


PROGRAM = Package(distribution="python", version="")
"""What the running program itself registered, by `agentrl_core.register_scorer`."""


class Registry:
    """What the installed packages and the program registered, and what a config may name by its path.

    A reference is one of `module:attr`, `file.py:attr`, `pkg.mod.Attr`, `distribution/name` and a bare name. A
    bare name that two packages use is refused. `base_dir` is the folder from which relative files start.
    """

    def __init__(self, packages: Iterable[Package], hooks: PluginManager) -> None:
        self.packages: Sequence[Package] = tuple(packages)
        """All that were found, by name."""
        self._sources = (*self.packages, PROGRAM)
        self.hooks = hooks
        """Calls `adapt_agent` and the lifecycle hooks of the packages that loaded."""

    def entries(self, kind: str) -> list[Entry]:
        """Return what the packages that loaded registered of one kind, by name."""
        found = (entry for package in self._sources if package.status == "ok" for entry in package.entries)
        return sorted(
            (entry for entry in found if entry.kind == kind), key=lambda entry: (entry.name, entry.distribution)
        )

    def find(self, kind: str, ref: str, *, base_dir: Path | None = None, where: Where = "") -> Entry:
        """Return the component that `ref` names; one named by its path is imported, a registered one is not.

        Raises `PluginError`: unknown (with the nearest name), ambiguous (with what to write), or of a package
        that is broken (from the original error) or blocked.
        """
        prefix = _prefix(where)
        if is_reference(ref):
            found = _resolve(ref, user_folders(base_dir), prefix)
            return Entry(kind=kind, name=ref, distribution="", version="", value=found.value)
        distribution, slash, name = ref.rpartition("/")
        if slash:
            return self._find_in(self.package(distribution, where=where), kind, name, prefix)
        named = [(package, entry) for package in self._sources for entry in _named(package, kind, name)]
        usable = [(package, entry) for package, entry in named if package.status != "blocked"]
        if len(usable) > 1:
            raise PluginError(f"{prefix}{_ambiguity([entry for _, entry in usable])}")
        for package, entry in usable or named:
            _refuse_unusable(package, f"{prefix}{KINDS[kind]} '{entry.name}'")
            return entry
        raise self._unknown(kind, name, prefix)

    def load(self, kind: str, ref: str, *, base_dir: Path | None = None, where: Where = "") -> Any:
        """Import the component that `ref` names. Raises `PluginError` as `find` does, or if it cannot be imported."""
        entry = self.find(kind, ref, base_dir=base_dir, where=where)
        prefix = _prefix(where)
        value = entry.value
        if isinstance(value, str) and entry.distribution:
            source = f"{KINDS[kind]} '{entry.name}' comes from {entry.distribution} {entry.version}"
            value = _resolve(value, (), f"{prefix}{source}, which failed to load: ").value
        if not callable(value) and kind not in ("workflows", "commands"):
            found = f"{type(value).__name__} {value!r:.60}"
            raise PluginError(f"{prefix}'{ref}' is {found}, which cannot be called as a {KINDS[kind]}")
        return value

    def build(
        self, kind: str, component: Component, *, where: Where = "", base_dir: Path | None = None, **injected: Any
    ) -> Any:
        """Construct a component from its options and those of `injected` that its signature accepts.

        A class becomes an instance; a function is returned with its keyword-only options bound. Raises
        `PluginError` as `load` does and `ConfigError` for the options; messages start with `where`.
        """
        target = self.load(kind, component.use, base_dir=base_dir, where=where)
        return construct(target, component.options, name=component.use, where=where or KINDS[kind], injected=injected)

    def describe(self, kind: str, ref: str, *, base_dir: Path | None = None) -> str:
        """Return what `ref` stands for: `dist==version module:attr`, or `module:attr (file)` where unpackaged."""
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
        """Return an installed package by any spelling of its name. Raises `PluginError` with the nearest one."""
        wanted = canonical(distribution)
        for package in self._sources:
            if canonical(package.distribution) == wanted:
                return package
        hint = did_you_mean(wanted, [canonical(package.distribution) for package in self.packages])
        raise PluginError(f"{_prefix(where)}no package '{distribution}' that plugs into agentrl is installed{hint}")

    def _find_in(self, package: Package, kind: str, name: str, prefix: str) -> Entry:
        _refuse_unusable(package, f"{prefix}{KINDS[kind]} '{name}'")
        for entry in _named(package, kind, name):
            return entry
        known = [entry.name for entry in package.entries if entry.kind == kind]
        hint = did_you_mean(name, known) or (f" (it has {', '.join(sorted(known))})" if known else "")
        raise PluginError(f"{prefix}{package.distribution} {package.version} has no {KINDS[kind]} '{name}'{hint}")

    def _unknown(self, kind: str, name: str, prefix: str) -> PluginError:
        """Say what is near, and which packages could not say what they have."""
        known = sorted({entry.name for entry in self.entries(kind)})
        hint = did_you_mean(name, known) or (f" (known: {', '.join(known)})" if known else "")
        absent = [package for package in self.packages if package.status != "ok"]
        others = "".join(f"; {package.distribution} {package.version} {package.trouble}" for package in absent)
        error = PluginError(f"{prefix}no {KINDS[kind]} named '{name}'{hint}{others}")
        error.__cause__ = next((package.error for package in absent if package.error is not None), None)
        return error


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
    return f"{KINDS[entries[0].kind]} '{entries[0].name}' is registered by {owners}; write {spellings}"


def _prefix(where: Where) -> str:
    return f"{place(where)}: " if where else ""


def _resolve(ref: str, folders: Sequence[Path], prefix: str = "") -> Reference:
    try:
        return resolve(ref, folders)
    except PluginError as error:
        raise PluginError(f"{prefix}{error}") from (error.__cause__ or error)
