"""`agentrl doctor`: prints the findings of `run.doctor`, each with its fix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl_core.cli.printing import echo


def doctor(
    config: Annotated[
        Path | None, typer.Argument(help="YAML file; without one, only the installation is checked.")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Argument(help="Options to change, such as trainer.steps=20.")] = None,
    *,
    try_step: Annotated[
        bool, typer.Option("--try-step", help="Train one step at the largest shape, on made-up tokens.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find what keeps a run from working, and how to fix it.

    Checks versions, plugins and port. With a config, also checks the disk, the model, the chat template, the store and
    the agent, runs one episode from end to end, and compares the memory that the run needs with what is there. With
    --try-step it also measures memory and time of one training step. The exit code is 1 if anything is wrong.
    """
    from agentrl_core.cli.output import print_json
    from agentrl_core.run.doctor import examine

    findings = []
    for finding in examine(config, overrides or (), try_step=try_step):
        findings.append(finding)
        if not as_json:
            echo(f"{'ok' if finding.ok else 'WRONG':<5}  {finding.check:<8}  {finding.told}")
            if finding.fix:
                echo(f"{'':<17}fix: {finding.fix}")
    if as_json:
        print_json(findings)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)
