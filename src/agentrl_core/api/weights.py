"""Sources of weights that an engine can load: a live module or a model directory. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from torch import nn


@attrs.frozen
class ModuleWeights:
    """Weights of a live module in this process. The engine copies them before `load_weights` returns."""

    module: nn.Module


@attrs.frozen
class DirectoryWeights:
    """Weights of a model directory that `from_pretrained` can read."""

    path: Path


WeightSource = ModuleWeights | DirectoryWeights


@attrs.frozen(kw_only=True)
class Publication:
    """Delivery of one policy version to an engine: how it went, what it cost and what proves it.

    An engine's `load_weights` returns it, and the run shows it as the metrics `weights/…`.
    """

    version: int
    path: str
    """Way of the weights: `copy` (within this process), `disk`, `delta`, `nccl` or `ipc`."""
    bytes: int
    """Bytes that were written or sent, once, however many servers read them."""
    seconds: float
    """Time from the beginning of the publication until sampling went on with the new weights."""
    stall_s: float
    """Part of `seconds` in which nothing was sampled."""
    canary_gap: float | None = None
    """Largest |engine - learner| difference of the canary's logprobs under the new weights; None if not measured."""
    canary_change: float | None = None
    """Largest difference of the canary's logprobs between the learner's new and its old weights; None if not
    measured."""
