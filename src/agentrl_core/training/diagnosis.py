"""What would make a step wrong, and the records to blame for it: not finite, or engine and learner disagree."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs
import torch

from agentrl_core.config.invocation import command_line
from agentrl_core.errors import TrainingError
from agentrl_core.losses.aggregate import Denominators
from agentrl_core.training.ranks import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from agentrl_core.api.losses import LossOutput
    from agentrl_core.batching.packing import MicroBatch, Update
    from agentrl_core.batching.samples import Samples
    from agentrl_core.training.optimizer import Before
    from agentrl_core.training.ranks import Ranks

logger = logging.getLogger(__name__)

Culprits: TypeAlias = "dict[int, str]"
"""Index of a record -> what of it is not finite, with the value."""

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
    """An optimizer update would not be finite, and has not taken place."""

    def __init__(self, culprits: Culprits, names: Sequence[str], *, alone: bool = True) -> None:
        shown = [f"{names[index] if names else index} ({culprits[index]})" for index in sorted(culprits)[:_SHOWN]]
        more = f" and {len(culprits) - _SHOWN} more" if len(culprits) > _SHOWN else ""
        super().__init__(
            "the optimizer update would not be finite and was refused; the weights are as they were. "
            f"{'Records' if alone else 'No single record is to blame; those in it'}: {', '.join(shown)}{more}. "
            f"Look at their rewards and logprobs ({command_line('trace', 'show')}), lower trainer.lr if earlier steps "
            "show a growing loss/grad_norm, or let trainer.non_finite: skip leave such records out"
        )
        self.culprits = culprits
        self.alone = alone
        """Whether these records are to blame, and no others; else they are all that took part."""


class Guard:
    """Decides what becomes of an update that would not be finite, by `trainer.non_finite`."""

    def __init__(self, policy: Literal["stop", "skip"], names: Sequence[str], *, ranks: Ranks = ALONE) -> None:
        self._policy, self._names, self._ranks = policy, names, ranks
        self.left_out: dict[str, str] = {}
        """Id of a record that was left out -> what of it was not finite."""
        self.skipped_updates = 0
        """Updates that did not take place: nothing finite was left, or no record was to blame."""
        self.trained_tokens = 0
        """Loss tokens in the updates that took place."""

    def attempt(
        self,
        update: Update,
        before: Sequence[Before],
        apply: Callable[[Update, Sequence[Before]], float],
        *,
        again: Callable[[], None] | None = None,
    ) -> float | None:
        """Return what `apply` makes of the update, or of what is left of it; None where nothing is.

        `again` is called before each further attempt.

        With `stop`, the error goes on to the caller. With `skip`, the loss terms of the records to blame leave the
        update, and its denominators are counted anew: it is the update that would have been without them. Their token
        ids are still forwarded, so one whose hidden states are not finite takes its micro-batch along.
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
                if not any(self._ranks.gather(left and error.alone)):  # a rank with nothing left takes part still
                    self.skipped_updates += 1
                    return None
                update = reduced(update, kept)
                before = [item.select(tokens) for item, tokens in zip(before, kept, strict=True)]
                if again is not None:
                    again()
            else:
                self.trained_tokens += sum(len(batch.record) for batch in update.micro_batches)
                return value


def reduced(update: Update, kept: Sequence[Tensor]) -> Update:
    """Return the update with the loss tokens `kept` only; bool, [N] for each micro-batch.

    All token ids stay, so that what was computed of the micro-batches before still fits; one may be left without a
    loss token.
    """
    if not kept:
        return update
    batches = tuple(select(batch, tokens) for batch, tokens in zip(update.micro_batches, kept, strict=True))
    denominators = Denominators.count(
        torch.cat([batch.mask for batch in batches]),
        torch.cat([batch.sequence for batch in batches]),
        batches[0].num_sequences,
    )
    return attrs.evolve(update, micro_batches=batches, denominators=denominators)


def select(batch: MicroBatch, tokens: Tensor) -> MicroBatch:
    """Return the micro-batch with the loss tokens `tokens` (bool [N]) only; what is forwarded stays the same."""
    return attrs.evolve(batch, **{name: getattr(batch, name)[tokens] for name in _PER_TOKEN})


