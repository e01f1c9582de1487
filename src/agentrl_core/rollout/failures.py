"""Describe an exception raised by an agent or a scorer: one line for the record, a bounded traceback for the log."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import agentrl_core
from agentrl_core.config.invocation import near

_LONGEST_MESSAGE = 400
"""Characters of an exception's message that a record keeps; the log keeps more."""
_LONGEST_TRACEBACK = 20_000
"""Characters of a traceback that the log gets."""

_OURS = Path(agentrl_core.__file__).parent
_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class RemoteFailure(Exception):  # noqa: N818  (stands for an error of any class)
    """Exception of an agent in another process, as the worker described it, or the unexpected end of that process."""

    def __init__(self, type_name: str, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.type_name = type_name
        self.text = text
        """One line in the form of `describe`."""
        self.trace = trace


def reason_of(error: BaseException) -> str:
    """Return the word under which a failure is counted: the class name of the exception."""
    cause = root_cause(error)
    return cause.type_name if isinstance(cause, RemoteFailure) else type(cause).__name__


def root_cause(error: BaseException) -> BaseException:
    """Return the first single exception inside nested exception groups, or `error` itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def describe(error: BaseException) -> str:
    """Return `TypeName: message (file:line)`; the place is the innermost frame in the user's own code."""
    cause = root_cause(error)
    if isinstance(cause, RemoteFailure):
        return cause.text
    try:
        message = tell(str(cause))
    except Exception as own:  # noqa: BLE001 - an exception's __str__ is user code too
        message = f"(its text cannot be shown: str() of it raises {type(own).__name__})"
    place = _place(cause)
    return f"{type(cause).__name__}{f': {message}' if message else ''}{f' ({place})' if place else ''}"


def tell(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    """Return text as one printable line: escapes what terminals cannot show, and cuts it at `longest` characters."""
    # Cut first: a message may be endless, and splitting all of it would take its time.
    line = " ".join(text[: 2 * longest].split())
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)
    return line if len(line) <= longest else line[:longest] + "…"


def format_traceback(error: BaseException) -> str:
    """Return the traceback as Python prints it, cut at 20,000 characters: a message may be endless."""
    text = error.trace if isinstance(error, RemoteFailure) else "".join(traceback.format_exception(error))
    return text if len(text) <= _LONGEST_TRACEBACK else text[:_LONGEST_TRACEBACK] + "…"


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    frame = next((frame for frame in reversed(frames) if is_users(Path(frame.filename))), frames[-1])
    return f"{near(Path(frame.filename))}:{frame.lineno}"


def is_users(path: Path) -> bool:
    """Return whether a source file is the user's: not installed, not of the standard library, not agentrl's."""
    # Names that are no path, such as `<frozen …>` and `<string>`, are not absolute.
    if not path.is_absolute() or path.is_relative_to(_OURS):
        return False
    return not any(path.is_relative_to(folder) for folder in _INSTALLED)
