"""Definition of a mutation: a source file, a change in it, and the tests that must fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]


class StaleError(ValueError):
    """The table does not fit the source any more."""


@attrs.frozen(kw_only=True)
class Mutation:
    """A change of one place."""

    file: str
    """Below the source folder: `agentrl_core/losses/grpo.py`."""
    breaks: str
    """In a few words."""
    old: str
    """Stands in the file exactly once."""
    new: str
    tests: tuple[str, ...]
    """Files or node ids below the root, the likeliest first, as the run ends at the first test that fails."""
    slow: bool = False
    """Whether tests that are marked slow are run, too."""

    @property
    def area(self) -> str:
        """The file, in short."""
        return self.file.removeprefix("agentrl_core/").removesuffix(".py")

    @property
    def name(self) -> str:
        """What tells it from the others."""
        return f"{self.area}: {self.breaks}"

    @property
    def module(self) -> str:
        """Dotted name of what is mutated."""
        return self.file.removesuffix(".py").replace("/", ".")

    def mutated(self, source: Path) -> str:
        """Return the text of the file below `source` with the change.

        Raises `StaleError` where the old text does not stand there exactly once, or the change is none.
        """
        path = source / self.file
        if not path.is_file():
            raise StaleError(f"{self.name}: there is no {path}; name the file that has the code now")
        text = path.read_text(encoding="utf-8")
        found = text.count(self.old)
        if found != 1:
            raise StaleError(
                f"{self.name}: the old text stands {found} times in {path}, expected once; fit the entry to the "
                f"source:\n{self.old}"
            )
        if self.old == self.new:
            raise StaleError(f"{self.name}: the new text is the old one")
        return text.replace(self.old, self.new)


def of(
    file: str, tests: Sequence[str], changes: Mapping[str, tuple[str, str]], *, slow: bool = False
) -> list[Mutation]:
    """Mutations of one file of `agentrl_core` that the same tests must notice: what breaks -> (old, new)."""
    return [
        Mutation(file=f"agentrl_core/{file}", breaks=breaks, old=old, new=new, tests=tuple(tests), slow=slow)
        for breaks, (old, new) in changes.items()
    ]


def of_file(path: str, *names: str) -> tuple[str, ...]:
    """Node ids of tests of one file, whose names are given without `test_`."""
    return tuple(f"{path}::test_{name}" for name in names)
