"""Choose the device that a model is placed on."""

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
