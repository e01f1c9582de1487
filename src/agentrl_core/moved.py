"""Modules and objects by the names that they had before: each use warns and gives what has the new name. Gone in 0.3.

`agentrl_core` asks `moved_spec` behind all other finders, so only for modules that nobody else has.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from agentrl_core.config.invocation import pip_install

MOVED: Mapping[str, str] = {
    "agentrl_core.backoff": "agentrl_core.http.backoff",
    "agentrl_core.builtins": "agentrl_core.plugins.builtins",
    "agentrl_core.chat.parsers.base": "agentrl_core.api.tool_parsers",
    "agentrl_core.chat.parsers.call_rules": "agentrl_core.api.parsing.call_rules",
    "agentrl_core.chat.parsers.glm4": "agentrl_parsers.glm4",
    "agentrl_core.chat.parsers.harmony": "agentrl_parsers.harmony",
    "agentrl_core.chat.parsers.json_text": "agentrl_core.api.parsing.json_text",
    "agentrl_core.chat.parsers.minicpm": "agentrl_parsers.minicpm",
    "agentrl_core.chat.parsers.mistral": "agentrl_parsers.mistral",
    "agentrl_core.chat.parsers.schemas": "agentrl_core.api.parsing.schemas",
    "agentrl_core.chat.parsers.sections": "agentrl_parsers.sections",
    "agentrl_core.chat.parsers.source": "agentrl_core.api.parsing.source",
    "agentrl_core.chat.parsers.tagged": "agentrl_core.api.parsing.tagged",
    "agentrl_core.chat.reasoning": "agentrl_core.api.reasoning",
    "agentrl_core.daemons": "agentrl_core.concurrency.threads",
    "agentrl_core.data.extract": "agentrl_core.api.extract",
    "agentrl_core.data.inputs": "agentrl_core.api.inputs",
    "agentrl_core.discovery": "agentrl_core.plugins.discovery",
    "agentrl_core.engines.base": "agentrl_core.api.engines",
    "agentrl_core.files": "agentrl_core.stores.files",
    "agentrl_core.folder_lock": "agentrl_core.stores.folder_lock",
    "agentrl_core.generation": "agentrl_core.api.token_level",
    "agentrl_core.hookspecs": "agentrl_core.plugins.hookspecs",
    "agentrl_core.invocation": "agentrl_core.config.invocation",
    "agentrl_core.losses.base": "agentrl_core.api.losses",
    "agentrl_core.nearest": "agentrl_core.config.nearest",
    "agentrl_core.options": "agentrl_core.plugins.options",
    "agentrl_core.process_worker": "agentrl_core.concurrency.process_worker",
    "agentrl_core.processes": "agentrl_core.concurrency.processes",
    "agentrl_core.proxies": "agentrl_core.http.proxies",
    "agentrl_core.references": "agentrl_core.plugins.references",
    "agentrl_core.registry": "agentrl_core.plugins.registry",
    "agentrl_core.reward_wrapper": "agentrl_core.scorers.reward_wrapper",
    "agentrl_core.rollout.adapting": "agentrl_core.api.adapters",
    "agentrl_core.rollout.adapting.called_object": "agentrl_core.api.adapters.called_object",
    "agentrl_core.rollout.adapting.client_routing": "agentrl_core.api.adapters.client_routing",
    "agentrl_core.rollout.borrowed": "agentrl_core.http.borrowed_clients",
    "agentrl_core.rollout.context": "agentrl_core.api.context",
    "agentrl_core.rollout.tls": "agentrl_core.rollout.subproc.inside.share_tls_context",
    "agentrl_core.scorers.reading": "agentrl_core.api.scored_text",
    "agentrl_core.scoring": "agentrl_core.api.scoring",
    "agentrl_core.secrecy": "agentrl_core.concurrency.secrecy",
    "agentrl_core.server_client": "agentrl_core.http.server_client",
    "agentrl_core.shared_client": "agentrl_core.http.shared_client",
    "agentrl_core.stores.base": "agentrl_core.api.stores",
    "agentrl_core.stores.queue": "agentrl_core.api.group_queue",
    "agentrl_core.stores.wakeups": "agentrl_core.concurrency.wakeups",
    "agentrl_core.testing": "agentrl_testing",
    "agentrl_core.testing.adapters": "agentrl_testing.adapters",
    "agentrl_core.testing.advantages": "agentrl_testing.advantages",
    "agentrl_core.testing.base": "agentrl_testing.base",
    "agentrl_core.testing.commands": "agentrl_testing.commands",
    "agentrl_core.testing.components": "agentrl_testing.components",
    "agentrl_core.testing.corrections": "agentrl_testing.corrections",
    "agentrl_core.testing.credits": "agentrl_testing.credits",
    "agentrl_core.testing.datasets": "agentrl_testing.datasets",
    "agentrl_core.testing.engines": "agentrl_testing.engines",
    "agentrl_core.testing.episodes": "agentrl_testing.episodes",
    "agentrl_core.testing.filters": "agentrl_testing.filters",
    "agentrl_core.testing.losses": "agentrl_testing.losses",
    "agentrl_core.testing.models": "agentrl_testing.models",
    "agentrl_core.testing.plugins": "agentrl_testing.plugins",
    "agentrl_core.testing.policy": "agentrl_testing.policy",
    "agentrl_core.testing.scorers": "agentrl_testing.scorers",
    "agentrl_core.testing.scripted": "agentrl_core.engines.scripted",
    "agentrl_core.testing.shapings": "agentrl_testing.shapings",
    "agentrl_core.testing.stores": "agentrl_testing.stores",
    "agentrl_core.testing.tool_parsers": "agentrl_testing.tool_parsers",
    "agentrl_core.testing.trackers": "agentrl_testing.trackers",
    "agentrl_core.testing.worker_adapters": "agentrl_testing.worker_adapters",
    "agentrl_core.testing.workflows": "agentrl_testing.workflows",
    "agentrl_core.tls_context": "agentrl_core.http.tls_context",
    "agentrl_core.trackers.base": "agentrl_core.api.trackers",
    "agentrl_core.weights.base": "agentrl_core.api.weights",
    "agentrl_core.witness": "agentrl_core.weights.witness",
    "agentrl_core.workflow": "agentrl_core.api.workflow",
}
"""Old module -> new module."""

RENAMED: Mapping[str, str] = {
    "agentrl_core.hookspec": "agentrl_core.plugins.hookspecs:hookspec",
    "agentrl_core.api.http.LATER": "agentrl_core.api.http:RETRYABLE_STATUSES",
    "agentrl_core.api.http.PROXY_OPTION": "agentrl_core.api.http:PROXY_FORMS",
    "agentrl_core.plugins.PluginManager": "agentrl_core.plugins.manager:PluginManager",
    "agentrl_core.plugins.load_registry": "agentrl_core.plugins.manager:load_registry",
    "agentrl_core.plugins.registrar": "agentrl_core.plugins.manager:registrar",
}
"""Old name of an object -> "module:attr" of it now. The old module's `__getattr__` is `renamed`."""


