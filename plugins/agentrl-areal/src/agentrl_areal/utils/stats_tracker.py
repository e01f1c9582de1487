"""Counterpart of `areal.utils.stats_tracker`: collect numbers that workflows report, and reduce them per name.

    stats_tracker.get(workflow_context.stat_scope()).scalar(reward=reward, num_turns=turns)

After each step a run writes the numbers since the last step to `areal_stats.jsonl` in the run directory: the mean of
each scalar, and the number of its values as `NAME__count`. Numbers reported in another process, as with
`rollout.agent.mode: subproc`, are not collected.
"""

from __future__ import annotations

import enum
import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import attrs

__all__ = [
    "DistributedStatsTracker",
    "ReduceType",
    "denominator",
    "export",
    "export_all",
    "get",
    "record_timing",
    "scalar",
    "scope",
    "scope_func_wrapper",
    "stat",
]

F = TypeVar("F", bound=Callable[..., Any])


class ReduceType(enum.Enum):
    """Reductions of the values that share a name."""

    AVG_MIN_MAX = enum.auto()
    AVG = enum.auto()
    SUM = enum.auto()
    MIN = enum.auto()
    MAX = enum.auto()
    SCALAR = enum.auto()


@attrs.define(eq=False)
class _Series:
    """Values reported under one name since the last export."""

    kind: ReduceType
    masks: str = ""
    """For tensors: name of the bool tensors that say which entries count; empty if all entries count."""
    values: list[Any] = attrs.field(factory=list)


