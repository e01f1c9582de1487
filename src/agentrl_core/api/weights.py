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
