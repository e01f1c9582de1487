"""Checks of a whole plugin package (`check_plugin`), and a registry with chosen plugins only (`isolated_plugins`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import cast

from agentrl_core.errors import PluginError
from agentrl_core.plugins.discovery import CORE, GROUP, canonical, core_version, find_distributions
from agentrl_core.plugins.manager import PluginManager, load_registry
from agentrl_core.plugins.registry import Package, Registry
from agentrl_testing.components import component_problems

HEAVY = ("torch", "transformers", "openai", "anthropic", "langchain_core", "motor", "fastapi", "httpx2", "starlette")
"""Modules that a hook module must not import, because each of them would slow down `agentrl plugins list`."""


def check_plugin(distribution: str, *, strict: bool = True) -> None:
    """Raise `AssertionError` that lists every fault of an installed plugin package.

    The checks: its metadata have a version range of agentrl-core; its hook modules can be imported and import no
    heavy module; every registered name loads and passes those checks of its kind that need no network, folder or
    examples; no function misses its hook by a wrong name or a missing `@hookimpl`. With `strict` the package also
    needs a summary and a README that shows how to name its components in a config.
    """
    registry = load_registry()
    package = registry.package(distribution)
    problems = [*plugin_problems(package, registry), *(plugin_advice(package) if strict else ())]
    if problems:
        raise AssertionError("\n".join([f"{package.distribution} {package.version}:", *problems]))


def plugin_problems(package: Package, registry: Registry) -> list[str]:
    """Return the faults that prevent a package from working, one line each."""
    if package.status != "ok":
        return [package.trouble]
    problems = [*_metadata_problems(package), *package.notes, *_heavy_imports(package)]
    for entry in package.entries:
        try:
            registry.load(entry.kind, f"{entry.distribution}/{entry.name}")
        except PluginError as error:
            problems.append(str(error))
        else:
            problems += component_problems(entry, registry)
    return problems


def plugin_advice(package: Package) -> list[str]:
    """Return advice on metadata that users of the package would miss, one line each."""
    if package.status != "ok" or canonical(package.distribution) == CORE:
        return []
    try:
        fields = _fields(package)
    # Damaged metadata are a fault, which `plugin_problems` reports.
    except PackageNotFoundError:
        return []
    advice = [] if fields.get("Summary") else ["has no summary: write project.description"]
    description = str(fields.get("Description") or fields.get_payload())
    unnamed = [entry.name for entry in package.entries if entry.name not in description]
    return advice + ([f"its README does not show how to name {', '.join(unnamed)}"] if unnamed else [])


@contextmanager
def isolated_plugins(*plugins: object, core: bool = True) -> Iterator[Registry]:
    """Yield a registry of core and the given hook modules, classes or objects, without the installed packages.

        class Mine:
            @hookimpl
            def register_scorers(self, register):
                register("mine", lambda request: 1.0)

        with isolated_plugins(Mine()) as registry:
            registry.load("scorers", "mine")

    The distribution of a plugin has the name of its module or class. `core=False` leaves core out, too. At the end,
    folders that the block added to the import path are removed, and so are modules that were imported from them.
    """
    manager = PluginManager()
    if core:
        from agentrl_core.plugins import builtins

        manager.add_module(manager.add_package(CORE, core_version()), builtins, CORE)
    for plugin in plugins:
        name = getattr(plugin, "__name__", type(plugin).__name__)
        manager.add_module(manager.add_package(name, "0"), plugin, name)
    path, loaded = list(sys.path), set(sys.modules)
    try:
        yield Registry(manager.packages, manager)
    finally:
        added = {Path(folder) for folder in sys.path} - {Path(folder) for folder in path}
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            # Imported before the block, so it cannot come from a folder that the block added.
            if name in loaded:
                continue
            file = getattr(module, "__dict__", {}).get("__file__")
            if file and added & set(Path(file).parents):
                del sys.modules[name]


def _fields(package: Package) -> Message:
    """Return a package's metadata; raise PackageNotFoundError if they are damaged."""
    return cast("Message", metadata(package.distribution))


def _metadata_problems(package: Package) -> list[str]:
    if canonical(package.distribution) == CORE:
        return []
    try:
        _fields(package)
    except PackageNotFoundError:
        return ["its metadata are damaged; reinstall the package"]
    if package.requires:
        return []
    return ['declares no range of agentrl-core: write dependencies = ["agentrl-core>=0.1,<0.2"]']


def _heavy_imports(package: Package) -> list[str]:
    """Return one line per heavy module that the package's hook modules import.

    Imports them in a new interpreter, because this one has imported heavy modules already.
    """
    modules = [
        point.module
        for item in find_distributions()
        if canonical(item.name) == canonical(package.distribution)
        for point in item.entry_points
        if point.group == GROUP
    ]
    if not modules:
        return []
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; import {', '.join(modules)}; "
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # this interpreter
    if done.returncode:
        return [f"{', '.join(modules)} cannot be imported alone: {(done.stderr.splitlines() or ['no message'])[-1]}"]
    return [f"{', '.join(modules)} imports {name}: import it where it is used" for name in done.stdout.split()]
