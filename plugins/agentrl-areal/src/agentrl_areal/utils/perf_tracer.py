"""Counterpart of `areal.utils.perf_tracer` without a tracer: all scopes and decorators do nothing.

AReaL's do the same until they are configured. For durations use `agentrl trace` and the run's metrics `time/…`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from typing import Any, NoReturn, Self, TypeVar

__all__ = [
    "Category",
    "PerfTraceCategory",
    "atrace_scope",
    "atrace_session_phase",
    "configure",
    "get_session_id",
    "get_session_tracer",
    "get_task_id",
    "get_tracer",
    "instant",
    "is_configured",
    "register_session",
    "register_task",
    "reset",
    "save",
    "session_context",
    "set_session_id",
    "set_task_id",
    "trace_perf",
    "trace_scope",
    "trace_session",
    "trace_session_event",
    "trace_session_phase",
]

F = TypeVar("F", bound=Callable[..., Any])

_session: ContextVar[int | None] = ContextVar("agentrl_areal_session", default=None)
_task: ContextVar[int | None] = ContextVar("agentrl_areal_task", default=None)


class PerfTraceCategory(enum.StrEnum):
    """Kinds of phases of AReaL's tracer."""

    COMPUTE = "compute"
    COMM = "comm"
    IO = "io"
    SYNC = "sync"
    SCHEDULER = "scheduler"
    INSTR = "instr"
    MISC = "misc"


Category = PerfTraceCategory


class _Through(AbstractContextManager["_Through"], AbstractAsyncContextManager["_Through"]):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let everything through."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let everything through."""


def _scope(*_: Any, **__: Any) -> _Through:
    return _Through()


def _decorator(*_: Any, **__: Any) -> Callable[[F], F]:
    return lambda function: function


def _nothing(*_: Any, **__: Any) -> None:
    return None


trace_scope = atrace_scope = trace_session_phase = atrace_session_phase = _scope
trace_perf = trace_session = session_context = _decorator
instant = save = reset = trace_session_event = register_task = register_session = get_session_tracer = _nothing


def is_configured() -> bool:
    """Return False: phases are never traced."""
    return False


def configure(*_: Any, **__: Any) -> NoReturn:
    """Raise `RuntimeError`, because there is no tracer."""
    raise RuntimeError("agentrl_areal has no PerfTracer; for durations use `agentrl trace` and the metrics time/…")


get_tracer = configure


def set_session_id(session_id: int | None) -> None:
    """Set the number that `get_session_id` returns in this context."""
    _session.set(session_id)


def get_session_id() -> int | None:
    """Return the number set by `set_session_id` in this context; None without one."""
    return _session.get()


def set_task_id(task_id: int | None) -> None:
    """Set the number that `get_task_id` returns in this context."""
    _task.set(task_id)


def get_task_id() -> int | None:
    """Return the number set by `set_task_id` in this context; None without one."""
    return _task.get()
