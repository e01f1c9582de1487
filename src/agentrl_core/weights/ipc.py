"""Let model servers on the same machine copy weights out of the trainer's GPU memory: `weights.publish: ipc`.

It has not been run on a GPU: only its requests have been checked, against the servers' schemas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from agentrl_core.api.publishers import Prepared, PublisherPlan, SharedTensor
from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.errors import ConfigError
from agentrl_core.weights.publishers import OPTION, passed_on
from agentrl_core.weights.saving import check_module
from agentrl_core.weights.tensors import checkpoint_tensors, info_of

if TYPE_CHECKING:
    import torch

    from agentrl_core.api.publishers import HandleTransfer, WeightReceiver
    from agentrl_core.api.weights import WeightSource


def share(name: str, tensor: torch.Tensor) -> SharedTensor:
    """Export a tensor on a GPU once; the worker that opens it must be one alone, as CUDA counts the openings."""
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    _, arguments = reduce_tensor(tensor)  # type: ignore[no-untyped-call]
    gpu = str(torch.cuda.get_device_properties(tensor.device).uuid)
    return SharedTensor(info=info_of(name, tensor), gpu=gpu, arguments=tuple(arguments))


class HandlePublisher:
    """Tells servers where in the trainer's GPU memory the weights are; nothing is sent but these places."""

    path = "ipc"

    def __init__(self, *, plan: PublisherPlan) -> None:
        transfer: HandleTransfer | None = getattr(plan.protocol, "handles", None)
        if transfer is None:
            raise ConfigError(f"{OPTION}: {plan.protocol.name} has no such way here; use disk")
        self._transfer, self._plan = transfer, plan
        self._tensors: list[tuple[str, torch.Tensor]] = []
        self._share: Callable[[str, torch.Tensor], SharedTensor] = share

    def prepare(self, version: int, source: WeightSource) -> Prepared:
        """Check a live module's weights, and convert them if they are published in another type."""
        if isinstance(source, DirectoryWeights):
            return passed_on(source)
        check_module(source.module, version)
        self._tensors = checkpoint_tensors(source.module, self._plan.dtype)
        if self._share is share and (wrong := [name for name, tensor in self._tensors if not tensor.is_cuda]):
            raise ConfigError(
                f"{OPTION}: ipc shares a GPU's memory, but {wrong[0]} is not in it; set trainer.device: cuda, or "
                "use disk"
            )
        return Prepared(bytes=sum(tensor.nbytes for _, tensor in self._tensors))

    async def deliver(self, version: int, label: str, servers: Sequence[WeightReceiver]) -> None:  # noqa: ARG002
        """Have all servers copy the prepared tensors."""
        # The tensors stay referenced until all servers have copied them: an export does not keep its memory.
        try:
            results = await asyncio.gather(
                *(self._deliver(label, server) for server in servers), return_exceptions=True
            )
        finally:
            self._tensors = []
            _collect()
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def close(self) -> None:
        """Drop the tensors."""
        self._tensors = []

    async def _deliver(self, label: str, server: WeightReceiver) -> None:
        workers = await self._transfer.num_workers(server)
        await server.send(self._transfer.begin())
        shared = [[self._share(name, tensor) for name, tensor in self._tensors] for _ in range(workers)]
        await server.send(self._transfer.open(shared, label))
        await server.send(self._transfer.end(label))


def _collect() -> None:
    """Free the exports that all workers have closed."""
    import torch

    if torch.cuda.is_available():
        _any: Any = torch.cuda
        _any.ipc_collect()
