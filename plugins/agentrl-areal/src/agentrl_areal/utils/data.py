"""Counterpart of `areal.utils.data`: concatenate the dicts of tensors that workflows return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["concat_padded_tensors"]


def concat_padded_tensors(tensor_dicts: Sequence[Mapping[str, Any]], pad_value: float = 0.0) -> dict[str, Any]:
    """Return one dict whose tensors hold the rows of all, padded at the end to the longest.

    `attention_mask` is always padded with 0. Lists are concatenated; of other values the first dict's is kept. Raises
    `ValueError` if the dicts have different keys.
    """
    import torch

    if len(tensor_dicts) <= 1:
        return dict(tensor_dicts[0]) if tensor_dicts else {}
    first = tensor_dicts[0]
    for index, other in enumerate(tensor_dicts):
        if other.keys() != first.keys():
            raise ValueError(
                f"concat_padded_tensors: dict[{index}] has different keys than dict[0]. Expected {sorted(first)}, got "
                f"{sorted(other)}"
            )
    joined: dict[str, Any] = {}
    for key, value in first.items():
        values = [item[key] for item in tensor_dicts]
        if isinstance(value, torch.Tensor):
            joined[key] = _rows(values, 0.0 if key == "attention_mask" else pad_value)
        elif isinstance(value, list):
            joined[key] = [entry for item in values for entry in item]
        else:
            joined[key] = value
    return joined


def _rows(tensors: Sequence[Any], pad_value: float) -> Any:
    import torch
    from torch.nn import functional

    dimensions = {tensor.ndim for tensor in tensors}
    if len(dimensions) > 1:
        raise ValueError(f"concat_padded_tensors: tensors of {sorted(dimensions)} dimensions cannot be concatenated")
    longest = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]
    padded = []
    for tensor in tensors:
        missing = [most - size for most, size in zip(longest, tensor.shape[1:], strict=True)]
        # `pad` lists the dimensions from the last one on, with a count before and a count after each.
        pad = [count for most in reversed(missing) for count in (0, most)]
        padded.append(functional.pad(tensor, pad, value=pad_value) if any(missing) else tensor)
    return torch.cat(padded)
