"""Keep fp32 master copies of narrower weights: gradients are summed in them, and the optimizer changes them.

A bf16 weight has 8 significant bits, so a change below 1/512 of it rounds to no change: AdamW at a learning rate of
1e-6 moves few of a model's weights. The masters collect such changes. After each optimizer step they are rounded to
nearest into the module, which computes, is published and is saved; so an engine has exactly the learner's weights.

Bytes per trained weight:

- fp32: 4 for the weight and 8 for AdamW's moments; in a step 4 for the gradient. 16 in all.
- bf16: 2 for the weight, 4 for its master and 8 for the moments; in a step 4 for the gradient, which is fp32 here too.
  18 in all. Activations, and the copy in an engine, take half of the bytes that they take in fp32.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

_WIDE = frozenset({torch.float32, torch.float64})
"""Types of weights that need no master."""


@attrs.frozen(eq=False)
class _Narrow:
    """Weight of a narrow type, with its master."""

    weight: nn.Parameter
    master: nn.Parameter


class MasterWeights:
    """Trained weights of a module as the optimizer sees them: fp32 or wider, in the order of `parameters()`.

    A weight that is wide enough is its own master. A gradient of any other is moved into its master as soon as autograd
    has computed it, so that micro-batches are summed in fp32 and no narrow gradient stays in memory. A module may have
    one `MasterWeights` only.
    """

    def __init__(self, module: nn.Module) -> None:
        trained = [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
        self._narrow = {
            name: _Narrow(weight, nn.Parameter(weight.detach().float()))
            for name, weight in trained
            if weight.dtype not in _WIDE
        }
        self.parameters: Sequence[nn.Parameter] = [
            self._narrow[name].master if name in self._narrow else weight for name, weight in trained
        ]
        """Tensors for the optimizer, with the gradients of the module's weights."""
        for pair in self._narrow.values():
            pair.weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]  # torch does not type it
                partial(_move_gradient, pair.master)
            )

    @property
    def copies(self) -> Mapping[str, nn.Parameter]:
        """Name of each weight that has a master -> the master, which changes in place."""
        return {name: pair.master for name, pair in self._narrow.items()}

    def zero_grad(self) -> None:
        """Free all gradients."""
        for parameter in self.parameters:
            parameter.grad = None
        # After a backward pass that raised, a hook may not have run.
        for pair in self._narrow.values():
            pair.weight.grad = None

    @torch.no_grad()
    def round_into_module(self) -> None:
        """Round each master to the nearest number of its weight's type, ties to even."""
        for pair in self._narrow.values():
            pair.weight.copy_(pair.master)

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        """Set the masters, and round them into the module. `values`: name of each weight that has one -> new value."""
        for name, pair in self._narrow.items():
            pair.master.copy_(values[name])
        self.round_into_module()


def _move_gradient(master: nn.Parameter, weight: Tensor) -> None:
    """Add the gradient of a weight to that of its master, and free it. Called by autograd."""
    gradient, weight.grad = weight.grad, None
    if gradient is None:
        return
    if master.grad is None:
        master.grad = gradient.float()
    else:
        master.grad.add_(gradient)
