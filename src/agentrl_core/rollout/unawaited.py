"""Remember calls that an agent forgot to await, to tell it from an agent whose client goes to another server."""

from __future__ import annotations

import contextlib
import re
import warnings
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEVER_AWAITED = re.compile(r"coroutine '([^']+)' was never awaited")


class UnawaitedCalls:
    """Names of the coroutine functions whose calls were never awaited, by Python's own warnings while it watches."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Read the warnings of this process, which are shown as before; Python gives each once per line of code."""
        shown = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if found := _NEVER_AWAITED.match(str(message)):
                self._names.setdefault(found[1])
            shown(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        try:
            yield
        finally:
            warnings.showwarning = shown

    @property
    def told(self) -> str:
        """Sentence about the calls; empty if there are none."""
        names = ", ".join(self._names)
        return f"Python says that {names} was never awaited: write `await` before that call" if names else ""
