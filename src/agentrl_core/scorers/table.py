"""Lookup of scorers by name: those that the config defines under `scorers`, and the registered ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agentrl_core.config.component import Component
from agentrl_core.config.conversion import convert
from agentrl_core.errors import ConfigError, PluginError, RunError, UsageError
from agentrl_core.plugins.catalog import default_scorer
from agentrl_core.plugins.references import is_reference
from agentrl_core.scorers.call import NormalizedScorer, normalize_scorer

if TYPE_CHECKING:
    from pathlib import Path

    from agentrl_core.config.sampling_sections import GatewayConfig
    from agentrl_core.plugins.registry import Registry
    from agentrl_core.types import Task


NO_SCORER = "Set data.default_scorer: exact_match (or numeric, for numbers), or name a `scorer` in the task"
"""Advice for tasks that nothing scores."""


class ScorerTable:
    """Table that builds each scorer once, when it is first needed.

    `sections` are the config's `scorers`, and `default` names the scorer of tasks that name none. A name means the
    section of that name, else the registered scorer; this holds for the parts of a scorer, too. A class is built with
    its options. A scorer that declares the keyword `config_dir` gets the config's folder. A scorer with parts declares
    `scorer_of` and gets a function that turns a part as in the config (a name, or `{use: NAME, …options}`) and the
    part's key into a `NormalizedScorer`. `where(key)` is the text `config.yaml:9: key` for a dotted key of the config.
    """

    def __init__(
        self,
        registry: Registry,
        sections: Mapping[str, Component] | None = None,
        *,
        default: str | None = None,
        base_dir: Path | None = None,
        where: Callable[[str], str] = str,
        allow_code: bool = False,
    ) -> None:
        self._registry, self._sections, self._default = registry, sections or {}, default
        self._base_dir, self._where, self._allow_code = base_dir, where, allow_code
        self._by_name: dict[str, NormalizedScorer] = {}
        self._making: list[str] = []
        self.made: list[NormalizedScorer] = []
        """All scorers built so far, including the parts of others."""
        self.used: dict[str, str] = {}
        """Name of each registered scorer that was built -> `dist==version module:attr`."""

    def for_task(self, task: Task) -> NormalizedScorer:
        """Return the scorer of a task whose workflow returned no reward; raise `RunError` if it cannot be used."""
        try:
            return self.of_task(task)
        except UsageError as error:
            if task.scorer or self._default:
                why, fix = f"{error}", "Return a reward from the workflow, or name another scorer"
            else:
                # Who has no judge installed is not told of one.
                missing = f"no scorer named '{default_scorer()}'" in str(error)
                why = "the task names no scorer" + ("" if missing else f": {error}")
                fix = f"{NO_SCORER}, or return a reward from the workflow"
            raise RunError(f"task '{task.id}': the workflow returned no reward, and {why}. {fix}") from error

    def of_task(self, task: Task) -> NormalizedScorer:
        """Return the scorer that a task names, or the default one; raise `UsageError` as `get` does.

        Tasks are data, which may come from others, so they may name code only with `data.allow_code`.
        """
        name = task.scorer
        if not name:
            return self.get(self._default or default_scorer())
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
                self._by_name[name] = self._make(Component(name), name)
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
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
            raise ConfigError(
                f"{self._where(key)}: expected a name of lower-case letters, digits, '_' and '-' that begins with a "
                "letter or a digit"
            )
        if name in self._making:
            circle = " → ".join([*self._making[self._making.index(name) :], name])
            raise ConfigError(f"{self._where(key)}: it is a part of itself: {circle}")
        component = self._sections[name]
        self._making.append(name)
        try:
            if component.use != name and component.use in self._sections:
                return self._alias(component, key)
            return self._make(component, name, key)
        finally:
            self._making.pop()

    def _alias(self, component: Component, key: str) -> NormalizedScorer:
        if component.options:
            option = next(iter(component.options))
            raise ConfigError(
                f"{self._where(f'{key}.{option}')}: '{component.use}' is defined in this config and takes no options"
            )
        return self.get(component.use)

    def _make(self, component: Component, name: str, key: str = "") -> NormalizedScorer:
        """Build a registered scorer; `key` is its key in the config, empty for a scorer that a task names."""
        built = self._registry.build(
            "scorers",
            component,
            where=(lambda option: self._where(f"{key}.{option}" if option else key)) if key else "",
            base_dir=self._base_dir,
            scorer_of=lambda part, option: self._part(part, f"{key}.{option}"),
            config_dir=self._base_dir,
        )
        try:
            scorer = normalize_scorer(built, name)
        except PluginError as error:
            raise PluginError(f"{self._where(key)}: {error}" if key else str(error)) from error
        self.made.append(scorer)
        self.used[component.use] = self._registry.describe("scorers", component.use, base_dir=self._base_dir)
        return scorer

    def _part(self, given: Any, key: str) -> NormalizedScorer:
        """Return a part of another scorer, given as a name or as a component with options."""
        component: Component = convert(given, Component, lambda path: self._where(f"{key}.{path}" if path else key))
        if component.use in self._sections:
            return self._alias(component, key)
        return self._make(component, component.use, key)


def check_scorers(scorers: Iterable[NormalizedScorer], gateway: GatewayConfig) -> list[str]:
    """Await each scorer's own `check` before a run, so that a missing judge or sandbox shows before the first episode.

    They run concurrently. Returns their notes, and raises the first error.
    """
    gateway_url = f"http://{gateway.host}:{gateway.port}" if gateway.port else None

    async def check_all() -> list[str]:
        notes = await asyncio.gather(*(scorer.check(gateway_url=gateway_url) for scorer in scorers))
        return [note for its_notes in notes for note in its_notes]

    return asyncio.run(check_all())
