"""A test's code, run apart from the answer, whose objects it sees as proxies: it alone says whether it passed."""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
import types
from typing import Any

from agentrl_code.inside import names
from agentrl_code.inside.proxies import Answer, Proxy, RefusedError, named
from agentrl_code.inside.values import Channel

PASSED = 17
"""Exit code of a test that passed, unlike any by accident."""
_HOLD, _RELEASE = "__hold__", "__release__"


def judge(test: str, descriptor: int) -> int:
    """Run a test against the answer behind `descriptor`; return PASSED, or 1 with the reason on stderr."""
    tree = ast.parse(test)
    answer = Answer(Channel(descriptor), names.special_attributes(tree))
    why, passed = "", False
    try:
        module = answer.ask("module")
        if not isinstance(module, Proxy):
            answer.refuse("the program sent no module")
        _make_importable(module)
        namespace = _Names(module, names.of_modules(tree), names.of_imports(tree))
        namespace |= {"__name__": "test", "__builtins__": builtins, _HOLD: answer.hold, _RELEASE: answer.release}
        guarded = ast.fix_missing_locations(_HoldChanges().visit(tree))
        answer.asked = 0
        exec(compile(guarded, "test.py", "exec"), namespace)  # noqa: S102 - a test, in the sandbox
        passed = answer.asked > 0
        why = "" if passed else "the test asked nothing of the answer"
    except RefusedError:
        pass  # `refusal` has it
    except BaseException as error:  # noqa: BLE001 - whatever it is, the test did not pass
        why = _one_line(error)
    sys.stdout.flush()
    if passed and not answer.refusal:  # no text decides: the answer has a part in those of its exceptions
        return PASSED
    sys.stderr.write(f"{answer.refusal or why or 'it failed'}\n")
    sys.stderr.flush()
    return 1


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ").replace("\n", " ")


def _make_importable(module: Proxy) -> None:
    """Let `import answer` and `from answer import f` work."""
    stand_in = types.ModuleType("answer")
    stand_in.__getattr__ = lambda name: named(getattr(module, name), name)  # type: ignore[method-assign]
    sys.modules["answer"] = stand_in


class _Names(dict[str, Any]):
    """A test's names; one that it neither defines nor imports is Python's, else the answer's."""

    def __init__(self, module: Proxy, modules: frozenset[str], imports: frozenset[str]) -> None:
        super().__init__()
        self._module, self._modules, self._imports = module, modules, imports

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) or name in self._imports:  # an import that failed is not the answer's chance
            raise KeyError(name)
        if name in self._modules:
            return importlib.import_module(name)
        try:
            return named(getattr(self._module, name), name)
        except AttributeError:
            raise KeyError(name) from None


class _HoldChanges(ast.NodeTransformer):
    """Wrap each assert, so that what the answer does to its arguments shows after it, not in its midst."""

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        hold, release = (ast.Expr(ast.Call(ast.Name(name, ast.Load()), [], [])) for name in (_HOLD, _RELEASE))
        return ast.copy_location(ast.Try(body=[hold, node], handlers=[], orelse=[], finalbody=[release]), node)
