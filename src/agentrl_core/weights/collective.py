"""Broadcast weights to the workers of all model servers, from GPU to GPU: `weights.publish: nccl`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs

from agentrl_core.api.publishers import Prepared, PublisherPlan, TransferGroup
from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.errors import ConfigError, EngineError
from agentrl_core.weights.groups import Broadcasts, NcclGroup, Rendezvous, TorchGroup, unique_id
from agentrl_core.weights.publishers import OPTION, passed_on
from agentrl_core.weights.saving import check_module
from agentrl_core.weights.tensors import buckets, checkpoint_tensors, info_of, packed

if TYPE_CHECKING:
    import torch

    from agentrl_core.api.publishers import CollectiveTransfer, WeightReceiver
    from agentrl_core.api.weights import WeightSource

log = logging.getLogger(__name__)

_LEAVE_S = 10.0
"""Longest wait for servers to leave a group that is not used any more."""


class CollectivePublisher:
    """Sends weights in a process group of the trainer and the workers of all servers.

    `address`: the trainer's address, at which the servers' workers reach it. `port`: of the rendezvous; 0 takes a free
    one. `backend`: `nccl`; or `gloo`, for weights in the main memory, which SGLang takes. `bucket_mb`: tensors are sent
    together up to about this size.

    The group is made with the first version, and anew after a server has been restarted, joined or left.
    """

    path = "nccl"

    def __init__(
        self,
        *,
        plan: PublisherPlan,
        address: str = "127.0.0.1",
        port: int = 0,
        backend: Literal["nccl", "gloo"] = "nccl",
        bucket_mb: int = 1024,
    ) -> None:
        transfer: CollectiveTransfer | None = getattr(plan.protocol, "collective", None)
        if transfer is None:
            raise ConfigError(f"{OPTION}: {plan.protocol.name} has no such way here; use disk")
        if bucket_mb < 1:
            raise ValueError(f"bucket_mb: expected at least 1, found {bucket_mb}")
        self._transfer, self._plan = transfer, plan
        self._address, self._port, self._backend, self._bucket_bytes = address, port, backend, bucket_mb << 20
        self._tensors: list[tuple[str, torch.Tensor]] = []
        self._group: _Group | None = None
        self._rendezvous: Rendezvous | None = None
        self._label: str | None = None

    def prepare(self, version: int, source: WeightSource) -> Prepared:
        """Check a live module's weights, and convert them if they are sent in another type."""
        if isinstance(source, DirectoryWeights):
            return passed_on(source)
        check_module(source.module, version)
        self._tensors = checkpoint_tensors(source.module, self._plan.dtype)
        if self._backend == "nccl" and (wrong := [name for name, tensor in self._tensors if not tensor.is_cuda]):
            raise ConfigError(
                f"{OPTION}: nccl sends from a GPU, but {wrong[0]} is not on one; set trainer.device: cuda, or use disk"
            )
        return Prepared(bytes=sum(tensor.nbytes for _, tensor in self._tensors))

    async def deliver(self, version: int, label: str, servers: Sequence[WeightReceiver]) -> None:
        """Broadcast the prepared tensors to all servers."""
        try:
            group = await self._joined(servers)
            await self._on_all(group, lambda _: self._transfer.begin())
            parts = list(buckets(self._tensors, self._bucket_bytes))
            steps = [parts] if self._transfer.at_once else [[part] for part in parts]
            for number, step in enumerate(steps, 1):
                infos = [info_of(*named) for part in step for named in part]

                def receive(of: TransferGroup, infos: Any = infos, number: int = number) -> Any:
                    return self._transfer.receive(of, infos, label, is_last=number == len(steps))

                await self._together(
                    [server.send(receive(of)) for server, of in group.members],
                    lambda step=step, group=group: _send(group, step),  # type: ignore[misc]
                )
            await self._on_all(group, lambda _: self._transfer.end(label))
        except BaseException:
            self._group = None  # its members wait at different points: it cannot be used again
            raise
        finally:
            self._tensors = []
        self._label = label
        log.info("version %d was broadcast to %d servers", version, len(servers))

    def close(self) -> None:
        """Leave the group."""
        group, self._group, self._rendezvous = self._group, None, None
        if group is not None:
            group.broadcasts.close()

    async def _joined(self, servers: Sequence[WeightReceiver]) -> _Group:
        """Return the group of exactly these servers; make it if there is none, or one of them was restarted."""
        if self._group is not None:
            urls = [server.url for server, _ in self._group.members]
            labels = await asyncio.gather(*map(self._transfer.label, servers))
            if urls == [server.url for server in servers] and set(labels) == {self._label}:
                return self._group
            await self._leave(self._group)
        self._group = await self._make(servers)
        return self._group

    async def _make(self, servers: Sequence[WeightReceiver]) -> _Group:
        counts = await asyncio.gather(*map(self._transfer.num_workers, servers))
        by_id = self._transfer.by_unique_id and self._backend == "nccl"
        timeout_s = self._plan.timeout_s
        self._rendezvous = None  # the last group's, which would keep its port
        if not by_id:
            self._rendezvous = await call_on_thread(self._listen, name="weights")
        whole = TransferGroup(
            name=f"agentrl-{uuid.uuid4().hex[:12]}",
            backend=self._backend,
            address=self._address,
            port=self._rendezvous.port if self._rendezvous is not None else self._port,
            first_rank=1,
            world_size=1 + sum(counts),
            unique_id=unique_id() if by_id else None,
            bucket_bytes=self._bucket_bytes,
            # A tensor of another type may begin between two of its elements, where it cannot be read.
            packed=len({tensor.dtype for _, tensor in self._tensors}) == 1,
        )
        firsts = [1 + sum(counts[:index]) for index in range(len(counts))]
        members = [
            (server, attrs.evolve(whole, first_rank=first)) for server, first in zip(servers, firsts, strict=True)
        ]
        device = self._tensors[0][1].device

        def join() -> Broadcasts:
            if whole.unique_id is not None:
                return NcclGroup(whole.unique_id, world_size=whole.world_size, device=device)
            assert self._rendezvous is not None  # noqa: S101 (made above)
            return TorchGroup(
                self._rendezvous,
                name=whole.name,
                backend=whole.backend,
                world_size=whole.world_size,
                timeout_s=timeout_s,
            )

        broadcasts: Broadcasts = await self._together(
            [server.send(self._transfer.join(of)) for server, of in members], join
        )
        return _Group(broadcasts=broadcasts, members=members)

    def _listen(self) -> Rendezvous:
        try:
            return Rendezvous(self._address, self._port, self._plan.timeout_s)
        except OSError as error:
            where = f"{self._address}:{self._port}" if self._port else self._address
            raise EngineError(f"{OPTION}: no rendezvous at {where}: {error}; set address and port there") from error

    async def _leave(self, group: _Group) -> None:
        """Have all members leave; those that were restarted are in it no more."""
        self._group = None
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self._on_all(group, self._transfer.leave)
        with contextlib.suppress(RuntimeError):
            group.broadcasts.close()

    async def _on_all(self, group: _Group, commands: Callable[[TransferGroup], Sequence[Any]]) -> None:
        results = await asyncio.gather(
            *(server.send(commands(of)) for server, of in group.members), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _together(self, calls: Sequence[Coroutine[Any, Any, None]], blocking: Callable[[], Any]) -> Any:
        """Make calls to servers while this process does its part on a thread; return what that returns.

        If a server fails, its part never comes, and the thread waits for it until the group's own timeout. So the error
        is raised at once.
        """
        own = asyncio.ensure_future(call_on_thread(blocking, name="weights"))
        tasks = [own, *map(asyncio.ensure_future, calls)]
        done, pending = await asyncio.wait(tasks, timeout=self._plan.timeout_s, return_when=asyncio.FIRST_EXCEPTION)
        for task in pending:
            task.cancel()
        for task in done:
            error = task.exception()
            if isinstance(error, EngineError) or (error is not None and not isinstance(error, RuntimeError)):
                raise error
            if error is not None:
                raise EngineError(f"{OPTION}: {self._backend}: {error}") from error
        if pending:
            raise EngineError(
                f"{OPTION}: the servers and the trainer did not meet in {self._plan.timeout_s:g} s (engine."
                f"load_timeout_s); do the servers reach {self._address}?"
            )
        return own.result()


@attrs.frozen(kw_only=True)
class _Group:
    """Group that all members have joined."""

    broadcasts: Broadcasts
    members: Sequence[tuple[WeightReceiver, TransferGroup]]
    """Each server with the group as it is told to it."""


def _send(group: _Group, parts: Sequence[Sequence[tuple[str, torch.Tensor]]]) -> None:
    """Broadcast buckets; blocks until they are sent."""
    is_packed = group.members[0][1].packed
    for part in parts:
        for tensor in [packed(part)] if is_packed else [tensor for _, tensor in part]:
            group.broadcasts.broadcast(tensor)
