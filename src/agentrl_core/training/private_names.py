"""Private names of torch and transformers that training needs; a version that lacks one gets an error that says so.

Read this module, and the notes of `branch_cache` and `gradient_checkpointing`, before a new version is supported.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

import torch

from agentrl_core.errors import ConfigError

READ_AT = {"torch": "2.13", "transformers": "5.23"}
"""Newest versions whose source was read for these names."""


@cache
def cpu_flash_attention() -> tuple[Any, Any]:
    """Return forward and backward of torch's flash attention on CPU: the only kernel there that gives log-sum-exps."""
    name = "_scaled_dot_product_flash_attention_for_cpu"
    return looked_up("torch", torch.ops.aten, name), looked_up("torch", torch.ops.aten, f"{name}_backward")


def attention_implementation(model: Any) -> Any:
    """Return what `set_attn_implementation` has set; transformers has no public way to read it."""
    return looked_up("transformers", model.config, "_attn_implementation")


def looked_up(package: str, owner: object, name: str) -> Any:
    """Return an attribute; raise `ConfigError` with the package's version if it is gone."""
    try:
        return getattr(owner, name)
    except AttributeError as error:
        raise changed(package, f"has no {name}") from error


def changed(package: str, what: str) -> ConfigError:
    """Return the error for a version of `package` that differs from those that were read."""
    known = READ_AT[package]
    return ConfigError(f"{package} {version(package)} {what}, which training needs; install {package} {known}")