class DistributedStatsTracker:
    """Collects values under names, from any thread. Full names begin with `name` and the enclosing scopes.

    Scopes belong to the calling context, so concurrent episodes do not see each other's.
    """

    def __init__(self, name: str = "") -> None:
        self._lock = threading.RLock()
        own = (name.strip("/"),) if name else ()
        self._scopes: ContextVar[tuple[str, ...]] = ContextVar("agentrl_areal_scopes", default=own)
        self._series: dict[str, _Series] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix names with `name/` until the end of the block."""
        with self._within((*self._scopes.get(), name.strip("/"))):
            yield

    def scope_func_wrapper(self, name: str) -> Callable[[F], F]:
        """Return a decorator that prefixes the names reported in a function with `name/`."""

        def decorate(function: F) -> F:
            @functools.wraps(function)
            def inside(*args: Any, **kwargs: Any) -> Any:
                with self.scope(name):
                    return function(*args, **kwargs)

            return inside  # type: ignore[return-value]  # the same arguments and result

        return decorate

    @contextmanager
    def disable_scope(self) -> Iterator[None]:
        """Use names without any prefix until the end of the block."""
        with self._within(()):
            yield

    @contextmanager
    def _within(self, scopes: tuple[str, ...]) -> Iterator[None]:
        token = self._scopes.set(scopes)
        try:
            yield
        finally:
            self._scopes.reset(token)

    @contextmanager
    def record_timing(self, key: str) -> Iterator[None]:
        """Add the duration of the block in seconds to `timeperf/KEY`."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._add(f"timeperf/{key}", ReduceType.SCALAR, time.perf_counter() - begun)

    def scalar(self, **values: float) -> None:
        """Add one number under each name."""
        for key, value in values.items():
            self._add(self._full(key), ReduceType.SCALAR, float(value))

    def denominator(self, **masks: Any) -> None:
        """Add bool tensors that say which entries of the tensors given to `stat` count."""
        import torch

        for key, mask in masks.items():
            _check(key, mask, torch.bool)
            self._add(self._full(key), ReduceType.SUM, mask.detach().clone())

    def stat(self, denominator: str, reduce_type: ReduceType | None = None, **values: Any) -> None:
        """Add float tensors. Each must have the shape of the tensor added to `denominator` in the same position.

        Raises `ValueError` if that name, or a tensor of that shape, is missing.
        """
        import torch

        if reduce_type is ReduceType.SCALAR:
            raise ValueError("Cannot use the scalar reduce type for a tensor")
        masks = self._full(denominator)
        for key, value in values.items():
            _check(key, value, torch.float)
            with self._lock:
                known = self._series.get(masks)
                if known is None:
                    raise ValueError(f"Denominator `{masks}` does not exist")
                full = self._full(key)
                index = len(self._series[full].values) if full in self._series else 0
                if index < len(known.values) and known.values[index].shape != value.shape:
                    raise ValueError(f"`{full}` has shape {value.shape}, its denominator {known.values[index].shape}")
                self._add(full, reduce_type or ReduceType.AVG_MIN_MAX, value.detach().clone(), masks)

    def export(self, key: str | None = None, reduce_group: Any = None, reset: bool = True) -> dict[str, float]:  # noqa: FBT001, FBT002 (AReaL's)
        """Return name -> reduced number, of all names or of `key` alone; `reset` then drops the values.

        Raises `ValueError` if `reduce_group` is given.
        """
        if reduce_group is not None:
            raise ValueError("reduce_group: numbers cannot be reduced over processes; leave it None")
        with self._lock:
            names = list(self._series) if key is None else [self._full(key)]
            numbers = {name: number for item in names for name, number in self._reduced(item)}
            if reset:
                for item in names:
                    del self._series[item]
        return numbers

    def _full(self, key: str) -> str:
        return "/".join([*self._scopes.get(), key])

    def _add(self, name: str, kind: ReduceType, value: Any, masks: str = "") -> None:
        with self._lock:
            series = self._series.setdefault(name, _Series(kind))
            series.kind, series.masks = kind, masks
            series.values.append(value)

    def _reduced(self, name: str) -> Iterator[tuple[str, float]]:
        """Yield the names and numbers that the values of a name are reduced to."""
        series = self._series[name]
        if series.kind is ReduceType.SCALAR:
            yield name, sum(series.values) / len(series.values)
            yield f"{name}__count", len(series.values)
            return
        kept = self._kept(name, series)
        if series.kind is ReduceType.SUM:
            yield name, float(kept.sum())
        elif kept.numel():
            found = {"avg": kept.mean, "min": kept.min, "max": kept.max}
            if series.kind is ReduceType.AVG_MIN_MAX:
                for part, compute in found.items():
                    yield f"{name}/{part}", float(compute())
            else:
                yield name, float(found[series.kind.name.lower()]())

    def _kept(self, name: str, series: _Series) -> Any:
        """Return the entries of all values that count, as one tensor [T]."""
        import torch

        if not series.masks:
            return torch.cat([value.flatten() for value in series.values])
        known = self._series.get(series.masks)
        if known is None:
            raise ValueError(f"Denominator `{series.masks}` not set for key `{name}`.")
        return torch.cat([value[mask] for value, mask in zip(series.values, known.values, strict=False)])


def _check(key: str, tensor: Any, dtype: Any) -> None:
    if getattr(tensor, "dtype", None) != dtype:
        raise ValueError(
            f"`{key}` must be a tensor of {dtype}, found {getattr(tensor, 'dtype', type(tensor).__name__)}"
        )
    if tensor.numel() == 0:
        raise ValueError(f"`{key}` must not be empty")


_trackers: dict[str, DistributedStatsTracker] = {}
_lock = threading.Lock()


def get(name: str = "") -> DistributedStatsTracker:
    """Return the tracker of a name; all callers of this process share it."""
    with _lock:
        return _trackers.setdefault(name, DistributedStatsTracker(name))


def export_all(reduce_group: Any = None, reset: bool = True) -> dict[str, float]:  # noqa: FBT001, FBT002 (AReaL's)
    """Return name -> reduced number, of all trackers."""
    numbers: dict[str, float] = {}
    for tracker in list(_trackers.values()):
        numbers |= tracker.export(reduce_group=reduce_group, reset=reset)
    return numbers


DEFAULT_TRACKER = get()
stat = DEFAULT_TRACKER.stat
denominator = DEFAULT_TRACKER.denominator
export = DEFAULT_TRACKER.export
scope = DEFAULT_TRACKER.scope
scalar = DEFAULT_TRACKER.scalar
record_timing = DEFAULT_TRACKER.record_timing
scope_func_wrapper = DEFAULT_TRACKER.scope_func_wrapper
