"""Find NaN and infinite weights of a model, before they are published or saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def not_finite(model: nn.Module) -> list[str]:
    """Return the names of the model's weights and buffers that contain NaN or infinite numbers.

    Costs 0.1 to 0.2 CPU seconds per GB.
    """
    import torch

    # The smallest and the largest number of a tensor show NaN and infinity in one pass without a copy.
    return [
        name
        for name, tensor in {**dict(model.named_buffers()), **dict(model.named_parameters())}.items()
        if tensor.is_floating_point()
        and tensor.numel()
        and not torch.isfinite(torch.stack(torch.aminmax(tensor.detach()))).all()
    ]
