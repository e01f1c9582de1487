"""Policy versions and where their weights come from; needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from torch import nn


@attrs.frozen
class ModuleWeights:
    """Weights of a live module in this process; the engine copies them before `load_weights` returns."""

    module: nn.Module


@attrs.frozen
class DirectoryWeights:
    """Weights of a model directory that `from_pretrained` can read."""

    path: Path


WeightSource = ModuleWeights | DirectoryWeights
