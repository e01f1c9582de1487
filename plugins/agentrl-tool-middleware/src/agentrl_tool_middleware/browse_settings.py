"""Settings of the browse agent, as in the section `browse_agent` of AgentCPM's `agent_config.yml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from agentrl_core.api.options import Node, Place, Problem, describe, from_python, read_file, refusal
from agentrl_judge.settings import ModelSettings, Readers, amount, count, extra_body, read_models, read_section, seconds
from agentrl_judge.settings import text as read_text

EXTRA_BODY: Mapping[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0,
    "chat_template_kwargs": {"enable_thinking": False},
}
"""AgentRL's fields of each request, for files without `extra_body`."""


@attrs.frozen(kw_only=True)
class Upstream:
    """Model of the run's `gateway.upstreams`; its calls are in the episode's trace."""

    upstream: str

    @property
    def label(self) -> str:
        """Name of the model in messages."""
        return f"upstream {self.upstream}"


@attrs.frozen(kw_only=True)
class BrowseSettings:
    """Settings of the browse agent; names and meanings are AgentRL's."""

    models: tuple[ModelSettings | Upstream, ...]
    status: bool = True
    """False: results are shown as they are."""
    browse_tools: tuple[str, ...] = ("fetch_url", "visit")
    default_purpose: Mapping[str, str] = attrs.field(factory=dict)
    max_prompt_length: int = 60_000
    min_prompt_length: int = 2_000
    tokenizer_path: str | None = None
    max_retries: int = 3
    retry_delay: float = 2.0
    timeout: float = 120.0
    enable_logging: bool = False


def read_browse_agent(path: Path) -> BrowseSettings:
    """Read the section of a file; raises ConfigError that lists every mistake with its line.

    The section `scorer_agent` is the judge's, and not read here.
    """
    problems: list[Problem] = []
    root = read_file(path, problems)
    read_section(root, {"browse_agent": _as_it_is, "scorer_agent": _as_it_is}, problems)
    sections = root.value if isinstance(root.value, dict) else {}
    section = sections.get("browse_agent")
    if section is None:
        problems.append(Problem(root.place, "the section browse_agent is missing: it names the models that summarise"))
        raise refusal(problems)
    settings = _read(section, problems, keys_in_file=True)
    if problems:
        raise refusal(problems)
    return settings


def browse_options(given: Mapping[str, Any], base: BrowseSettings | None) -> BrowseSettings:
    """Return the settings of options in a run's config, which take precedence over those of a file.

    Raises ValueError that names the option.
    """
    problems: list[Problem] = []
    node = from_python(dict(given), Place("browse"))
    settings = _read(node, problems, keys_in_file=False, base=base)
    if problems:
        raise ValueError("; ".join(map(str, problems)))
    return settings


def _read(
    node: Node, problems: list[Problem], *, keys_in_file: bool, base: BrowseSettings | None = None
) -> BrowseSettings:
    readers: Readers = {
        "models": _as_it_is,
        "status": _flag,
        "browse_tools": _names,
        "default_purpose": _purposes,
        "max_prompt_length": _length,
        "min_prompt_length": count,
        "tokenizer_path": _path,
        "max_retries": count,
        "retry_delay": amount,
        "timeout": seconds,
        "enable_logging": _flag,
        "extra_body": extra_body,
    }
    found = read_section(node, readers, problems)
    section = node.value if isinstance(node.value, dict) else {}
    shared = found.pop("extra_body", EXTRA_BODY if keys_in_file else {})
    if "models" in section or base is None:
        models = _models(section.get("models", Node(None, node.place)), problems, keys_in_file=keys_in_file)
        found["models"] = tuple(_with_fields(model, {**shared, **_fields(model)}) for model in models)
    else:
        found["models"] = tuple(_with_fields(model, {**_fields(model), **shared}) for model in base.models)
    return BrowseSettings(**found) if base is None else attrs.evolve(base, **found)


def _fields(model: ModelSettings | Upstream) -> Mapping[str, Any]:
    return model.extra_body if isinstance(model, ModelSettings) else {}


def _with_fields(model: ModelSettings | Upstream, fields: Mapping[str, Any]) -> ModelSettings | Upstream:
    return attrs.evolve(model, extra_body=fields) if isinstance(model, ModelSettings) else model


def _models(node: Node, problems: list[Problem], *, keys_in_file: bool) -> list[ModelSettings | Upstream]:
    """Read a list of servers' models and, in a run's config, of upstreams."""
    items = node.value if isinstance(node.value, list) else []
    found: list[ModelSettings | Upstream] = []
    for item in items:
        if not keys_in_file and isinstance(item.value, dict) and "upstream" in item.value:
            named = read_section(item, {"upstream": read_text}, problems)
            found += [Upstream(upstream=named["upstream"])] if named.keys() == {"upstream"} else []
        else:
            found += read_models(Node([item], node.place), problems, keys_in_file=keys_in_file)
    if not items:
        read_models(node, problems, keys_in_file=keys_in_file)
    return found


def _as_it_is(value: Any) -> Any:
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {describe(value)}")  # noqa: TRY004  (all that is wrong is one kind)
    return value


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ValueError("expected a list of names of tools")
    return tuple(value)


def _purposes(value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(item, str) and item.strip() for item in value.values()):
        raise ValueError("expected a section of names of tools, each with a text")
    return {str(name): item for name, item in value.items()}


def _length(value: Any) -> int:
    number = count(value)
    if not number:
        raise ValueError("expected a number above 0, found 0")
    return number


def _path(value: Any) -> str | None:
    return None if value is None else read_text(value)
