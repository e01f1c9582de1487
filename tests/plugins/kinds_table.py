"""Writes the table of kinds in cookbook/architecture.md: `python -m tests.plugins.kinds_table`."""

from __future__ import annotations

import re
from pathlib import Path

from agentrl_core.plugins.kinds import KINDS, Kind

PAGE = Path(__file__).parents[2] / "cookbook" / "architecture.md"
HEAD = "| kind | hook | entry points | named by | protocol | built in |\n|---|---|---|---|---|---|\n"

NAMED_BY = {
    "workflows": "`workflow`",
    "scorers": "`scorer` of a task, `scorers`, `data.default_scorer`",
    "losses": "`loss`",
    "corrections": "`loss.corrections`",
    "advantages": "`advantage`",
    "models": "`model`",
    "datasets": "`data.train`, `data.eval`",
    "adapters": "nothing: they are only listed",
    "worker_adapters": "the agent's type, with `rollout.agent.python`",
    "commands": "the command line",
}
"""Kinds without `Kind.option` -> what names their components."""

BUILT_IN = {
    "workflows": "`rollout/workflows.py`",
    "scorers": "`scorers/table.py`",
    "losses": "`run/loss.py`",
    "corrections": "`run/loss.py`",
    "advantages": "`run/checks.py`",
    "credits": "`run/component_checks.py`",
    "shapings": "`run/component_checks.py`",
    "filters": "`run/component_checks.py`",
    "group_orders": "`run/component_checks.py`",
    "engines": "`run/in_process.py`",
    "stores": "`run/stores.py`, also for reading",
    "trackers": "`run/lifecycle.py`",
    "tool_parsers": "`run/in_process.py`; with `auto`, `chat/recognition.py`",
    "tools": "`run/component_checks.py`",
    "tool_middleware": "`run/component_checks.py`",
    "contexts": "`run/component_checks.py`",
    "models": "`run/shared_start.py`",
    "datasets": "`run/checks.py`",
    "adapters": "nowhere: the hook `adapt_agent` does the work",
    "worker_adapters": "`rollout/subproc/launch.py`",
    "commands": "`cli/__init__.py`",
}
"""Kind -> module that builds or loads its components."""


def table() -> str:
    """The table."""
    return HEAD + "".join(f"| {' | '.join(_cells(kind))} |\n" for kind in KINDS.values())


def _cells(kind: Kind) -> list[str]:
    protocol = f"`{kind.protocol.removeprefix('agentrl_core.').replace(':', '.')}`" if kind.protocol else "a callable"
    return [
        kind.singular,
        f"`register_{kind.name}`",
        f"`agentrl.{kind.name}`",
        f"`{kind.option}`" if kind.option else NAMED_BY[kind.name],
        protocol,
        f"{BUILT_IN[kind.name]}{', by the checks' if kind.early else ''}",
    ]


def written(page: str) -> str:
    """The page with the table as it is now."""
    return re.sub(r"^\| kind \|.*?\n(?=\n)", lambda _: table(), page, flags=re.DOTALL | re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
