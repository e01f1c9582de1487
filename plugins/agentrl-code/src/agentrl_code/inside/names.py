"""Names in a test's code: which are the test's own, which Python's, and which can only be the answer's."""

from __future__ import annotations

import ast
import builtins
import sys

UNCLEAR = {
    name: module
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
}
"""Names that tests compare with and often forget to import: an answer could give them a meaning of its own."""
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
