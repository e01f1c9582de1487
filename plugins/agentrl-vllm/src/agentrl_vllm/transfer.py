"""Routes by which vLLM receives weights without a disk, read at 0.32.

They exist with `VLLM_SERVER_DEV_MODE=1`, and work in a server that was started with `--weight-transfer-config`.
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


class _Routes:
    """Commands that both ways share."""

    async def num_workers(self, server: WeightReceiver) -> int:
        """Return the number of workers, over all replicas."""
        found = await server.get("/get_world_size")
        if found is None:
            raise EngineError(
                f"{server.url}: vLLM has no route /get_world_size; start it with VLLM_SERVER_DEV_MODE=1 and "
                '--weight-transfer-config \'{"backend": "nccl"}\' (or "ipc")'
            )
        return int(found["world_size"])

    async def label(self, server: WeightReceiver) -> str | None:
        """Return the server's name for its weights."""
        label = (await server.get("/weight_info") or {}).get("weight_version")
        return None if label is None else str(label)

    def begin(self) -> Sequence[Command]:
        """Prepare all workers to load weights layer by layer."""
        return (Command(path="/start_weight_update"),)

    def end(self, label: str) -> Sequence[Command]:
        """Finish loading, name the weights and drop the prefix cache, which holds keys and values of the old ones."""
        return (
            Command(path="/finish_weight_update", body={"weight_version": label}),
            Command(path="/reset_prefix_cache"),
        )


class VLLMCollective(_Routes):
    """Weights broadcast in an NCCL group, which vLLM's workers join by its id (see `CollectiveTransfer`)."""

    by_unique_id = True
    at_once = True

    def join(self, group: TransferGroup) -> Sequence[Command]:
        """Have all workers join, and tell them how tensors are packed."""
        info: dict[str, Any] = {
            "rank_offset": group.first_rank,
            "world_size": group.world_size,
            "packed": group.packed,
            "packed_buffer_size_bytes": group.bucket_bytes,
        }
        if group.unique_id is not None:
            info["nccl_unique_id_b64"] = base64.b64encode(group.unique_id).decode("ascii")
        else:
            info |= {"master_address": group.address, "master_port": group.port}
        return (Command(path="/init_weight_transfer_engine", body={"init_info": info}),)

    def receive(
        self,
        group: TransferGroup,  # noqa: ARG002 (the protocol's)
        tensors: Sequence[TensorInfo],
        label: str,  # noqa: ARG002
        *,
        is_last: bool,  # noqa: ARG002
    ) -> Sequence[Command]:
        """Have all workers receive all tensors, in buckets that they count by themselves."""
        return (Command(path="/update_weights", body={"update_info": _described(tensors)}),)

    def leave(self, group: TransferGroup) -> Sequence[Command]:  # noqa: ARG002 (the protocol's)
        """Free the group."""
        return (Command(path="/shutdown_weight_transfer_engine"),)


class VLLMHandles(_Routes):
    """Weights that each worker opens in the trainer's GPU memory (see `HandleTransfer`).

    vLLM unpickles the handles only with `VLLM_ALLOW_INSECURE_SERIALIZATION=1`.
    """

    def begin(self) -> Sequence[Command]:
        """Tell the workers that each tensor is opened by itself, then prepare them."""
        told = Command(path="/init_weight_transfer_engine", body={"init_info": {"packed": False}})
        return (told, *super().begin())

    def open(self, shared: Sequence[Sequence[SharedTensor]], label: str) -> Sequence[Command]:  # noqa: ARG002
        """Have each worker open its own exports."""

        def told(exports: Sequence[SharedTensor]) -> dict[str, Any]:
            handles = [{one.gpu: one.arguments} for one in exports]
            pickled = base64.b64encode(pickle.dumps(handles)).decode("ascii")
            return _described([one.info for one in exports]) | {"ipc_handles_pickled": pickled}

        info: Any = told(shared[0]) if len(shared) == 1 else [told(exports) for exports in shared]
        return (Command(path="/update_weights", body={"update_info": info}),)


def _described(tensors: Sequence[TensorInfo]) -> dict[str, Any]:
    return {
        "names": [tensor.name for tensor in tensors],
        "dtype_names": [tensor.dtype for tensor in tensors],
        "shapes": [list(tensor.shape) for tensor in tensors],
    }
