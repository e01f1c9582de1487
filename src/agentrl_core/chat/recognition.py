"""Choose the tool-call parser and the reasoning format that fit a model's chat template.

Used when the configuration says `auto`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from agentrl_core.api.reasoning import REASONING_FORMATS
from agentrl_core.chat.parsers.hermes import HermesParser
from agentrl_core.chat.parsers.llama3 import Llama3Parser
from agentrl_core.chat.parsers.qwen3_coder import Qwen3CoderParser
from agentrl_core.config.invocation import pip_install
from agentrl_core.errors import ConfigError, PluginError
from agentrl_core.plugins.catalog import providers
from agentrl_core.plugins.discovery import CORE, canonical

if TYPE_CHECKING:
    from agentrl_core.api.reasoning import ReasoningFormat
    from agentrl_core.api.tool_parsers import ToolParser
    from agentrl_core.plugins.registry import Package, Registry

logger = logging.getLogger(__name__)


def recognise_parser(template: str, registry: Registry, *, where: str = "chat template") -> ToolParser:
    """Return the parser of the tool-call format that a template shows; the Hermes parser if it shows none.

    The parsers of other packages are asked first: packages by name, the parsers of each in the order in which it
    registers them. Those that cannot be loaded are left out. Raises `ConfigError`, which begins with `where`, if the
    template shows a format that only a package reads that is not usable here.
    """
    unusable: dict[str, str] = {}
    for package in registry.packages:
        name = canonical(package.distribution)
        if name == CORE:
            continue
        try:
            parser = _recognised_by(package, template, registry)
        except PluginError as error:
            logger.warning("%s; it is not asked whether it knows the model's chat template", error)
            unusable[name] = str(error)
            continue
        if parser is not None:
            return parser
        if package.status != "ok":
            unusable[name] = f"{package.distribution} {package.version} {package.trouble}"
    _refuse_known_format(template, registry, unusable, where)
    return Qwen3CoderParser.recognise(template) or Llama3Parser.recognise(template) or HermesParser()


def _recognised_by(package: Package, template: str, registry: Registry) -> ToolParser | None:
    """Return the first parser of a package that recognises the template; None for a package that did not load."""
    for entry in package.entries if package.status == "ok" else ():
        if entry.kind == "tool_parsers":
            target = registry.load(entry.kind, f"{package.distribution}/{entry.name}")
            recognise: Callable[[str], ToolParser | None] | None = getattr(target, "recognise", None)
            if recognise is not None and (parser := recognise(template)) is not None:
                return parser
    return None


def _refuse_known_format(template: str, registry: Registry, unusable: Mapping[str, str], where: str) -> None:
    """Raise if the template shows a format of a known package that was not asked: Hermes would read no call of it."""
    asked = {canonical(package.distribution) for package in registry.packages} - unusable.keys()
    for marker, name in providers("templates").items():
        if marker in template and name not in asked:
            remedy = unusable.get(name) or f"it takes a package: {pip_install(name)}"
            raise ConfigError(
                f"{where}: {marker!r} shows a format of tool calls that agentrl-core does not read; {remedy} (or name "
                "a parser: `gateway.tool_parser: NAME`)"
            )


def recognise_reasoning(template: str, is_token: Callable[[str], bool]) -> ReasoningFormat:
    """Return the reasoning format whose opening tag is in the template or is a token of the vocabulary."""
    for name in ("minicpm", "mistral", "think"):
        found = REASONING_FORMATS[name]
        if found.open in template or is_token(found.open):
            return found
    return REASONING_FORMATS["none"]