def culprits_of(batch: MicroBatch, logprobs: Tensor, output: LossOutput) -> Culprits:
    """Name the records of which something is not finite before the backward pass.

    What goes into the loss comes before the loss itself: a calculator may carry one bad number into other records.
    """
    inputs = {
        "advantage": batch.advantages,
        "engine's logprob": batch.behaviour_logprobs,
        "learner's logprob": logprobs,
    }
    terms = output.per_token * output.keep
    checked = [*inputs.values(), terms]
    if bool(torch.stack([torch.isfinite(values).all() for values in checked]).all()):  # the device is asked once
        return {}
    return _bad(batch, inputs) or _bad(batch, {"loss": terms})


def _bad(batch: MicroBatch, values: Mapping[str, Tensor]) -> Culprits:
    found: Culprits = {}
    for what, of_tokens in values.items():
        for token in (~torch.isfinite(of_tokens)).nonzero().flatten().tolist():
            found.setdefault(int(batch.record[token]), f"{what} {of_tokens[token].item()}")
    return found


def bisect(records: Sequence[int], is_finite: Callable[[Sequence[int]], bool]) -> set[int]:
    """Find the records that are not finite by themselves, halving; all of them where only their sum is not.

    `is_finite` tells whether the gradient of some records' loss terms is.
    """
    if is_finite(records):
        return set()
    if len(records) == 1:
        return set(records)
    middle = len(records) // 2
    return bisect(records[:middle], is_finite) | bisect(records[middle:], is_finite) or set(records)


class LogprobGap:
    """Compares the engine's log-probs with the learner's before the first update, on tokens of lag 0.

    Both come from the same weights there, so a difference beyond rounding means that the two do not see the same
    tokens, template, temperature or weights, and training would go wrong without a sign.
    """

    def __init__(self, samples: Samples, version: int, *, limit: float | None) -> None:
        self._samples, self._version, self._limit = samples, version, limit
        self.begin()

    def begin(self) -> None:
        """Start anew: an update that was refused is tried again without some of its tokens."""
        self._sum, self._kl, self._tokens, self._largest = 0.0, 0.0, 0, 0.0

    def metrics(self) -> dict[str, float]:
        """Largest and mean |learner - engine| in nats, and KL(engine || learner); none where nothing was compared.

        The divergence is estimated without bias by mean(r - 1 - log r), r = exp(learner - engine), each term of
        which is at least 0 (k3 of http://joschu.net/blog/kl-approx.html).
        """
        if not self._tokens:
            return {}
        return {
            "loss/logprob_gap_max": self._largest,
            "loss/logprob_gap_mean": self._sum / self._tokens,
            "loss/logprob_gap_kl": self._kl / self._tokens,
        }

    def inspect(self, batch: MicroBatch, logprobs: Tensor) -> None:
        """Look at one micro-batch, all finite; raise `TrainingError` beyond the limit.

        All of the first update are looked at: one that holds a fault may be any.
        """
        fresh = batch.version == self._version
        if not fresh.any():
            return
        differences = (logprobs - batch.behaviour_logprobs)[fresh].double()
        gaps = differences.abs()
        self._sum += gaps.sum().item()
        self._kl += (differences.expm1() - differences).sum().item()
        self._tokens += len(gaps)
        gap = gaps.max().item()
        self._largest = max(self._largest, gap)
        if self._limit is not None and gap > self._limit:
            worst = int(fresh.nonzero().flatten()[gaps.argmax()])
            interaction = int(batch.interaction[worst])
            token = int((batch.interaction[: worst + 1] == interaction).sum()) - 1
            raise TrainingError(
                f"record {self._samples.records[int(batch.record[worst])]}, interaction "
                f"{self._samples.interactions[interaction]}, output token {token} (id {int(batch.targets[worst])}): "
                f"the engine sampled it with logprob {batch.behaviour_logprobs[worst].item():.6f}, the learner with "
                f"the same weights gives {logprobs[worst].item():.6f}; more than trainer.max_logprob_gap = "
                f"{self._limit} apart. Engine and learner differ in weights, temperature, ids or precision"
            )
