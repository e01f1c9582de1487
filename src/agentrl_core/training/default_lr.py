"""Default learning rates: one for a pretrained model, and a larger one for a small model built from nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from agentrl_core.config.schema import RunConfig

if TYPE_CHECKING:
    from agentrl_core.config.sft import SftConfig

C = TypeVar("C", bound="RunConfig | SftConfig")


@attrs.frozen(kw_only=True)
class Rates:
    """Learning rates of AdamW on all weights."""

    built: float
    """Rate for a model that a builder (`model.use`) makes with random weights, which is small and untrained."""
    loaded: float
    """Rate for a pretrained model, whose abilities a large rate destroys within a few steps."""

    def of(self, *, pretrained: bool) -> float:
        """Return the rate for a model."""
        return self.loaded if pretrained else self.built


RL = Rates(built=4e-4, loaded=1e-6)
"""Rates of `agentrl run`; 1e-6 is also the default of TRL's GRPO and of verl."""
WARM_START = Rates(built=3e-3, loaded=2e-5)
SFT = Rates(built=1e-3, loaded=2e-5)
"""Rates of `agentrl sft`; 2e-5 is also the default of TRL's supervised fine-tuning."""


def with_rates(run: C, *, pretrained: bool) -> C:
    """Return the config with a number for every learning rate that it leaves open, by whether the model is trained."""
    trainer: Any = run.trainer
    if trainer.lr is None:
        rates = RL if isinstance(run, RunConfig) else SFT
        run = attrs.evolve(run, trainer=attrs.evolve(trainer, lr=rates.of(pretrained=pretrained)))
    if isinstance(run, RunConfig) and run.warm_start is not None and run.warm_start.lr is None:
        run = attrs.evolve(run, warm_start=attrs.evolve(run.warm_start, lr=WARM_START.of(pretrained=pretrained)))
    return run
