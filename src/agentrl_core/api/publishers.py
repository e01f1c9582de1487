"""`WeightPublisher`: the protocol of ways by which weights reach model servers; `RemoteEngine` uses one of them.

Core has `disk`, `nccl` and `ipc`. A package adds another way, such as peer to peer by RDMA, with an entry in the
`publishers` of its engine class; `weights: {publish: NAME}` then chooses it:

    class FleetEngine(RemoteEngine):
        protocol = Fleet()
        publishers = {**RemoteEngine.publishers, "p2p": PeerToPeer}

It is called with the keyword arguments of `PublisherPlan`, and with the options that the config writes beside `use`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    from agentrl_core.api.remote import Command, ServerProtocol
    from agentrl_core.api.weights import WeightSource


@attrs.frozen(kw_only=True)
class PublisherPlan:
    """Facts of a run from which its publisher is built."""

    protocol: ServerProtocol
    """Wire format of the servers."""
    dtype: str | None
    """Type that the weights are sent in, by its name in torch; None: the module's own."""
    weights_dir: Path | None
    """Folder that the servers see under the same path; None: the system's temporary folder."""
    timeout_s: float
    """Longest time that all servers together may take to receive one version."""


@attrs.frozen(kw_only=True)
class Prepared:
    """Weights of one version that are ready to be delivered."""

    bytes: int
    """Bytes written or to be sent, once, however many servers get them."""
    directory: Path | None = None
    """Model directory for the servers to read; None if `deliver` brings the weights to them."""


class WeightReceiver(Protocol):
    """One paused server that weights are delivered to. Its methods raise `EngineError` for any failure."""

    @property
    def url(self) -> str:
        """The server's address."""
        ...

    async def send(self, commands: Sequence[Command]) -> None:
        """Send commands one after the other, each with as long a silence as loading weights may take."""
        ...

    async def get(self, path: str) -> Mapping[str, Any] | None:
        """Return the JSON object at `path`; None if the server has no such route."""
        ...


class WeightPublisher(Protocol):
    """Brings the weights of one policy version after the other to all servers of an engine.

    Each version takes two calls: `prepare` while the servers still sample, then `deliver` while they are paused. Only
    the second one stalls sampling, so as much as possible belongs into the first.
    """

    path: str
    """Name of the way, for `Publication.path`."""

    def prepare(self, version: int, source: WeightSource) -> Prepared:
        """Write or stage the weights; blocks, and is called on a thread of its own.

        The learner does not change the weights before the version is delivered. Raises `EngineError` if the weights are
        not finite or cannot be written.
        """
        ...

    async def deliver(self, version: int, label: str, servers: Sequence[WeightReceiver]) -> None:
        """Give the prepared weights to all `servers`, which name them `label`; not called for a `Prepared.directory`.

        Servers drop their prefix caches. Raises `EngineError` if one of them has not got the weights.
        """
        ...

    def close(self) -> None:
        """Free what the publisher holds, such as files and process groups; idempotent."""
        ...
