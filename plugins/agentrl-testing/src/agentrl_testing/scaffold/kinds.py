"""Table of the kinds of packages that `agentrl plugins new` can write: file names, entry point and usage of each."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class Scaffold:
    """One kind of component: its names in a new package, and its usage by the package's users."""

    kind: str
    """Kind in the registry, such as `scorers`."""
    file: str
    """Name of the component's module, and beginning of its template's name."""
    attribute: str
    """Attribute of the module that is registered; empty for the component's class, which has the package's name."""
    usage: str
    """Example for the package's README; `$component` is the registered name."""
    language: str = "yaml"
    """Language of the example."""
    summary: str


SCAFFOLDS: Mapping[str, Scaffold] = {
    "workflow": Scaffold(
        kind="workflows", file="workflow", attribute="", usage="workflow: $component", summary="An agent for agentrl"
    ),
    "scorer": Scaffold(
        kind="scorers",
        file="scorer",
        attribute="score",
        usage="data: {train: tasks.jsonl, default_scorer: $component}",
        summary="A scorer for agentrl",
    ),
    "loss": Scaffold(
        kind="losses",
        file="loss",
        attribute="",
        usage="loss: {use: $component, cap: 2.0}",
        summary="A loss calculator for agentrl",
    ),
    "correction": Scaffold(
        kind="corrections",
        file="correction",
        attribute="",
        usage="loss: {use: grpo, corrections: [{use: $component, share: 0.5}]}",
        summary="A correction of losses for agentrl",
    ),
    "advantage": Scaffold(
        kind="advantages",
        file="advantage",
        attribute="",
        usage="advantage: {use: $component, scale: 1.0}",
        summary="An advantage estimator for agentrl",
    ),
    "credit": Scaffold(
        kind="credits",
        file="credit",
        attribute="",
        usage="credit: $component",
        summary="A credit assignment for agentrl",
    ),
    "shaping": Scaffold(
        kind="shapings",
        file="shaping",
        attribute="",
        usage="shaping: [{use: $component, cost: 0.01}]",
        summary="A reward shaping for agentrl",
    ),
    "filter": Scaffold(
        kind="filters",
        file="filter",
        attribute="",
        usage="filters: [{use: $component, limit: 0.9}]",
        summary="A filter of groups for agentrl",
    ),
    "group-order": Scaffold(
        kind="group_orders",
        file="group_order",
        attribute="",
        usage="rollout: {order: {use: $component, preferred: 2}}",
        summary="An order of groups for agentrl",
    ),
    "engine": Scaffold(
        kind="engines",
        file="engine",
        attribute="",
        usage="engine: $component",
        summary="An inference engine for agentrl",
    ),
    "store": Scaffold(
        kind="stores", file="store", attribute="", usage="store: $component", summary="A store for agentrl"
    ),
    "tracker": Scaffold(
        kind="trackers",
        file="tracker",
        attribute="",
        usage="trackers: [console, $component]",
        summary="A tracker for agentrl",
    ),
    "tool-parser": Scaffold(
        kind="tool_parsers",
        file="tool_parser",
        attribute="",
        usage="gateway: {tool_parser: $component}",
        summary="A tool-call parser for agentrl",
    ),
    "context": Scaffold(
        kind="contexts",
        file="context",
        attribute="",
        usage="context: {use: $component, max_prompt_tokens: 4000}",
        summary="A context policy for agentrl",
    ),
    "tool-server": Scaffold(
        kind="tools",
        file="tool_server",
        attribute="",
        usage="tools: {servers: [{use: $component, limit: 10}]}",
        summary="A tool server for agentrl",
    ),
    "tool-middleware": Scaffold(
        kind="tool_middleware",
        file="tool_middleware",
        attribute="",
        usage="tools: {servers: [{use: functions, functions: [my_tools.py:search]}], middleware: [$component]}",
        summary="Tool middleware for agentrl",
    ),
    "model": Scaffold(
        kind="models",
        file="model",
        attribute="build",
        usage="model: {use: $component, size: 0.1M}",
        summary="A model builder for agentrl",
    ),
    "dataset": Scaffold(
        kind="datasets",
        file="dataset",
        attribute="tasks",
        usage="data: {train: $component}",
        summary="A data set for agentrl",
    ),
    "adapter": Scaffold(
        kind="adapters",
        file="adapter",
        attribute="",
        usage="workflow: my_agents.py:build_crew   # $component adapts what it makes",
        summary="An adapter of an agent framework for agentrl",
    ),
    "worker-adapter": Scaffold(
        kind="worker_adapters",
        file="worker",
        attribute="adapt",
        usage="""workflow: my_agents.py:build_crew   # $component adapts what it makes
rollout: {agent: {mode: subproc, python: ../crew-env/bin/python}}""",
        summary="An adapter for agents in their own interpreter",
    ),
    "command": Scaffold(
        kind="commands",
        file="command",
        attribute="run",
        usage="agentrl $component runs",
        language="console",
        summary="A command for agentrl",
    ),
}
"""Value of `--kind` -> parts of the package."""

HOOK_MODULES = frozenset({"adapter"})
"""Kinds that are registered by a hook module, because they need a hook beside their entry point."""
