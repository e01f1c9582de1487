"""Describe an exception of the user's code: its message in one bounded line, and its place there."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Sequence

_LONGEST_MESSAGE = 400
"""Characters of an exception's message that a record keeps; the log keeps more."""
_LONGEST_PLACE = 4096
"""Characters of a `file:line`; its end is kept."""
_HERE = os.path.dirname(__file__)


def tell(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    """Return text as one printable line: escapes what terminals cannot show, and cuts it at `longest` characters."""
    # Cut first: a message may be endless, and splitting all of it would take its time.
    line = " ".join(text[: 2 * longest].split())
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)
    return line if len(line) <= longest else line[:longest] + "…"


def message_of(error: BaseException) -> str:
    """Return an exception's message as one line of a bounded length."""
    try:
        return tell(str(error))
    except Exception as own:  # noqa: BLE001  (an exception's __str__ is user code too)
        return f"(its text cannot be shown: str() of it raises {type(own).__name__})"


def one_line(error: BaseException) -> str:
    """Return an exception in one line: its type and message; for a SyntaxError also the source line."""
    message = message_of(error)
    told = f"{type(error).__name__}: {message}" if message else type(error).__name__
    source = (error.text or "").strip() if isinstance(error, SyntaxError) else ""
    return f"{told}: `{source}`" if source else told


def place_of(error: BaseException, skip: Sequence[str] = ()) -> str:
    """Return `file:line` of the innermost frame in the user's own code, else of the innermost one; empty without any.

    A file below the working directory is named relative to it. `skip` names folders that are not the user's.
    """
    frames = [item for item in traceback.extract_tb(error.__traceback__) if os.path.dirname(item.filename) != _HERE]
    if not frames:
        return ""
    chosen = next((item for item in reversed(frames) if is_users(item.filename, skip)), frames[-1])
    path = chosen.filename
    try:
        here = os.path.join(os.getcwd(), "")
    except FileNotFoundError:  # the folder was removed, for example by the agent
        here = path
    return f"{path[len(here) :] if path.startswith(here) else path}:{chosen.lineno}"[-_LONGEST_PLACE:]


def is_users(path: str, skip: Sequence[str] = ()) -> bool:
    """Return whether a source file is the user's: not installed, not of the standard library, not below `skip`."""
    installed = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    foreign = tuple(os.path.join(folder, "") for folder in [*installed, *skip])
    # Names that are no path, such as `<frozen …>` and `<string>`, are not absolute.
    return os.path.isabs(path) and not path.startswith(foreign)
