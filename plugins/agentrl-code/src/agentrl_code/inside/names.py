"""Analysis of the names in a test's code: the test's own, Python's own, and those that only the answer can define.

The trainer uses it to refuse unsound tests; the process that runs a test uses it to look names up.
"""

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
"""Name -> import statement, for names that tests compare with and often forget to import.

Without the import the name would be looked up in the answer, which could define an `isclose` that is always true.
"""
UNSEEN = ("redirect_stdout", "redirect_stderr", "capsys", "capfd", "mock", "patch", "stdin", "stdout", "stderr")
"""Names of tools that observe or change the process that they run in. A test does not share the answer's process."""


def of_answer(tree: ast.Module) -> set[str]:
    """Return the names that only the answer can define, and the names imported from the module `answer`."""
    free = _loaded(tree) - _bound(tree) - set(dir(builtins)) - of_modules(tree)
    return free | imported(tree)


def of_modules(tree: ast.Module) -> frozenset[str]:
    """Return the standard modules of which a test uses an attribute, as in `math.sqrt`, imported or not."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    bases = {node.value.id for node in attributes if isinstance(node.value, ast.Name)}
    return frozenset(bases & set(sys.stdlib_module_names))


def of_imports(tree: ast.Module) -> frozenset[str]:
    """Return the names that a test imports from modules other than `answer`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return frozenset(found - imported(tree))


def only_defines(tree: ast.Module) -> bool:
    """Return whether a test runs nothing by itself, such as functions written for pytest or unittest to call."""
    return all(_defines(node) for node in tree.body)


def _defines(node: ast.stmt) -> bool:
    # The block under `if __name__ == "__main__"` does not run: here a test's `__name__` is "test".
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Compare) and "__name__" in _loaded(ast.Module([ast.Expr(node.test)], []))
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom)


def special_attributes(tree: ast.Module) -> frozenset[str]:
    """Return the attributes with leading double underscores, such as `__name__`, that the test's code itself names."""
    found = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return frozenset(name for name in found if name.startswith("__"))


def used(tree: ast.Module) -> set[str]:
    """Return every name, attribute and imported name in a test."""
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    return _loaded(tree) | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | imports


def _loaded(tree: ast.Module) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def imported(tree: ast.Module) -> set[str]:
    """Return the names that a test imports from the module `answer`, and `answer` if it imports the module."""
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