def renamed(module: str, name: str) -> Any:
    """Warn, and return the object that was `name` in `module`; raise `AttributeError` if there was none."""
    old = f"{module}.{name}"
    if old not in RENAMED:
        raise AttributeError(f"module '{module}' has no attribute '{name}'")
    home, _, attr = RENAMED[old].partition(":")
    told = f"{old} is now {home}.{attr}; the old name goes with agentrl-core 0.3"
    warnings.warn(told, DeprecationWarning, stacklevel=3)  # at the line that asks the module's `__getattr__`
    return getattr(importlib.import_module(home), attr)


class MovedLoader(Loader):
    """Fills the module at an old place with a way to what is at the new one."""

    def create_module(self, spec: ModuleSpec) -> None:  # the interface of a loader
        """Leave it to Python: the new module itself must keep its own name and spec."""

    def exec_module(self, module: ModuleType) -> None:
        """Warn, and look every name up at the new place."""
        old, new = module.__name__, MOVED[module.__name__]
        try:
            target = importlib.import_module(new)
        except ModuleNotFoundError as error:
            package = new.partition(".")[0]
            if package == "agentrl_core" or error.name != package:
                raise
            install = pip_install(package.replace("_", "-"))
            raise ModuleNotFoundError(f"{old} is now {new}: {install}", name=new) from error
        # the frames of the import system are not counted: this names the line that imports
        warnings.warn(f"{old} is now {new}; the old name goes with agentrl-core 0.3", DeprecationWarning, stacklevel=2)
        vars(module)["__getattr__"] = lambda name: getattr(target, name)
        vars(module)["__path__"] = []  # so that it can be asked for the modules below it
        if hasattr(target, "__all__"):
            vars(module)["__all__"] = target.__all__


def moved_spec(name: str) -> ModuleSpec | None:
    """Return the spec of a module that has moved, by its old name."""
    return ModuleSpec(name, MovedLoader(), origin=MOVED[name]) if name in MOVED else None
