"""Reader of `agent_config.yml`, the file in which AgentCPM's AgentRL configures its judge.

The section `scorer_agent` names the judge's models and how they are asked.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from agentrl_core.api.options import Node, Problem, read_file, refusal
from agentrl_judge.prompt import check_template
from agentrl_judge.settings import (
    ModelSettings,
    Readers,
    amount,
    count,
    extra_body,
    read_models,
    read_section,
    seconds,
    text,
)

DEFAULT_PATHS = ("agent_config.yml", "assets/agent_config.yml")
"""Paths that are tried in order, relative to the folder of the run's config."""


@attrs.frozen(kw_only=True)
class AgentConfig:
    """Settings of a judge in the file; None for settings that the file does not have."""

    models: tuple[ModelSettings, ...]
    template: str | None = None
    max_retries: int | None = None
    retry_delay_s: float | None = None
    backoff_factor: float | None = None
    call_timeout_s: float | None = None


def read_agent_config(path: Path) -> AgentConfig:
    """Read the file. Raises ConfigError that lists every mistake with its line.

    The section `browse_agent` configures agents and is not read.
    """
    problems: list[Problem] = []
    root = read_file(path, problems)
    sections = _sections(root, problems)
    scorer = sections.get("scorer_agent")
    if scorer is None:
        problems.append(Problem(root.place, "the section scorer_agent is missing: it names the judge's models"))
        raise refusal(problems)
    found = _read_scorer(scorer, problems)
    if problems:
        raise refusal(problems)
    return found


def _sections(root: Node, problems: list[Problem]) -> dict[str, Node]:
    readers: Readers = {"browse_agent": lambda _: None, "scorer_agent": lambda _: None}
    read_section(root, readers, problems)
    return root.value if isinstance(root.value, dict) else {}


def _read_scorer(node: Node, problems: list[Problem]) -> AgentConfig:
    readers: Readers = {
        "models": lambda _: None,
        "max_retries": count,
        "retry_delay": amount,
        "backoff_factor": _factor,
        "timeout": seconds,
        "judge_prompt_template": _template,
        "extra_body": extra_body,
    }
    found = read_section(node, readers, problems)
    section = node.value if isinstance(node.value, dict) else {}
    models = read_models(section.get("models", Node(None, node.place)), problems, keys_in_file=True)
    shared = found.get("extra_body", {})
    return AgentConfig(
        models=tuple(attrs.evolve(model, extra_body={**shared, **model.extra_body}) for model in models),
        template=found.get("judge_prompt_template"),
        max_retries=found.get("max_retries"),
        retry_delay_s=found.get("retry_delay"),
        backoff_factor=found.get("backoff_factor"),
        call_timeout_s=found.get("timeout"),
    )


def _factor(value: object) -> float:
    factor = amount(value)
    if factor < 1:
        raise ValueError(f"expected a number of at least 1, found {factor:g}")
    return factor


def _template(value: object) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        return text(value)
    check_template(value)
    return value
