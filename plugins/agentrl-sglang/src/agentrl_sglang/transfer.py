"""Routes by which SGLang receives weights without a disk, read at 0.5.23.

Tensors are loaded between `/begin_weight_update` and `/end_weight_update`. Replicas by data parallelism, and pipeline
parallelism, are refused by the server for these routes.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentrl_core.api.remote import Command
from agentrl_core.errors import EngineError

if TYPE_CHECKING:
    from agentrl_core.api.publishers import SharedTensor, TensorInfo, TransferGroup, WeightReceiver

_BUCKET = "flattened_bucket"
"""Load format in which the tensors of a bucket come as one, as bytes."""


class _Routes:
    """Commands that both ways share."""

    async def num_workers(self, server: WeightReceiver) -> int:
        """Return the number of tensor-parallel ranks."""
        info = await server.get("/server_info") or {}
        if int(info.get("dp_size") or 1) > 1 or int(info.get("pp_size") or 1) > 1:
            raise EngineError(
                f"{server.url}: SGLang takes weights without a disk only without data and pipeline parallelism; set "
                "weights.publish: disk"
            )
        return int(info.get("tp_size") or 1)

    async def label(self, server: WeightReceiver) -> str | None:
        """Return the server's name for its weights."""
        label = (await server.get("/model_info") or {}).get("weight_version")
        return None if label is None else str(label)

    def begin(self) -> Sequence[Command]:
        """Open a session, in which weights may be loaded."""
        return (Command(path="/begin_weight_update"),)

    def end(self, label: str) -> Sequence[Command]:  # noqa: ARG002 (the last tensors bring it)
        """Close the session."""
        return (Command(path="/end_weight_update"),)


class SGLangCollective(_Routes):
    """Weights broadcast in a process group of torch (see `CollectiveTransfer`)."""

    by_unique_id = False
    at_once = False

    def join(self, group: TransferGroup) -> Sequence[Command]:
        """Have all workers join."""
        body = {
            "master_address": group.address,
            "master_port": group.port,
            "rank_offset": group.first_rank,
            "world_size": group.world_size,
            "group_name": group.name,
            "backend": group.backend,
        }
        return (Command(path="/init_weights_update_group", body=body),)

    def receive(
        self, group: TransferGroup, tensors: Sequence[TensorInfo], label: str, *, is_last: bool
    ) -> Sequence[Command]:
        """Have all workers receive one bucket; the last one flushes the prefix cache and names the weights."""
        body: dict[str, Any] = {
            "names": [tensor.name for tensor in tensors],
            "dtypes": [tensor.dtype for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
            "group_name": group.name,
            "flush_cache": is_last,
        }
        if group.packed:
            body["load_format"] = _BUCKET
        if is_last:
            body["weight_version"] = label
        return (Command(path="/update_weights_from_distributed", body=body),)

    def leave(self, group: TransferGroup) -> Sequence[Command]:
        """Free the group."""
        return (Command(path="/destroy_weights_update_group", body={"group_name": group.name}),)


class SGLangHandles(_Routes):
    """Weights that each worker opens in the trainer's GPU memory (see `HandleTransfer`)."""

    def open(self, shared: Sequence[Sequence[SharedTensor]], label: str) -> Sequence[Command]:
        """Have each worker load its exports; the server unpickles them, and allows torch's rebuild function alone."""
        body = {
            "serialized_named_tensors": [
                base64.b64encode(pickle.dumps([(one.info.name, _Opened(one)) for one in exports])).decode("ascii")
                for exports in shared
            ],
            "flush_cache": True,
            "weight_version": label,
        }
        return (Command(path="/update_weights_from_tensor", body=body),)


class _Opened:
    """Stands for a shared tensor, and is the tensor once it is unpickled."""

    def __init__(self, shared: SharedTensor) -> None:
        self._shared = shared

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        from torch.multiprocessing.reductions import rebuild_cuda_tensor

        # SGLang finds the GPU by its UUID: another process may count the GPUs otherwise.
        arguments = self._shared.arguments
        return rebuild_cuda_tensor, (*arguments[:6], self._shared.gpu, *arguments[7:])
