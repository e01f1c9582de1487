"""Execution of a test's Python code, in a sandbox without the answer; decides whether the test passed.

The test's names lead to the answer's functions and objects through proxies (`proxies.py`), which ask the answer's
process. The verdict is the exit code of this process, which the answer cannot reach.
"""

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
"""Exit code of a test that passed; not 0, which a process may also return by accident."""
_HOLD, _RELEASE = "__hold__", "__release__"


def judge(test: str, descriptor: int) -> int:
    """Run a test against the answer at the other end of the socket `descriptor`.

    Return PASSED, or 1 after writing the reason to stderr.
    """
    tree = ast.parse(test)
    answer = Answer(Channel(descriptor), names.special_attributes(tree))
    why, passed = "", False
    try:
        module = answer.ask("module")
        if not isinstance(module, Proxy):
            answer.refuse("the process of the program sent no module")
        _make_importable(module)
        namespace = _Names(module, names.of_modules(tree), names.of_imports(tree))
        namespace |= {"__name__": "test", "__builtins__": builtins, _HOLD: answer.hold, _RELEASE: answer.release}
        guarded = ast.fix_missing_locations(_HoldChanges().visit(tree))
        answer.asked = 0
        exec(compile(guarded, "test.py", "exec"), namespace)  # noqa: S102 - a test, in the sandbox
        passed = answer.asked > 0
        why = "" if passed else "the test never used the answer"
    except RefusedError:
        pass  # the reason is in `answer.refusal`
    except BaseException as error:  # noqa: BLE001 - any error means that the test did not pass
        why = _one_line(error)
    sys.stdout.flush()
    # The verdict must not depend on `why` being empty: an answer can raise an exception whose class has no name and
    # whose text is empty. `refusal` counts even if the test has caught the error.
    if passed and not answer.refusal:
        return PASSED
    sys.stderr.write(f"{answer.refusal or why or 'the test failed without a message'}\n")
    sys.stderr.flush()
    return 1


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ").replace("\n", " ")


def _make_importable(module: Proxy) -> None:
    """Make `import answer` and `from answer import f` work in the test."""
    stand_in = types.ModuleType("answer")
    stand_in.__getattr__ = lambda name: named(getattr(module, name), name)  # type: ignore[method-assign]
    sys.modules["answer"] = stand_in


class _Names(dict[str, Any]):
    """Global names of a test. A name that the test neither defines nor imports is Python's own, else the answer's."""

    def __init__(self, module: Proxy, modules: frozenset[str], imports: frozenset[str]) -> None:
        super().__init__()
        self._module, self._modules, self._imports = module, modules, imports

    def __missing__(self, name: str) -> Any:
        # A name whose import failed stays undefined: an answer must not be able to supply its own `np`, for example.
        if hasattr(builtins, name) or name in self._imports:
            raise KeyError(name)
        if name in self._modules:
            return importlib.import_module(name)
        try:
            return named(getattr(self._module, name), name)
        except AttributeError:
            raise KeyError(name) from None


class _HoldChanges(ast.NodeTransformer):
    """Wrap each assert, so that changes of arguments by the answer show after the assert, not while it is evaluated.

    Otherwise an answer could empty the list that it is given, and be compared with the empty list.
    """

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        hold, release = (ast.Expr(ast.Call(ast.Name(name, ast.Load()), [], [])) for name in (_HOLD, _RELEASE))
        return ast.copy_location(ast.Try(body=[hold, node], handlers=[], orelse=[], finalbody=[release]), node)
