"""`agentrl sft`: fine-tune a model on demonstrations, without reinforcement learning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def sft(
    config: Annotated[Path, typer.Argument(help="YAML file; `agentrl config show --sft` prints its options.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Options to change, such as trainer.steps=20.")] = None,
    *,
    name: Annotated[str, typer.Option("--name", help="Name of the run; default: a generated one.")] = "",
) -> None:
    """Fine-tune a model on demonstrations: chats, or episodes written by `agentrl trace export`."""
    from agentrl_core.run.sft import FineTuner

    FineTuner(config, overrides=overrides or (), name=name).train()
