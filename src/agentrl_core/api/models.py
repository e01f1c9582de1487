"""Facts that model builders tell about the models that they write."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

_MARK = "__agentrl_pretrained__"

F = TypeVar("F", bound=Callable[..., object])


def pretrained(builder: F) -> F:
    """Mark a model builder as one whose models are trained already, and return it.

    Defaults then follow `model: {path: …}`: a small learning rate, and no advice to warm the model up. Builders
    without the mark write random weights.

        @pretrained
        def build(directory: Path) -> None:
            shutil.copytree(WEIGHTS, directory, dirs_exist_ok=True)
    """
    setattr(builder, _MARK, True)
    return builder


def is_pretrained(builder: object) -> bool:
    """Return whether `builder`, or the function whose arguments it binds, is marked by `pretrained`."""
    while isinstance(builder, functools.partial):
        builder = builder.func
    return getattr(builder, _MARK, False) is True
