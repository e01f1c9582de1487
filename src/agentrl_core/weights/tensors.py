"""Name a module's weights as a checkpoint does, and sort them into buckets, for publishers that send tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from agentrl_core.api.publishers import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch


def checkpoint_tensors(module: Any, dtype: str | None) -> list[tuple[str, torch.Tensor]]:
    """Return names and tensors as `save_pretrained` would write them: each tied weight once, under its main name.

    Servers read these names as those of a checkpoint. `dtype` is as for `save_module`; weights that have it already
    are not copied.
    """
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    from agentrl_core.weights.saving import state_in

    state: dict[str, Any] = module.state_dict() if dtype is None else state_in(module, dtype)
    for name in module._keys_to_ignore_on_save or ():  # noqa: SLF001 (no public name)
        state.pop(name, None)
    state = revert_weight_conversion(module, remove_tied_weights_from_state_dict(state, module))
    return [(name, tensor.detach().contiguous()) for name, tensor in state.items()]


def info_of(name: str, tensor: torch.Tensor) -> TensorInfo:
    """Return the description of a tensor."""
    return TensorInfo(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))


def buckets(
    tensors: Sequence[tuple[str, torch.Tensor]], bucket_bytes: int
) -> Iterator[Sequence[tuple[str, torch.Tensor]]]:
    """Yield the tensors in order, in buckets that end with the tensor by which they have more than `bucket_bytes`."""
    bucket: list[tuple[str, torch.Tensor]] = []
    size = 0
    for name, tensor in tensors:
        bucket.append((name, tensor))
        size += math.prod(tensor.shape) * tensor.itemsize
        if size > bucket_bytes:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


def packed(bucket: Sequence[tuple[str, torch.Tensor]]) -> torch.Tensor:
    """Return the bytes of all tensors of a bucket, one after the other, as one tensor."""
    import torch

    return torch.cat([tensor.reshape(-1).view(torch.uint8) for _, tensor in bucket])
