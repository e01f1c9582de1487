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


# Transfers: what `nccl` and `ipc` need to know about a kind of server. A `ServerProtocol` has them as the attributes
# `collective` and `handles`; one without cannot be published to in that way.


@attrs.frozen(kw_only=True)
class TensorInfo:
    """Description of one tensor that is sent, by its name in a checkpoint."""

    name: str
    dtype: str
    """By its name in torch."""
    shape: tuple[int, ...]


@attrs.frozen(kw_only=True)
class TransferGroup:
    """Process group of the trainer, which has rank 0, with all workers of all servers."""

    name: str
    """Unique in this process group's servers: a renewed group has another one."""
    backend: str
    """`nccl`, or `gloo` for tensors in the main memory."""
    address: str
    """Address at which the trainer's rendezvous listens."""
    port: int
    first_rank: int
    """Rank of the first worker of the server that is told; its other workers follow."""
    world_size: int
    unique_id: bytes | None = None
    """NCCL's own id of the group, for servers that join by it."""
    bucket_bytes: int
    """A bucket ends with the tensor by which it has more bytes than this."""
    packed: bool
    """Whether the tensors of a bucket are sent as one; else each is sent alone."""


class CollectiveTransfer(Protocol):
    """Commands by which one kind of server receives weights that the trainer broadcasts, in buckets, as bytes."""

    by_unique_id: bool
    """Whether its workers join an NCCL group by the group's id; else as a process group of torch."""
    at_once: bool
    """Whether one `receive` is about all tensors; else there is one for each bucket."""

    async def num_workers(self, server: WeightReceiver) -> int:
        """Return how many ranks a server takes."""
        ...

    async def label(self, server: WeightReceiver) -> str | None:
        """Return a server's name for its weights, by which a restarted one is told from the one in the group."""
        ...

    def join(self, group: TransferGroup) -> Sequence[Command]:
        """Return the commands that make all workers of a server join; their replies come when the trainer has, too."""
        ...

    def begin(self) -> Sequence[Command]:
        """Return the commands before the first tensor."""
        ...

    def receive(
        self, group: TransferGroup, tensors: Sequence[TensorInfo], label: str, *, is_last: bool
    ) -> Sequence[Command]:
        """Return the commands that make all workers receive tensors, while the trainer sends them."""
        ...

    def end(self, label: str) -> Sequence[Command]:
        """Return the commands after the last tensor: the prefix cache is dropped and the weights are named then."""
        ...

    def leave(self, group: TransferGroup) -> Sequence[Command]:
        """Return the commands that free a group which is not used any more."""
        ...


@attrs.frozen(kw_only=True)
class SharedTensor:
    """Tensor in a GPU's memory that another process on the same machine may open."""

    info: TensorInfo
    gpu: str
    """UUID of the GPU."""
    arguments: tuple[Any, ...]
    """Arguments of torch's `rebuild_cuda_tensor`; the seventh is the index of the GPU."""


class HandleTransfer(Protocol):
    """Commands by which one kind of server copies weights out of the trainer's GPU memory, on the same machine."""

    async def num_workers(self, server: WeightReceiver) -> int:
        """Return how many processes of a server open the tensors."""
        ...

    def begin(self) -> Sequence[Command]:
        """Return the commands before the tensors."""
        ...

    def open(self, shared: Sequence[Sequence[SharedTensor]], label: str) -> Sequence[Command]:
        """Return the commands that make each worker copy its own exports of all tensors. [worker][tensor]."""
        ...

    def end(self, label: str) -> Sequence[Command]:
        """Return the commands after the tensors, as for `CollectiveTransfer`."""
        ...
