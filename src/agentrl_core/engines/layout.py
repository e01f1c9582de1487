"""Memory layout of the decoder's weights: where each kind of tensor lies, and in which order of its numbers."""

from __future__ import annotations

from typing import Literal

import attrs
import torch
from torch import Tensor

Kind = Literal["vector", "matrix", "head"]
"""Kind of a weight: `matrix` and `head` come as [out, in], `head` is the one that gives the logits."""

PACKED_SIZE = 2**20
"""Numbers per layer from which on matrices are stored in oneDNN's own layout.

Measured on an AMD EPYC with AVX-512: packed products are 2 to 3 times as fast as MKL's from 2**19 multiplications on,
but each call costs 10 us more. And each new number of rows costs 2 to 5 ms once, which a tiny model never earns back.
"""


@attrs.frozen(kw_only=True)
class Layout:
    """Places the weights of one decoder."""

    device: torch.device
    dtype: torch.dtype
    packed: bool
    """Whether matrices are in oneDNN's layout (CPU only)."""

    @classmethod
    def of(cls, *, device: torch.device, dtype: torch.dtype, layer_size: int) -> Layout:
        """Return the fastest layout for a model whose layers have `layer_size` numbers each."""
        return cls(
            device=device, dtype=dtype, packed=device.type == "cpu" and layer_size >= PACKED_SIZE and _packs(dtype)
        )

    @property
    def head_dtype(self) -> torch.dtype:
        """Data type of the head: float32 on a CPU, whose products would round the logits of a narrower one."""
        return torch.float32 if self.device.type == "cpu" else self.dtype

    def place(self, kind: Kind, tensor: Tensor) -> Tensor:
        """Return a new tensor with the weights of `tensor`, for use by the decoder."""
        if self.packed and kind != "vector":
            return self._pack(kind, tensor)
        if kind == "matrix" and self.device.type == "cpu" and self.dtype == torch.float32:
            # MKL multiplies few rows faster by a matrix that lies in memory as it is multiplied, [in, out].
            return tensor.to(self.dtype).t().clone(memory_format=torch.contiguous_format)
        moved = self._rounded(kind, tensor).to(device=self.device, copy=True).contiguous()
        return moved.t() if kind == "matrix" else moved

    def replace(self, kind: Kind, target: Tensor, tensor: Tensor) -> None:
        """Copy the weights of `tensor` into `target`, which `place` returned for the same weight."""
        if self.packed and kind != "vector":
            target.copy_(self._pack(kind, tensor))
        else:
            source = self._rounded(kind, tensor)
            target.copy_(source.t() if kind == "matrix" else source)

    def _rounded(self, kind: Kind, tensor: Tensor) -> Tensor:
        """Return the weights in their data type; those of a float32 head have been rounded to that of the others."""
        rounded = tensor.to(self.dtype)
        return rounded.to(self.head_dtype) if kind == "head" else rounded

    def _pack(self, kind: Kind, tensor: Tensor) -> Tensor:
        plain = self._rounded(kind, tensor).to(self.device).contiguous()
        # None: no hint at the number of rows. A hint of 16 or 256 is not faster at any number.
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(plain, None)  # noqa: SLF001 (no public name)
        return packed


_OPERATORS = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
"""Operators of oneDNN, which have no public names in torch; without them, matrices stay as they are."""


def _packs(dtype: torch.dtype) -> bool:
    """Return whether oneDNN multiplies this data type on this processor."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS):
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 (no public name)
