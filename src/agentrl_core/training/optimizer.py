"""Run one optimizer update over all micro-batches and ranks, or refuse it and leave no trace.

An update is refused if an advantage, a log-probability, the loss or the gradient is not finite.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import attrs
import torch

from agentrl_core.errors import TrainingError
from agentrl_core.losses.aggregate import aggregate
from agentrl_core.losses.contract import checked_output
from agentrl_core.losses.proximal import loglinear_proximal
from agentrl_core.training.diagnosis import NotFiniteError, bisect, culprits_of, select
from agentrl_core.training.metrics import Means
from agentrl_core.training.ranks import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    from agentrl_core.api.losses import LossBatch, LossCalculator, LossOutput
    from agentrl_core.batching.packing import MicroBatch, Update
    from agentrl_core.losses.aggregate import AggregationConfig, Denominators
    from agentrl_core.losses.section import ProximalMethod
    from agentrl_core.training.diagnosis import Culprits
    from agentrl_core.training.master_weights import MasterWeights
    from agentrl_core.training.policy import Policy
    from agentrl_core.training.ranks import Ranks
    from agentrl_core.training.routing import Routes

T = TypeVar("T")


def adamw(masters: MasterWeights, *, lr: float, betas: tuple[float, float], weight_decay: float) -> torch.optim.AdamW:
    """Make a fused AdamW optimizer of the trained weights; its state is fp32, and each step also sets the module."""
    optimizer = torch.optim.AdamW(masters.parameters, lr=lr, betas=betas, weight_decay=weight_decay, fused=True)
    optimizer.register_step_post_hook(lambda *_: masters.round_into_module())
    return optimizer


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of the next update."""
    for group in optimizer.param_groups:
        group["lr"] = lr


@attrs.frozen(kw_only=True, eq=False)
class PreStep:
    """Values of one micro-batch that are computed before the step's first update changes the weights."""

    proximal: Tensor | None = None
    """Log-probabilities of the loss tokens under the policy before the step, if the calculator reads them. None in the
    first update, where the current policy is the proximal one. [N]"""
    reference: Tensor | None = None
    """Log-probabilities of the loss tokens under the reference policy, if the calculator reads them. [N]"""
    routes: Routes | None = None
    """Experts that the tokens used before the step, if all updates are to use the same (`trainer.routing_replay`)."""

    def replayed(self) -> AbstractContextManager[None]:
        """Make forward passes inside the context use the experts of `routes`, if there are any."""
        return nullcontext() if self.routes is None else self.routes.replayed()

    def select(self, tokens: Tensor) -> PreStep:
        """Return a copy for the loss tokens `tokens` (bool [N]) only; the forwarded token ids stay the same."""
        return attrs.evolve(
            self,
            proximal=None if self.proximal is None else self.proximal[tokens],
            reference=None if self.reference is None else self.reference[tokens],
        )


@attrs.frozen(kw_only=True, eq=False)
class _Forward:
    """Results of one micro-batch's forward pass, up to its share of the loss."""

    logprobs: Tensor
    """[N], with a gradient."""
    entropy: Tensor
    """[N]"""
    view: LossBatch
    output: LossOutput
    loss: Tensor
    """Share of the update's loss. Scalar."""


@attrs.frozen(kw_only=True, eq=False)
class _Share:
    """Results of one rank's part of an update, before the weights change. Pickled and sent to all ranks."""

    loss: float
    culprits: Culprits
    means: Means
    records: Sequence[int]
    """Indices of the records in this part, rising."""


_Parts: TypeAlias = "Sequence[tuple[MicroBatch, PreStep]]"


