"""Check the outputs of losses and corrections against the contract of `api.losses`, with errors for their authors.

Without these checks torch would broadcast a wrong shape, and the run would train on it.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.losses import LossOutput
from agentrl_core.errors import AgentRLError, TrainingError

if TYPE_CHECKING:
    from agentrl_core.api.losses import LossBatch

_FIELDS = ("proximal", "reference", "entropy")
_PREFIX = "loss/"
_TAKEN = ("value", "tokens", "tokens_per_s", "tokens_per_cpu_s", "entropy", "certain_share", "grad_norm", "lr")
_TAKEN_STARTS = ("logprob_gap_", "ratio_share_")
"""Prefixes of metrics under `loss/` that the learner reports; `_TAKEN` lists its other names."""


def problem_of_needs(part: Any) -> str | None:
    """Return the problem with the attribute `needs` of a loss or correction; None if it is right."""
    example = "needs = frozenset() for none, frozenset({'proximal'}) for one"
    if not hasattr(part, "needs"):
        return f"has no attribute `needs`, the optional fields of LossBatch that it reads; write {example}"
    needs = part.needs
    if not isinstance(needs, frozenset | set):
        return f"its `needs` is {needs!r:.60}; expected a frozenset of names: {example}"
    unknown = sorted(str(name) for name in needs if name not in _FIELDS)
    if unknown:
        return f"its `needs` names {', '.join(unknown)}, which no learner computes; expected {', '.join(_FIELDS)}"
    return None


def checked_output(part: Any, batch: LossBatch, *output: LossOutput) -> LossOutput:
    """Return the checked output of a loss, or of a correction applied to `output`.

    Raises `TrainingError` with the component's name and source line if it raises, or as `checked` does.
    """
    name = type(part).__name__
    try:
        made = part.correct(batch, *output) if output else part.loss(batch)
    # Errors of this project already say where they come from.
    except AgentRLError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        needs = ", ".join(sorted(part.needs)) or "nothing"
        raise TrainingError(
            f"loss: {name} raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno}). Of the optional "
            f"fields {', '.join(_FIELDS)}, only those named by its `needs` are set ({needs}); the others are None"
        ) from error
    return checked(part, batch, made)


def checked(part: object, batch: LossBatch, output: Any) -> LossOutput:
    """Return `output`, with `keep` as floats; raise `TrainingError` if it breaks the contract of `LossOutput`."""
    name = type(part).__name__
    if not isinstance(output, LossOutput):
        raise TrainingError(
            f"loss: {name} returned {type(output).__name__}; expected a LossOutput(per_token=…, keep=…)"
        )
    expected = tuple(batch.logprobs.shape)
    for field in ("per_token", "keep"):
        value = getattr(output, field)
        found = getattr(value, "shape", None)
        if found is None or tuple(found) != expected:
            form = f"as {type(value).__name__}" if found is None else f"of shape {list(found)}"
            raise TrainingError(
                f"loss: {name} returned `{field}` {form}; expected {list(expected)}, one number per loss token as in "
                "batch.logprobs. loss.aggregation does the summing and averaging"
            )
    if batch.logprobs.requires_grad and not output.per_token.requires_grad:
        raise TrainingError(
            f"loss: {name} returned a `per_token` without a gradient, so the policy would not learn; compute it from "
            "batch.logprobs without detaching"
        )
    for metric, value in output.metrics.items():
        if problem := _problem_of_metric(metric, value):
            raise TrainingError(f"loss: {name} returned the metric '{metric}' {problem}")
    # A boolean mask is a natural thing to return; it is multiplied with floats later.
    if not output.keep.is_floating_point():
        return attrs.evolve(output, keep=output.keep.to(batch.mask.dtype))
    return output


def is_taken(metric: str) -> bool:
    """Return whether the learner itself reports a metric of this name."""
    return metric in _TAKEN or metric.startswith(_TAKEN_STARTS)


def _problem_of_metric(name: str, value: Any) -> str | None:
    if name.startswith(_PREFIX):
        return f"which would be reported as {_PREFIX}{name}; leave '{_PREFIX}' out"
    if is_taken(name):
        return f"but {_PREFIX}{name} is a metric of the learner; give it another name"
    if not _is_pair(value):
        return f"as {_form(value)}; expected a pair (sum, count) of single numbers, which are added up over the update"
    return None


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(_is_number(item) for item in value)  # noqa: PLR2004  (a pair)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or getattr(value, "ndim", None) == 0


def _form(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_form, value))})"
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"a {type(value).__name__} of shape {list(shape)}"
