"""Lookup of scorers by name: those that the config defines under `scorers`, and the registered ones."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agentrl_core.config.schema import Component
from agentrl_core.errors import ConfigError, PluginError, UsageError
from agentrl_core.plugins.options import construct
from agentrl_core.plugins.references import is_reference
from agentrl_core.scorers.call import NormalizedScorer, normalize_scorer

if TYPE_CHECKING:
    from pathlib import Path

    from agentrl_core.plugins.registry import Registry

Places = Callable[[str], Callable[[str], str]]
"""`places(section)(option)` is the text `config.yaml:9: section.option`; the option "" is the section itself."""


def _keys(key: str) -> Callable[[str], str]:
    return lambda option: f"{key}.{option}" if option else key


class ScorerTable:
    """Table that builds each scorer once, when it is first needed.

    `sections` are the config's `scorers`. A name means the section of that name, else the registered scorer; this
    holds for the parts of a scorer, too. A class is built with its options. A scorer that declares the keyword
    `config_dir` gets the config's folder. A scorer with parts declares `scorer_of` and gets a function that turns a
    part as in the config (a name, or `{use: NAME, …options}`) and the part's key into a `NormalizedScorer`.
    """

    def __init__(
        self,
        registry: Registry,
        sections: Mapping[str, Component] | None = None,
        *,
        base_dir: Path | None = None,
        places: Places = _keys,
        allow_code: bool = False,
    ) -> None:
        self._registry, self._sections = registry, sections or {}
        self._base_dir, self._places, self._allow_code = base_dir, places, allow_code
        self._by_name: dict[str, NormalizedScorer] = {}
        self._making: list[str] = []
        self.made: list[NormalizedScorer] = []
        """All scorers built so far, including the parts of others."""
        self.used: dict[str, str] = {}
        """Name of each registered scorer that was built -> `dist==version module:attr`."""

    def of_task(self, name: str) -> NormalizedScorer:
        """Return the scorer that a task names, as `get` does; raise `PluginError` if the name is a reference to code.

        Tasks are data, which may come from others, so they may name code only with `data.allow_code`.
        """
        if is_reference(name) and not self._allow_code and name not in self._sections:
            raise PluginError(
                f"'{name}' is code, which a task may not name; name it in the config, "
                f"`scorers: {{my_scorer: {{use: {name}}}}}`, and write `my_scorer` in the task, or set "
                "data.allow_code: true to trust all code that the tasks name"
            )
        return self.get(name)

    def get(self, name: str) -> NormalizedScorer:
        """Return the scorer of a name; raise `UsageError` if there is none or it cannot be built."""
        if name not in self._by_name:
            if name in self._sections:
                self._by_name[name] = self._make_section(name)
            else:
                self._by_name[name] = self._make(Component(name), name, "", "")
        return self._by_name[name]

    def problems(self) -> Iterator[str]:
        """Build all scorers that the config defines; yield one line for each that cannot be built."""
        for name in self._sections:
            try:
                self.get(name)
            except UsageError as error:
                yield str(error)

    def _make_section(self, name: str) -> NormalizedScorer:
        key = f"scorers.{name}"
        where = self._places(key)("")
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
            raise ConfigError(
                f"{where}: expected a name of lower-case letters, digits, '_' and '-' that begins with a letter or a "
                "digit"
            )
        if name in self._making:
            circle = " → ".join([*self._making[self._making.index(name) :], name])
            raise ConfigError(f"{where}: it is a part of itself: {circle}")
        component = self._sections[name]
        self._making.append(name)
        try:
            if component.use != name and component.use in self._sections:
                return self._alias(component, key)
            return self._make(component, name, key, where)
        finally:
            self._making.pop()

    def _alias(self, component: Component, key: str) -> NormalizedScorer:
        if component.options:
            option = next(iter(component.options))
            raise ConfigError(
                f"{self._places(key)(option)}: '{component.use}' is defined in this config and takes no options"
            )
        return self.get(component.use)

    def _make(self, component: Component, name: str, key: str, where: str) -> NormalizedScorer:
        """Build a registered scorer; `key` is its key in the config, empty for a scorer that a task names."""
        at: Any = self._places(key) if key else ""
        target = self._registry.load("scorers", component.use, base_dir=self._base_dir, where=at)
        offered = {
            "scorer_of": lambda given, option: self._part(given, f"{key}.{option}"),
            "config_dir": self._base_dir,
        }
        # Only declared parameters: these are no options, so a config cannot set them.
        injected = {name: item for name, item in offered.items() if name in _named_parameters(target)}
        at = at or f"scorer '{name}'"
        built = construct(target, component.options, name=component.use, where=at, injected=injected)
        try:
            scorer = normalize_scorer(built, name)
        except PluginError as error:
            raise PluginError(f"{where}: {error}" if where else str(error)) from error
        self.made.append(scorer)
        self.used[component.use] = self._registry.describe("scorers", component.use, base_dir=self._base_dir)
        return scorer

    def _part(self, given: Any, key: str) -> NormalizedScorer:
        """Return a part of another scorer, given as a name or as a component with options."""
        where = self._places(key)("")
        if isinstance(given, str) and given:
            if given in self._sections:
                return self.get(given)
            return self._make(Component(given), given, key, where)
        if not isinstance(given, Mapping) or not isinstance(given.get("use"), str) or not given["use"]:
            raise ConfigError(f"{where}: expected a scorer's name, or {{use: NAME, …options}}, found {given!r:.60}")
        component = Component(given["use"], {option: item for option, item in given.items() if option != "use"})
        if component.use in self._sections:
            return self._alias(component, key)
        return self._make(component, component.use, key, where)


def _named_parameters(target: Any) -> Collection[str]:
    """Return the parameters that a scorer or its constructor declares by name; `**kwargs` declares none."""
    try:
        return inspect.signature(target).parameters
    # No signature; `normalize_scorer` reports that.
    except (TypeError, ValueError):
        return ()
