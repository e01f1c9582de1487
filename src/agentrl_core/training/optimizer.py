"""One optimizer update over any number of micro-batches, refused where it would be wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from agentrl_core.errors import TrainingError
from agentrl_core.losses.aggregate import aggregate
from agentrl_core.losses.base import LossBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from agentrl_core.batching.packing import MicroBatch, Update
    from agentrl_core.losses.aggregate import AggregationConfig
    from agentrl_core.losses.base import LossCalculator
    from agentrl_core.training.metrics import Means
    from agentrl_core.training.policy import Policy


def adamw(model: Any, *, lr: float, betas: tuple[float, float], weight_decay: float) -> torch.optim.AdamW:
    """AdamW over every weight that is trained."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.optim.AdamW(weights, lr=lr, betas=betas, weight_decay=weight_decay, fused=True)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of the next update."""
    for group in optimizer.param_groups:
        group["lr"] = lr


class Updater:
    """Forward, loss and backward of an update's micro-batches, then clipping and one optimizer step.

    A loss's denominators are known before the first backward, so each micro-batch adds its exact share and the
    gradient does not depend on how rows were packed.
    """

    def __init__(
        self, policy: Policy, calculator: LossCalculator, aggregation: AggregationConfig, *, max_grad_norm: float
    ) -> None:
        self._policy, self._calculator, self._aggregation = policy, calculator, aggregation
        self._max_grad_norm = max_grad_norm

    def update(
        self,
        optimizer: torch.optim.Optimizer,
        update: Update,
        *,
        means: Means,
        version: int = 0,
        proximal: Sequence[Tensor] | None = None,
        inspect: Callable[[MicroBatch, Tensor], None] | None = None,
        names: Sequence[str] = (),
    ) -> float:
        """Change the weights once; returns the loss. Per-token statistics go into `means`.

        `proximal`: log-probs per micro-batch, where the calculator reads them. `inspect` sees each micro-batch
        with its log-probs before its backward. `names`: record names behind `MicroBatch.record`. Raises
        `TrainingError`, with the weights as they were, where loss or gradient is not finite.
        """
        optimizer.zero_grad(set_to_none=True)
        value = 0.0
        for index, batch in enumerate(update.micro_batches):
            logprobs, entropy = self._policy.logprobs(batch, entropy_gradient="entropy" in self._calculator.needs)
            if inspect is not None:
                inspect(batch, logprobs.detach())
            view = _loss_batch(batch, logprobs, entropy, version, proximal[index] if proximal else None)
            output = self._calculator.loss(view)
            loss = aggregate(self._aggregation, view, output, update.denominators)
            if not torch.isfinite(loss):
                bad = sorted(set(batch.record[~torch.isfinite(output.per_token)].tolist()) or set(update.records))
                raise TrainingError(_refusal("loss", loss.item(), [names[i] for i in bad] if names else []))
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
            value += loss.item()
            means.add("entropy", entropy.detach().sum(), len(entropy))
            for name, (total, count) in output.metrics.items():
                means.add(name, total, count)
        norm = torch.nn.utils.clip_grad_norm_(self._policy.model.parameters(), self._max_grad_norm)
        if not torch.isfinite(norm):
            involved = [names[i] for i in update.records] if names else []
            raise TrainingError(_refusal("gradient norm", norm.item(), involved))
        optimizer.step()
        means.add("grad_norm", norm)
        return value


def _loss_batch(
    batch: MicroBatch, logprobs: Tensor, entropy: Tensor, version: int, proximal: Tensor | None
) -> LossBatch:
    return LossBatch(
        logprobs=logprobs,
        behaviour_logprobs=batch.behaviour_logprobs,
        advantages=batch.advantages,
        mask=batch.mask,
        sequence=batch.sequence,
        num_sequences=batch.num_sequences,
        record=batch.record,
        group=batch.group,
        lag=version - batch.version,
        proximal_logprobs=proximal,
        entropy=entropy,
    )


def _refusal(what: str, value: float, records: Sequence[str]) -> str:
    shown = ", ".join(records[:8]) + (f" and {len(records) - 8} more" if len(records) > 8 else "")  # noqa: PLR2004
    return (
        f"the {what} is {value}, so the optimizer update was refused and the weights are unchanged"
        f"{f'; records: {shown}' if records else ''}. Look at their rewards and logprobs (agentrl trace show), "
        "and lower trainer.lr if earlier steps show a growing loss/grad_norm"
    )
