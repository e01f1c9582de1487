"""Base class of all conformance suites; it refuses subclasses that replace or skip a standard test.

A suite is a class of `test_…` methods that take fixtures. The author of a component subclasses it and defines the
fixtures that the suite's docstring names:

    class TestMyScorer(ScorerSuite):
        @pytest.fixture
        def scorer(self):
            return my_scorer

If a component cannot pass a standard test, override the test and give the reason:

        @pytest.mark.xfail(reason="the judge answers in words")
        def test_every_example_gets_its_value(self, scorer, examples):
            super().test_every_example_gets_its_value(scorer, examples)

Any other override of a standard test (a method of that name, `None`, a skip) raises TypeError when the class is
defined. The check runs that early because a later one could be overridden too.
"""

from __future__ import annotations

from typing import Any


class ConformanceSuite:
    """Base of the suites in `agentrl_testing`: refuses subclasses that weaken a standard test."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise TypeError if `cls` hides a standard test without `xfail(reason=…)`."""
        super().__init_subclass__(**kwargs)
        weakened = sorted(_weakened(cls))
        if weakened:
            raise TypeError(
                f"{cls.__module__}.{cls.__qualname__} replaces standard tests of its suite: {', '.join(weakened)}. "
                "Give them another name, or mark the override with @pytest.mark.xfail(reason=…) and call super()."
            )


def _weakened(cls: type) -> set[str]:
    """Return the names of the standard tests that `cls` hides without giving a reason."""
    names = set()
    for suite in cls.__mro__[1:]:
        if not issubclass(suite, ConformanceSuite):
            continue
        for name, standard in vars(suite).items():
            if not name.startswith("test_"):
                continue
            owner = next(base for base in cls.__mro__ if name in vars(base))
            override = vars(owner)[name]
            # `test_x = xfail(…)(Suite.test_x)` is refused: it marks the suite's function, and so every other subclass.
            if owner is not suite and (override is standard or not _expected_to_fail(override)):
                names.add(name)
    return names


def _expected_to_fail(test: Any) -> bool:
    """Return whether `test` has an `xfail` mark with a reason, and no mark that prevents it from running."""
    marks = {mark.name: mark for mark in getattr(test, "pytestmark", ())}
    if "xfail" not in marks or {"skip", "skipif"} & marks.keys():
        return False
    return bool(marks["xfail"].kwargs.get("reason")) and marks["xfail"].kwargs.get("run", True)
