"""Names in a test's code: which are the test's own, which Python's, and which can only be the answer's."""

from __future__ import annotations

import ast
import builtins
import sys

UNCLEAR = {
    name: f"from {module} import {name}"
    for module, names in {
        "collections": "ChainMap Counter OrderedDict defaultdict deque namedtuple",
        "datetime": "datetime timedelta",
        "decimal": "Decimal",
        "fractions": "Fraction",
        "functools": "cmp_to_key partial reduce",
        "itertools": "chain combinations islice permutations",
        "math": "acos asin atan ceil cos fabs floor hypot inf isclose isinf isnan log log10 log2 nan pi sin sqrt tan",
    }.items()
    for name in names.split()
} | {
    "approx": "from pytest import approx",
    "deepcopy": "from copy import deepcopy",
    "np": "import numpy as np",
    "numpy": "import numpy",
    "pd": "import pandas as pd",
    "pytest": "import pytest",
    "torch": "import torch",
}
"""Names that tests compare with and often forget to import: an answer could give them a meaning of its own.

Each with the statement that says whose it is.
"""
UNSEEN = ("redirect_stdout", "redirect_stderr", "capsys", "capfd", "mock", "patch", "stdin", "stdout", "stderr")
"""Means to look into the process of the answer, which a test does not share."""


def of_answer(tree: ast.Module) -> set[str]:
    """Return the names that only the answer can define, and what is imported from the module `answer`."""
    free = _loaded(tree) - _bound(tree) - set(dir(builtins)) - of_modules(tree)
    return free | imported(tree)


def of_modules(tree: ast.Module) -> frozenset[str]:
    """Return the names of Python's modules that a test uses as such, `math.sqrt`, with or without an import."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    bases = {node.value.id for node in attributes if isinstance(node.value, ast.Name)}
    return frozenset(bases & set(sys.stdlib_module_names))


def of_imports(tree: ast.Module) -> frozenset[str]:
    """Return the names that a test imports from elsewhere than the answer."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return frozenset(found - imported(tree))


def only_defines(tree: ast.Module) -> bool:
    """Whether a test runs nothing by itself, as tests do that pytest or unittest would call."""
    return all(_defines(node) for node in tree.body)


def _defines(node: ast.stmt) -> bool:
    if isinstance(node, ast.If):  # `if __name__ == "__main__"`, which it is not
        return isinstance(node.test, ast.Compare) and "__name__" in _loaded(ast.Module([ast.Expr(node.test)], []))
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom)


def special_attributes(tree: ast.Module) -> frozenset[str]:
    """Return the attributes like `__name__` that a test itself asks for."""
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return frozenset(name for name in found if name.startswith("__"))


def used(tree: ast.Module) -> set[str]:
    """Return every name, attribute and imported name."""
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    return _loaded(tree) | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | imports


def _loaded(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def imported(tree: ast.Module) -> set[str]:
    """Return the names that a test imports from the module `answer`, or that name itself."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "answer":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name == "answer"}
    return found


def _bound(tree: ast.Module) -> set[str]:
    """Return the names that a test binds anywhere: by assignment, import, definition, loop or argument."""
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(name := getattr(node, "name", None), str):  # functions, classes, handlers, patterns
            bound.add(name)
    return bound
