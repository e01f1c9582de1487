"""Choose the device that a model is placed on, and move tensors there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core.errors import ConfigError

if TYPE_CHECKING:
    import torch


def device_of(name: str, *, option: str) -> torch.device:
    """Return the device that a config names: `auto`, `cpu`, `cuda` or `cuda:N`; `auto` is the first GPU, else the CPU.

    Raises `ConfigError`, which begins with the name of the `option`, if this machine lacks the device.
    """
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda:0" if found else "cpu")
    device = torch.device(name)
    if device.type == "cuda":
        index = device.index or 0
        if index >= found:
            has = f"{found} GPUs" if found else "no GPU that torch can use"
            advice = "set it to auto or cpu" if not found else f"use cuda:0 to cuda:{found - 1}"
            raise ConfigError(f"{option}: {name} is not there: this machine has {has}; {advice}")
        return torch.device("cuda", index)
    return device


def moved(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Return a tensor of main memory on `device`; the tensor itself if it is there already.

    To a GPU it goes through pinned memory, so that this thread does not wait for the transfer, nor for what the GPU
    still has to compute before it.
    """
    import torch

    target = torch.device(device)
    if target.type == "cuda":
        return tensor.pin_memory().to(target, non_blocking=True)
    return tensor.to(target)
