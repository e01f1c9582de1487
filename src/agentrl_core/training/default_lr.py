"""Default learning rates: one for a pretrained model, and a larger one for a small model built from nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from agentrl_core.config.schema import RunConfig

if TYPE_CHECKING:
    from agentrl_core.config.schema import ModelConfig
    from agentrl_core.config.sft import SftConfig

C = TypeVar("C", bound="RunConfig | SftConfig")


@attrs.frozen(kw_only=True)
class Rates:
    """Learning rates of AdamW on all weights."""

    built: float
    """Rate for a model of a builder (`model.use`), which is small and untrained."""
    loaded: float
    """Rate for a pretrained model (`model.path`), whose abilities a large rate destroys within a few steps."""

    def of(self, model: ModelConfig) -> float:
        """Return the rate for `model`."""
        return self.built if model.use is not None else self.loaded


RL = Rates(built=4e-4, loaded=1e-6)
"""Rates of `agentrl run`; 1e-6 is also the default of TRL's GRPO and of verl."""
WARM_START = Rates(built=3e-3, loaded=2e-5)
SFT = Rates(built=1e-3, loaded=2e-5)
"""Rates of `agentrl sft`; 2e-5 is also the default of TRL's supervised fine-tuning."""


def with_rates(run: C) -> C:
    """Return the config with a number for every learning rate that it leaves open."""
    trainer: Any = run.trainer
    if trainer.lr is None:
        rates = RL if isinstance(run, RunConfig) else SFT
        run = attrs.evolve(run, trainer=attrs.evolve(trainer, lr=rates.of(run.model)))
    if isinstance(run, RunConfig) and run.warm_start is not None and run.warm_start.lr is None:
        run = attrs.evolve(run, warm_start=attrs.evolve(run.warm_start, lr=WARM_START.of(run.model)))
    return run
