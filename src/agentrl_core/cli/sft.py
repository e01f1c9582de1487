"""`agentrl sft`: fine-tune a model on demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def sft(
    config: Annotated[Path, typer.Argument(help="YAML file, see `agentrl config show --sft`.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Options of the config, as a.b=c.")] = None,
    *,
    name: Annotated[str, typer.Option("--name", help="Name of the run; generated where empty.")] = "",
) -> None:
    """Fine-tune a model on demonstrations: chats, or episodes that `agentrl trace export` selected."""
    from agentrl_core.run.sft import FineTuner

    FineTuner(config, overrides=overrides or (), name=name).train()
