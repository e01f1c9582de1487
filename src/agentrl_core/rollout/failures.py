"""Describe an exception raised by an agent or a scorer: one line for the record, a bounded traceback for the log."""

from __future__ import annotations

import builtins
import traceback
from pathlib import Path

import agentrl_core
from agentrl_core.rollout.subproc.inside import telling

_LONGEST_TRACEBACK = 20_000
"""Characters of a traceback that the log gets."""

_OURS = (str(Path(agentrl_core.__file__).parent),)


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


def may_be_elsewhere(error: BaseException) -> bool:
    """Return whether an error may come from an LLM call to another server: that of a client or of the network.

    Python's own exceptions, such as KeyError, tell of a fault in the agent's code.
    """
    cause = root_cause(error)
    own = getattr(builtins, cause.type_name, None) if isinstance(cause, RemoteFailure) else type(cause)
    if own is None or own.__module__ != builtins.__name__:
        return True
    return isinstance(own, type) and issubclass(own, OSError)


def describe(error: BaseException) -> str:
    """Return `TypeName: message (file:line)`; the place is the innermost frame in the user's own code."""
    cause = root_cause(error)
    if isinstance(cause, RemoteFailure):
        return cause.text
    message, place = telling.message_of(cause), telling.place_of(cause, _OURS)
    return f"{type(cause).__name__}{f': {message}' if message else ''}{f' ({place})' if place else ''}"


def format_traceback(error: BaseException) -> str:
    """Return the traceback as Python prints it, cut at 20,000 characters: a message may be endless."""
    text = error.trace if isinstance(error, RemoteFailure) else "".join(traceback.format_exception(error))
    return text if len(text) <= _LONGEST_TRACEBACK else text[:_LONGEST_TRACEBACK] + "…"


def is_users(path: str) -> bool:
    """Return whether a source file is the user's: not installed, not of the standard library, not agentrl's."""
    return telling.is_users(path, _OURS)
