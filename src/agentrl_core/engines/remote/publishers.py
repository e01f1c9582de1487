"""Ways that core has to bring weights to model servers, by their names in `weights.publish`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core.weights.collective import CollectivePublisher
from agentrl_core.weights.ipc import HandlePublisher
from agentrl_core.weights.publishers import DirectoriesAlone, DiskPublisher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentrl_core.api.publishers import WeightPublisher

PUBLISHERS: Mapping[str, Callable[..., WeightPublisher]] = {
    "disk": DiskPublisher,
    "delta": DirectoriesAlone,
    "nccl": CollectivePublisher,
    "ipc": HandlePublisher,
}