class Updater:
    """Optimizer update: forward, loss and backward of each micro-batch, then gradient clipping and one step.

    The loss's denominators are known before the first backward pass. So each micro-batch adds its exact share, and the
    gradient does not depend on how samples are packed or distributed over ranks.
    """

    def __init__(
        self,
        policy: Policy,
        calculator: LossCalculator,
        aggregation: AggregationConfig,
        *,
        max_grad_norm: float,
        proximal: ProximalMethod = "recompute",
        observe: Callable[[LossBatch], Mapping[str, tuple[float, float]]] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """`observe` returns further per-token statistics of each micro-batch: name -> (sum, count).

        `ranks` train the policy together. Each rank calls `update` with its share, which may be empty; all get the same
        loss, statistics and weights, or all raise.
        """
        self._policy, self._calculator, self._aggregation = policy, calculator, aggregation
        self._masters = policy.masters
        self._max_grad_norm, self._proximal_method = max_grad_norm, proximal
        self._observe, self._ranks = observe, ranks

    def update(
        self,
        optimizer: torch.optim.Optimizer,
        update: Update,
        before: Sequence[PreStep] | None = None,
        *,
        means: Means,
        version: int = 0,
        inspect: Callable[[MicroBatch, Tensor], None] | None = None,
        names: Sequence[str] = (),
    ) -> float:
        """Change the weights once; return the loss. Per-token statistics go into `means`.

        `before`: one per micro-batch, or none if nothing had to be computed. `version`: policy version of the current
        weights. `inspect` is called with each micro-batch and its log-probabilities [N], all finite, before its
        backward pass. `names`: record ids that `MicroBatch.record` indexes. Raises `NotFiniteError` if an advantage, a
        log-probability, the loss or the gradient is not finite; weights, optimizer and `means` are then unchanged.
        """
        parts = list(zip(update.micro_batches, before or [PreStep()] * len(update.micro_batches), strict=True))
        # After records were left out, a micro-batch may have no loss token.
        parts = [(batch, item) for batch, item in parts if len(batch.record)]
        self._masters.zero_grad()
        denominators = self._ranks.denominators(update.denominators)
        shares = self._gather(lambda: self._accumulate(parts, denominators, version, inspect))
        value = sum(share.loss for share in shares)
        culprits: Culprits = {}
        for share in shares:
            culprits |= share.culprits
        if culprits:
            self._masters.zero_grad()
            raise NotFiniteError(culprits, names)
        # Every term is finite, but their sum overflows: no single record causes it.
        if not math.isfinite(value):
            self._masters.zero_grad()
            raise NotFiniteError(dict.fromkeys(_records(shares), f"loss {value}"), names, alone=False)
        self._ranks.add_up_gradients(self._masters.parameters)
        norm = torch.nn.utils.clip_grad_norm_(self._masters.parameters, self._max_grad_norm)
        if not torch.isfinite(norm):
            blamed = self._gather(lambda: self._blamed(parts, denominators, version))
            self._masters.zero_grad()
            culprits = {record: what for of_rank in blamed for record, what in of_rank.items()}
            if culprits:
                raise NotFiniteError(culprits, names)
            everyone = dict.fromkeys(_records(shares), "gradient norm of all together")
            raise NotFiniteError(everyone, names, alone=False)
        optimizer.step()
        for share in shares:
            means.join(share.means)
        means.add("grad_norm", norm)
        return value

    def _accumulate(
        self,
        parts: _Parts,
        denominators: Denominators,
        version: int,
        inspect: Callable[[MicroBatch, Tensor], None] | None,
    ) -> _Share:
        """Run forward and backward passes of this rank's micro-batches.

        After the first micro-batch that is not finite, the others only run forward, to find all records to blame.
        """
        value, found = 0.0, Means()
        culprits: Culprits = {}
        for batch, item in parts:
            done = self._forward(batch, item, denominators, version)
            culprits |= culprits_of(batch, done.logprobs.detach(), done.output)
            if culprits:
                continue
            if inspect is not None:
                inspect(batch, done.logprobs.detach())
            done.loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
            value += done.loss.item()
            self._count(found, done)
        records = sorted({record for batch, _ in parts for record in batch.record.tolist()})
        return _Share(loss=value, culprits=culprits, means=found, records=records)

    def _gather(self, compute: Callable[[], T]) -> list[T]:
        """Return the results of all ranks. If one rank raises, all raise."""
        try:
            here = compute()
        except Exception as error:
            # The other ranks wait in `gather`. Without this message they would wait forever.
            self._ranks.gather(TrainingError(f"rank {self._ranks.rank}: {error}"))
            raise
        found: list[T | TrainingError] = self._ranks.gather(here)
        for item in found:
            if isinstance(item, TrainingError):
                raise item
        return cast("list[T]", found)

    def _forward(self, batch: MicroBatch, before: PreStep, denominators: Denominators, version: int) -> _Forward:
        with before.replayed():
            logprobs, entropy = self._policy.logprobs(batch, entropy_gradient="entropy" in self._calculator.needs)
        view = attrs.evolve(batch.view(logprobs, entropy, version=version), reference_logprobs=before.reference)
        view = attrs.evolve(view, proximal_logprobs=self._proximal(view, before))
        output = checked_output(self._calculator, view)
        loss = aggregate(self._aggregation, view, output, denominators)
        return _Forward(logprobs=logprobs, entropy=entropy, view=view, output=output, loss=loss)

    def _proximal(self, batch: LossBatch, before: PreStep) -> Tensor | None:
        """Return the log-probabilities of the proximal policy, if the calculator reads them. [N]."""
        if "proximal" not in self._calculator.needs:
            return None
        if self._proximal_method == "loglinear":
            return loglinear_proximal(batch)
        return batch.logprobs.detach() if before.proximal is None else before.proximal

    def _blamed(self, parts: _Parts, denominators: Denominators, version: int) -> Culprits:
        """Find the records whose gradient is not finite, by running a refused update's micro-batches again.

        If the gradient at a log-probability is not finite, the loss is wrong for its record. Else the fault is further
        back in the network, and bisection over the records finds it.
        """
        culprits: Culprits = {}
        for batch, before in parts:
            at_tokens, norm = self._gradient(batch, before, denominators, version)
            if torch.isfinite(norm):
                continue

            def is_finite(records: Sequence[int], batch: MicroBatch = batch, before: PreStep = before) -> bool:
                tokens = torch.isin(batch.record, batch.record.new_tensor(records))
                _, norm = self._gradient(select(batch, tokens), before.select(tokens), denominators, version)
                return bool(torch.isfinite(norm))

            found = set(batch.record[~torch.isfinite(at_tokens)].tolist())
            found = found or bisect(sorted(set(batch.record.tolist())), is_finite)
            culprits |= dict.fromkeys(found, f"gradient norm {norm.item()}")
        return culprits

    def _gradient(
        self, batch: MicroBatch, before: PreStep, denominators: Denominators, version: int
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient of a micro-batch's loss at its log-probabilities [N], and its norm at the weights."""
        self._masters.zero_grad()
        done = self._forward(batch, before, denominators, version)
        done.logprobs.retain_grad()
        done.loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        gradients = [weight.grad for weight in self._masters.parameters if weight.grad is not None]
        at_tokens = torch.zeros_like(done.logprobs) if done.logprobs.grad is None else done.logprobs.grad
        return at_tokens, torch.nn.utils.get_total_norm(gradients)

    def _count(self, means: Means, done: _Forward) -> None:
        """Add a micro-batch's statistics."""
        means.add("entropy", done.entropy.detach().sum(), len(done.entropy))
        for name, (total, count) in done.output.metrics.items():
            means.add(name, total, count)
        for name, (part, tokens) in (self._observe(done.view) if self._observe else {}).items():
            means.add(name, part, tokens)


def _records(shares: Sequence[_Share]) -> list[int]:
    return sorted({record for share in shares for record in share.records})
