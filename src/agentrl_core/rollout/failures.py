"""How an exception of a user's code is told: one line for a person, without secrets."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import agentrl_core

_LONGEST_MESSAGE = 400
"""Characters of an exception's message that a record keeps; the log has more of it."""
_LONGEST_TRACEBACK = 20_000

_OURS = Path(agentrl_core.__file__).parent
_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class RemoteFailure(Exception):  # noqa: N818  (any class of error may stand behind it)
    """What an agent raised in another process, as it is told there; or how that process ended."""

    def __init__(self, type_name: str, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.type_name = type_name
        self.text = text
        """One line, as `describe` makes it."""
        self.trace = trace


def reason_of(error: BaseException) -> str:
    """Return the word by which a failure is counted: the class of what was raised."""
    cause = root_cause(error)
    return cause.type_name if isinstance(cause, RemoteFailure) else type(cause).__name__


def root_cause(error: BaseException) -> BaseException:
    """Return the first single exception inside (nested) exception groups, or `error` itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def describe(error: BaseException) -> str:
    """Return `TypeName: message (file:line)`, the place being the innermost frame of the user's own code."""
    cause = root_cause(error)
    if isinstance(cause, RemoteFailure):
        return cause.text
    try:
        message = tell(str(cause))
    except Exception as own:  # noqa: BLE001 - an exception's __str__ is a user's code too
        message = f"(its text cannot be shown: str() of it raises {type(own).__name__})"
    place = _place(cause)
    return f"{type(cause).__name__}{f': {message}' if message else ''}{f' ({place})' if place else ''}"


def tell(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    """Return a text as one line that any terminal and file takes: what cannot be printed is escaped, the rest cut."""
    line = " ".join(text[: 2 * longest].split())
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)
    return line if len(line) <= longest else line[:longest] + "…"


def format_traceback(error: BaseException) -> str:
    """Return the traceback as Python prints it, but no endless message."""
    text = error.trace if isinstance(error, RemoteFailure) else "".join(traceback.format_exception(error))
    return text if len(text) <= _LONGEST_TRACEBACK else text[:_LONGEST_TRACEBACK] + "…"


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    frame = next((frame for frame in reversed(frames) if is_users(Path(frame.filename))), frames[-1])
    path = Path(frame.filename)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{frame.lineno}"


def is_users(path: Path) -> bool:
    """Whether a source file is neither installed, nor of the standard library, nor agentrl's."""
    if not path.is_absolute() or path.is_relative_to(_OURS):  # `<frozen …>`, `<string>`
        return False
    return not any(path.is_relative_to(folder) for folder in _INSTALLED)
