"""`agentrl doctor`: what keeps a run from working, and how to fix it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def doctor(
    config: Annotated[Path | None, typer.Argument(help="YAML file; without one, the installation is checked.")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="Options of the config, as a.b=c.")] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find what keeps a run from working, and how to fix it.

    Checks versions, plugins, port and disk; with a config also its model, template, store and agent, and runs one
    episode from end to end. Exit code 1 if anything is wrong.
    """
    from agentrl_core.cli.output import print_json
    from agentrl_core.run.doctor import examine

    findings = []
    for finding in examine(config, overrides or ()):
        findings.append(finding)
        if not as_json:
            typer.echo(f"{'ok' if finding.ok else 'WRONG':<5}  {finding.check:<8}  {finding.told}")
            if finding.fix:
                typer.echo(f"{'':<17}fix: {finding.fix}")
    if as_json:
        print_json(findings)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)
