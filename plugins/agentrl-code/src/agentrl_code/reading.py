"""A task's tests, read and refused before anything runs."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_code.inside import names


def read_tests(data: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a task's tests in one form. Raises ValueError where they are none, or such that cannot be judged."""
    given = data.get("tests")
    items: Sequence[Any] = [given] if isinstance(given, str) else given if isinstance(given, list) else ()
    if not items:
        raise ValueError(f"tests: expected a list of asserts or of inputs with outputs, found {given!r:.80}")
    return [_test(item, number) for number, item in enumerate(items)]


def _test(item: Any, number: int) -> dict[str, str]:
    if isinstance(item, str):
        try:
            tree = ast.parse(item)
            compile(tree, "test", "exec")
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"tests.{number}: expected Python, found {item!r:.80} ({error})") from error
        if problem := _problem(tree):
            raise ValueError(f"tests.{number}: {problem}: {item!r:.80}")
        return {"asserts": item}
    if isinstance(item, Mapping):
        given, output = (item.get(name, item.get(other)) for name, other in (("input", "stdin"), ("output", "stdout")))
        if isinstance(output, str) and isinstance(given, str | None):
            return {"input": given or "", "output": output}
    raise ValueError(f"tests.{number}: expected a text of Python, or {{input: TEXT, output: TEXT}}, found {item!r:.80}")


def _problem(tree: ast.Module) -> str:
    """Return what keeps a test from being judged apart from the answer; empty for nothing."""
    answers = names.of_answer(tree)
    if not answers:
        return (
            "it asks nothing of the answer; a name of Python's own is Python's, unless it says "
            "`from answer import NAME`"
        )
    if names.only_defines(tree):
        return "it defines what nobody calls, and would pass whatever the answer is; call it in the test"
    unclear = sorted((answers - names.imported(tree)) & set(names.UNCLEAR))
    if unclear and len(answers) > 1:  # alone it is what is tested
        name = unclear[0]
        return (
            f"`{name}` is whatever the answer makes of it; say `{names.UNCLEAR[name]}` in the test, "
            f"or `from answer import {name}`"
        )
    if unseen := sorted(names.used(tree) & set(names.UNSEEN)):
        return f"`{unseen[0]}` is out of a test's sight, which runs apart from the answer; test by input and output"
    return ""
