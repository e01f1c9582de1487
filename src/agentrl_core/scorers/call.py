"""Adapter that lets the rollout call any scorer: sync or async, with one argument or two, with a checked result."""

from __future__ import annotations

import decimal
import functools
import inspect
import math
import numbers
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.scoring import Score, ScoreRequest
from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.errors import EpisodeError, PluginError

if TYPE_CHECKING:
    from agentrl_core.types import Task

_EXPECTED = "score(request) or score(model_answer, ground_truth), with options as keyword-only parameters"

_PROCESS_TIMEOUT_S = 30.0
"""Default time limit of a `cpu_bound` scorer."""

_NUMBERS = (numbers.Real, decimal.Decimal)

_LARGEST = 3.4e38
"""Largest absolute value of a reward, about the largest 32-bit float, because the learner computes in 32 bits.

The square of such a value still fits into a Python float.
"""


@attrs.frozen(kw_only=True)
class NormalizedScorer:
    """A scorer in the form in which the rollout calls it: `await scorer(request)`.

    The result is a Score, `{interaction id: float}`, or None for *no score*. A value that is not finite raises
    EpisodeError with the reason `not_finite`, a value of another type `reward_type`, and a missing reference
    `no_score`. Exceptions of the scorer itself pass through.
    """

    name: str
    function: Callable[..., Any]
    needs_reference: bool
    """Whether a task without an answer cannot be scored."""
    takes_texts: bool
    """Whether the scorer is called as `(answer, reference)` instead of `(request)`."""
    is_async: bool
    """Whether the scorer is called on the event loop; a sync scorer is called on a thread."""
    cpu_bound: bool = False
    """Whether a sync scorer is called in a worker process instead of a thread."""
    timeout_s: float = _PROCESS_TIMEOUT_S
    """Time limit of that process; after it the process is killed and there is no score."""
    check_task: Callable[[Task], object] | None = None
    """Function that raises ValueError for a task that the scorer cannot score."""

    def refuses(self, task: Task) -> str:
        """Return why the task cannot be scored, independent of the agent's answer; empty if it can be."""
        if self.needs_reference and task.answer is None:
            return f"scorer '{self.name}' needs the task's `answer`"
        try:
            if self.check_task is not None:
                self.check_task(task)
        except ValueError as error:
            return f"scorer '{self.name}': {error}"
        return ""

    async def __call__(self, request: ScoreRequest) -> Score | dict[str, float] | None:
        """Score one finished episode."""
        if self.needs_reference and request.reference is None:
            raise EpisodeError(
                "no_score", f"scorer '{self.name}' needs the task's `answer`, and task '{request.task.id}' has none"
            )
        arguments = (request.answer, request.reference) if self.takes_texts else (request,)
        if self.is_async:
            result = self.function(*arguments)
        elif self.cpu_bound:
            result = await self._in_process(arguments)
        else:
            result = await call_on_thread(functools.partial(self.function, *arguments), name="agentrl-scorer")
        # A sync function may return an awaitable as well, for example a lambda that calls a coroutine function.
        if inspect.isawaitable(result):
            result = await result
        return self._checked(result)

    async def check(self, *, gateway_url: str | None = None) -> Sequence[str]:
        """Run the scorer's own `check`, if it has one, before the run; return its notes and pass its exceptions on."""
        check = getattr(_innermost(self.function), "check", None)
        return await check(gateway_url=gateway_url) if inspect.iscoroutinefunction(check) else ()

    async def _in_process(self, arguments: tuple[Any, ...]) -> Any:
        from agentrl_core.concurrency.processes import CallTimeoutError, run_in_process

        try:
            return await run_in_process(self.function, *arguments, timeout_s=self.timeout_s)
        except CallTimeoutError as error:
            raise EpisodeError("no_score", f"scorer '{self.name}': {error}") from error

    def _checked(self, result: Any) -> Score | dict[str, float] | None:
        if result is None:
            return None
        if isinstance(result, Score):
            parts = {name: self._number(part, f"part '{name}'") for name, part in result.parts.items()}
            return Score(self._number(result.value, "value"), parts, result.details)
        if not isinstance(result, Mapping):
            return Score(self._number(result, "value"))
        for key in result:
            if not isinstance(key, str):
                raise EpisodeError(
                    "reward_type", f"scorer '{self.name}': expected interaction ids as keys, found {key!r}"
                )
        return {key: self._number(value, f"value of '{key}'") for key, value in result.items()}

    def _number(self, value: Any, what: str) -> float:
        try:
            return finite_number(value)
        except EpisodeError as error:
            raise EpisodeError(error.reason, f"scorer '{self.name}': {what}: {error}") from error


