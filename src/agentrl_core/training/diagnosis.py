"""Detect values that are not finite before they corrupt an optimizer step, and name the records that cause them.

`logprob_gap` detects the other fault: log-probabilities on which engine and learner disagree.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs
import torch

from agentrl_core.batching.packing import Update
from agentrl_core.config.invocation import command_line
from agentrl_core.errors import TrainingError
from agentrl_core.training.ranks import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from agentrl_core.api.losses import LossOutput
    from agentrl_core.batching.packing import MicroBatch
    from agentrl_core.training.optimizer import PreStep
    from agentrl_core.training.ranks import Ranks

logger = logging.getLogger(__name__)

Culprits: TypeAlias = "dict[int, str]"
"""Index of a record -> name and value of its first quantity that is not finite."""

_SHOWN = 8
"""Records that a message names."""
_PER_TOKEN = (
    "prediction",
    "behaviour_logprobs",
    "advantages",
    "version",
    "interaction",
    "record",
    "group",
    "sequence",
)
"""The fields of a micro-batch that run over its loss tokens."""


class NotFiniteError(TrainingError):
    """An optimizer update was refused because it would not be finite."""

    def __init__(self, culprits: Culprits, names: Sequence[str], *, alone: bool = True) -> None:
        shown = [f"{names[index] if names else index} ({culprits[index]})" for index in sorted(culprits)[:_SHOWN]]
        more = f" and {len(culprits) - _SHOWN} more" if len(culprits) > _SHOWN else ""
        super().__init__(
            "the optimizer update would not be finite and was refused; the weights are as they were. "
            f"{'Records' if alone else 'No single record causes it; the update contains'}: {', '.join(shown)}{more}. "
            f"Look at their rewards and logprobs ({command_line('trace', 'show')}), lower trainer.lr if earlier steps "
            "show a growing loss/grad_norm, or leave such records out with trainer.non_finite: skip"
        )
        self.culprits = culprits
        self.alone = alone
        """True if exactly these records cause the fault; False if they are all records of the update."""


class Guard:
    """Handler of updates that would not be finite (`trainer.non_finite`): stop, or retry without the bad records."""

    def __init__(self, policy: Literal["stop", "skip"], names: Sequence[str], *, ranks: Ranks = ALONE) -> None:
        self._policy, self._names, self._ranks = policy, names, ranks
        self.left_out: dict[str, str] = {}
        """Id of a record that was left out -> name and value of its quantity that was not finite."""
        self.skipped_updates = 0
        """Number of updates that were skipped: nothing finite was left, or no single record caused the fault."""
        self.trained_tokens = 0
        """Number of loss tokens in the updates that were applied."""

    def attempt(
        self,
        update: Update,
        before: Sequence[PreStep],
        apply: Callable[[Update, Sequence[PreStep]], float],
        *,
        again: Callable[[Update], None] | None = None,
    ) -> float | None:
        """Apply the update; return the result of `apply`, or None if nothing is left to apply.

        `stop` raises the error. `skip` removes the loss terms of the bad records, counts the denominators again and
        retries: the result is as if these records had never been part of the update. Their token ids are still
        forwarded, so a record whose hidden states are not finite spoils its whole micro-batch. `again` is called before
        each retry with what is left of the update.
        """
        while True:
            try:
                value = apply(update, before)
            except NotFiniteError as error:
                if self._policy == "stop":
                    raise
                logger.warning("%s", error)
                self.left_out |= {self._names[index]: what for index, what in error.culprits.items()}
                kept = [
                    ~torch.isin(batch.record, batch.record.new_tensor(list(error.culprits)))
                    for batch in update.micro_batches
                ]
                left = any(bool(tokens.any()) for tokens in kept)
                # Ranks must decide alike: one without anything left still takes part in the others' collectives.
                if not any(self._ranks.gather(left and error.alone)):
                    self.skipped_updates += 1
                    return None
                update = reduced(update, kept)
                before = [item.select(tokens) for item, tokens in zip(before, kept, strict=True)]
                if again is not None:
                    again(update)
            else:
                self.trained_tokens += sum(len(batch.record) for batch in update.micro_batches)
                return value


def reduced(update: Update, kept: Sequence[Tensor]) -> Update:
    """Return the update with the loss tokens `kept` only; bool, [N] for each micro-batch.

    All token ids stay, so that values computed before the step (`PreStep`) still fit. A micro-batch may be left without
    a loss token.
    """
    if not kept:
        return update
    batches = [select(batch, tokens) for batch, tokens in zip(update.micro_batches, kept, strict=True)]
    return Update.of(batches, batches[0].num_sequences, device=batches[0].ids.device)


def select(batch: MicroBatch, tokens: Tensor) -> MicroBatch:
    """Return the micro-batch with the loss tokens `tokens` (bool [N]) only; the forwarded token ids stay the same."""
    return attrs.evolve(batch, **{name: getattr(batch, name)[tokens] for name in _PER_TOKEN})


def culprits_of(batch: MicroBatch, logprobs: Tensor, output: LossOutput) -> Culprits:
    """Return the records with a quantity that is not finite, before the backward pass.

    Inputs of the loss are checked before its terms, because a calculator may spread one bad number over other records.
    """
    inputs = {
        "advantage": batch.advantages,
        "engine's logprob": batch.behaviour_logprobs,
        "learner's logprob": logprobs,
    }
    terms = output.per_token * output.keep
    checked = [*inputs.values(), terms]
    # One stacked test costs one synchronisation with the device instead of four.
    if bool(torch.stack([torch.isfinite(values).all() for values in checked]).all()):
        return {}
    return _bad(batch, inputs) or _bad(batch, {"loss": terms})


def _bad(batch: MicroBatch, values: Mapping[str, Tensor]) -> Culprits:
    found: Culprits = {}
    for what, of_tokens in values.items():
        for token in (~torch.isfinite(of_tokens)).nonzero().flatten().tolist():
            found.setdefault(int(batch.record[token]), f"{what} {of_tokens[token].item()}")
    return found


def bisect(records: Sequence[int], is_finite: Callable[[Sequence[int]], bool]) -> set[int]:
    """Find the records that are not finite by themselves, by bisection; all of them if only their sum is not finite.

    `is_finite` tells for given records whether the gradient of their loss terms is finite.
    """
    if is_finite(records):
        return set()
    if len(records) == 1:
        return set(records)
    middle = len(records) // 2
    return bisect(records[:middle], is_finite) | bisect(records[middle:], is_finite) or set(records)
