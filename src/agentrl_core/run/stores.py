"""Opening of a run's store: for writing by its config, for reading by its folder."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Any

from agentrl_core.concurrency.secrecy import withhold
from agentrl_core.config.component import Component
from agentrl_core.config.schema import RunConfig
from agentrl_core.errors import PluginError, UsageError
from agentrl_core.plugins.manager import load_registry
from agentrl_core.plugins.options import construct
from agentrl_core.stores.sqlite import SQLiteStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentrl_core.api.stores import RunReader, Store
    from agentrl_core.plugins.registry import Registry
    from agentrl_core.run.component_checks import BuiltComponents
    from agentrl_core.run.directory import RunDirectory


def open_store(components: BuiltComponents[Any], directory: RunDirectory) -> Store:
    """Open the store that the config names, for the run of this folder."""
    store: Store = components.build(
        "stores", "store", components.config.store, path=directory.database, run=directory.name
    )
    return store


def withhold_secrets(kind: str, component: Component, registry: Registry, base_dir: Path) -> None:
    """Keep the variables in which a store or tool server finds its secrets from processes that start from now on."""
    target = registry.load(kind, component.use, base_dir=base_dir, where=kind)
    secret_variables = getattr(target, "secret_variables", None)
    for variable in secret_variables(component.options) if secret_variables is not None else ():
        withhold(variable)


def check_store(components: BuiltComponents[Any], directory: RunDirectory) -> None:
    """Open the store that the config names, read from it, and close it; raise `AgentRLError` if that fails."""

    async def read(store: Store) -> None:
        try:
            await store.runs()
        finally:
            await store.close()

    asyncio.run(read(open_store(components, directory)))


def scratch_store(directory: RunDirectory) -> Store:
    """Open a store that disappears with its folder, for an episode that is no part of a run."""
    return SQLiteStore(path=directory.path / "scratch.db")


def open_reader(directory: RunDirectory, file: Path | None = None) -> RunReader:
    """Open the store of a run for reading; `file`, if given, is a copy of a database that a store keeps in a file.

    The run's config snapshot names the store. A folder without one has what the default store wrote. Raises
    `UsageError` if the store is not installed or its options lack something, such as a password.
    """
    if file is not None:
        return SQLiteStore.read(file)
    target, component, where = _named_class(directory)
    opener = getattr(target, "read", None)
    if not callable(opener):
        raise PluginError(
            f"{where}: '{component.use}' cannot be opened for reading; its class needs an attribute `read`"
        )
    built = construct(opener, component.options, name=component.use, where=where, injected=_injected(directory))
    reader: RunReader = built if inspect.isclass(opener) else built()
    return reader


def open_for_control(directory: RunDirectory) -> Store:
    """Open the store of an existing run for commands that change what its members do, also while the run goes on.

    Raises like `open_reader`.
    """
    target, component, where = _named_class(directory)
    store: Store = construct(target, component.options, name=component.use, where=where, injected=_injected(directory))
    return store


def _named_class(directory: RunDirectory) -> tuple[Any, Component, str]:
    """Return the class of the store that a run's snapshot names, its section, and the beginning of messages."""
    component, base_dir, block = _named(directory)
    where = f"{directory.snapshot}: store"
    if component == RunConfig().store:  # the common case needs no plugins, which load slowly
        return SQLiteStore, component, where
    return _registry(tuple(block)).load("stores", component.use, base_dir=base_dir, where=where), component, where


def _injected(directory: RunDirectory) -> dict[str, Any]:
    return {"path": directory.database, "run": directory.name}


def _named(directory: RunDirectory) -> tuple[Component, Path | None, Sequence[str]]:
    """Return the store that a run's snapshot names, the folder of its relative paths, and the plugins to block."""
    if not directory.snapshot.is_file():
        return RunConfig().store, None, ()
    kept, base_dir = directory.read_snapshot()
    section = kept.get("store")
    if section is None:
        return RunConfig().store, base_dir, ()
    if not isinstance(section, dict) or not isinstance(section.get("use"), str):
        raise UsageError(f"{directory.snapshot}: store: expected a section with `use`; put the file back")
    options = {name: value for name, value in section.items() if name != "use"}
    return Component(section["use"], options), base_dir, (kept.get("plugins") or {}).get("block") or ()


@functools.cache
def _registry(block: tuple[str, ...]) -> Registry:
    return load_registry(block)
