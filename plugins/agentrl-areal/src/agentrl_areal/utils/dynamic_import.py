"""Counterpart of `areal.utils.dynamic_import`: import an object by its dotted name."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["import_from_string"]


def import_from_string(module_path: str) -> Any:
    """Return the object with a name like `module.path.Name`; a module `areal.…` means `agentrl_areal.…`.

    Raises `ValueError` for a name of another form, `ImportError` if there is no such module, `AttributeError` if the
    module has no such name.
    """
    module, dot, name = module_path.rpartition(".") if isinstance(module_path, str) else ("", "", "")
    if not (module and dot and name):
        raise ValueError(f"Invalid module path: {module_path!r}. Expected a text like 'module.path.ObjectName'.")
    if module.partition(".")[0] == "areal":
        module = f"agentrl_{module}"
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"Failed to import module '{module}' from path '{module_path}': {error}") from error
    try:
        return getattr(found, name)
    except AttributeError as error:
        raise AttributeError(f"Module '{module}' has no attribute '{name}'.") from error
