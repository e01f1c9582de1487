"""Ways by which an engine brings weights to its servers, by name; here the way over a disk that they share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_core.api.publishers import Prepared, PublisherPlan
from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError
from agentrl_core.plugins.options import construct
from agentrl_core.weights.folder import WeightsFolder
from agentrl_core.weights.saving import folder_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentrl_core.api.publishers import WeightPublisher
    from agentrl_core.api.weights import WeightSource

OPTION = "weights.publish"


class DiskPublisher:
    """Writes a whole model directory for each version, which servers of the same file system read."""

    path = "disk"

    def __init__(self, *, plan: PublisherPlan) -> None:
        self._folder = WeightsFolder(plan.weights_dir, dtype=plan.dtype)

    def prepare(self, version: int, source: WeightSource) -> Prepared:
        """Write a live module's weights; a directory is read where it is."""
        directory = self._folder.write(version, source)
        return Prepared(bytes=folder_bytes(directory), directory=directory)

    async def deliver(self, *_: object) -> None:
        """Raise: the servers read the directory."""
        raise AssertionError("servers read a prepared directory by themselves")

    def close(self) -> None:
        """Remove the last version."""
        self._folder.close()


class DirectoriesAlone:
    """Passes on the directories that `agentrl serve` has put together from deltas."""

    path = "delta"

    def __init__(self, *, plan: PublisherPlan, full_every: int = 20, threads: int = 1) -> None:
        """Take the options of `agentrl train`, which computes the deltas."""

    def prepare(self, version: int, source: WeightSource) -> Prepared:  # noqa: ARG002 (the protocol's)
        """Return the directory; `ConfigError` for a live module."""
        if not isinstance(source, DirectoryWeights):
            raise ConfigError(
                f"{OPTION}: delta saves nothing within one process: a server reads whole directories. Use disk, "
                "nccl or ipc; or run `agentrl train` here and `agentrl serve` beside the server, to put them together"
            )
        return passed_on(source)

    async def deliver(self, *_: object) -> None:
        """Raise: the servers read the directory."""
        raise AssertionError("servers read a prepared directory by themselves")

    def close(self) -> None:
        """Do nothing."""


def passed_on(source: DirectoryWeights) -> Prepared:
    """Return the directory itself, for servers to read; a checkpoint, for example, from which a run resumes."""
    directory = Path.cwd() / source.path
    return Prepared(bytes=folder_bytes(directory), directory=directory)


def build_publisher(
    offered: Mapping[str, Callable[..., WeightPublisher]], chosen: Component | None, plan: PublisherPlan
) -> WeightPublisher:
    """Return the chosen publisher; `ConfigError` for an unknown name or wrong options."""
    chosen = chosen or Component("disk")
    if chosen.use not in offered:
        raise ConfigError(f"{OPTION}: expected {', '.join(offered)}, found {chosen.use!r}")
    built: WeightPublisher = construct(
        offered[chosen.use], chosen.options, name=chosen.use, where=OPTION, injected={"plan": plan}
    )
    return built
