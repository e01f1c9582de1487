"""Validation of a task's `tests`, before the run starts.

A test that would pass whatever the answer is, or whose meaning an answer could change, is refused here.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_code.inside import names


def read_tests(data: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a task's tests as `{"asserts": CODE}` or `{"input": TEXT, "output": TEXT}`.

    Raises ValueError if the task has no tests, or if a test cannot tell right answers from wrong ones.
    """
    given = data.get("tests")
    items: Sequence[Any] = [given] if isinstance(given, str) else given if isinstance(given, list) else ()
    if not items:
        raise ValueError(
            f"tests: expected a list of Python tests or of {{input: TEXT, output: TEXT}}, found {given!r:.80}"
        )
    return [_test(item, number) for number, item in enumerate(items)]


def _test(item: Any, number: int) -> dict[str, str]:
    if isinstance(item, str):
        try:
            tree = ast.parse(item)
            compile(tree, "test", "exec")
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"tests.{number}: expected Python code, found {item!r:.80} ({error})") from error
        if problem := _problem(tree):
            raise ValueError(f"tests.{number}: {problem}: {item!r:.80}")
        return {"asserts": item}
    if isinstance(item, Mapping):
        given, output = (item.get(name, item.get(other)) for name, other in (("input", "stdin"), ("output", "stdout")))
        if isinstance(output, str) and isinstance(given, str | None):
            return {"input": given or "", "output": output}
    raise ValueError(f"tests.{number}: expected Python code or {{input: TEXT, output: TEXT}}, found {item!r:.80}")


def _problem(tree: ast.Module) -> str:
    """Return the reason to refuse a test; empty if it is sound."""
    answers = names.of_answer(tree)
    if not answers:
        return (
            "the test uses no name of the answer; names of builtins and of standard modules mean Python's own; fix: "
            "use a name that the answer defines, or `from answer import NAME`"
        )
    if names.only_defines(tree):
        return "the test only defines functions or classes, so it would pass for any answer; fix: call them in the test"
    unclear = sorted((answers - names.imported(tree)) & set(names.UNCLEAR))
    # If the name is the only one, it is the thing under test, as in a task that asks for a `sqrt`.
    if unclear and len(answers) > 1:
        name = unclear[0]
        return (
            f"the test does not import `{name}`, so the answer could define it; fix: add `{names.UNCLEAR[name]}` to "
            f"the test, or `from answer import {name}` if the answer's own is meant"
        )
    if unseen := sorted(names.used(tree) & set(names.UNSEEN)):
        return (
            f"the test uses `{unseen[0]}`, but it runs in another process than the answer and cannot see its output; "
            "fix: test what is printed with {input: TEXT, output: TEXT}"
        )
    return ""