def normalize_scorer(function: object, name: str) -> NormalizedScorer:
    """Wrap a scorer that takes a ScoreRequest, or `(model_answer, ground_truth)`.

    A scorer with two positional parameters without a default gets the extracted answer and the task's reference, both
    as text. Raises PluginError if `function` is not a scorer or cannot run in the way that it declares.
    """
    if not callable(function) or inspect.isclass(function):
        raise PluginError(f"scorer '{name}': expected {_EXPECTED}, found {_found(function)}")
    takes_texts = _positional_parameters(function, name) == 2  # noqa: PLR2004  (answer and reference)
    declared = _innermost(function)
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - not whether
    cpu_bound = bool(getattr(declared, "cpu_bound", False))
    if cpu_bound:
        _check_for_process(function, name, is_async=is_async)
    return NormalizedScorer(
        name=name,
        function=function,
        needs_reference=bool(getattr(declared, "needs_reference", takes_texts)),
        takes_texts=takes_texts,
        is_async=is_async,
        cpu_bound=cpu_bound,
        timeout_s=_timeout(getattr(declared, "timeout_s", _PROCESS_TIMEOUT_S), name),
        check_task=getattr(declared, "check_task", None),
    )


def finite_number(value: Any) -> float:
    """Return a reward as float; a bool, a Decimal, a numpy scalar and a 0-d tensor count as numbers.

    Raises EpisodeError: `reward_type` for any other type, `not_finite` for nan, infinities and values that overflow
    32 bits.
    """
    # Recognised by their shape, because this module must not import numpy and torch.
    if not isinstance(value, _NUMBERS) and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, _NUMBERS):
        raise EpisodeError("reward_type", f"expected a number, found {_found(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    # A signalling NaN of Decimal refuses the conversion.
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise EpisodeError("not_finite", f"expected a finite number, found {number}")
    if abs(number) > _LARGEST:
        raise EpisodeError("not_finite", f"expected a finite number of 32 bits, found {number}")
    return number


def _positional_parameters(function: Callable[..., Any], name: str) -> int:
    """Return the number of arguments that the scorer needs, 1 or 2; raise PluginError for any other signature."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError) as error:
        raise PluginError(
            f"scorer '{name}': expected {_EXPECTED}, found {_found(function)} without a signature"
        ) from error
    parameters = signature.parameters.values()
    positional = [item for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    required = sum(item.default is item.empty for item in positional)
    takes_one = bool(positional) or any(item.kind is item.VAR_POSITIONAL for item in parameters)
    options = [item.name for item in parameters if item.kind is item.KEYWORD_ONLY and item.default is item.empty]
    if options:
        raise PluginError(f"scorer '{name}' needs the option '{options[0]}', which has no default: {_found(function)}")
    if required > 2 or not takes_one:  # noqa: PLR2004  (answer and reference)
        raise PluginError(f"scorer '{name}': expected {_EXPECTED}, found {_found(function)}")
    return max(required, 1)


def _check_for_process(function: Callable[..., Any], name: str, *, is_async: bool) -> None:
    """Raise PluginError if another process could not call the scorer."""
    if is_async:
        raise PluginError(
            f"scorer '{name}': cpu_bound is for synchronous scorers, and {_found(function)} is async: it runs on the "
            "agents' event loop; remove `async` or cpu_bound"
        )
    from agentrl_core.concurrency.processes import pack

    try:
        pack(function)
    except TypeError as error:
        raise PluginError(f"scorer '{name}': cpu_bound calls it in another process: {error}") from error


def _timeout(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise PluginError(f"scorer '{name}': timeout_s: expected a number of seconds above 0, found {_found(value)}")
    return float(value)


def _innermost(function: Any) -> Any:
    """Return the scorer inside `functools.partial`, which holds its options but not its attributes."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _found(value: Any) -> str:
    """Describe a value for an error message; a function with its signature."""
    if inspect.isclass(value):
        return f"the class {value.__qualname__}, not an instance of it"
    if not callable(value):
        return f"{type(value).__name__} {reprlib.repr(value)}"
    label = getattr(value, "__name__", type(value).__name__)
    try:
        return f"{label}{inspect.signature(value)}"
    except (ValueError, TypeError):
        return str(label)
