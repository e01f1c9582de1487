"""Log-probabilities renormalised over sampling masks: only the logits of the kept tokens are ever computed.

With top-k or top-p a token was drawn from the temperature-scaled distribution over the tokens that these left, its
sampling mask. The learner renormalises over the same tokens (keep sampling mask: DeepSeek-V3.2, arXiv 2512.02556,
section 3.1), so the importance ratio is exact, and only kept tokens get a gradient. N tokens, E entries in their masks,
H hidden width, V vocabulary rows of this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.losses.vocab_parallel import VocabularyShard

_ENTRIES = 2**21
"""Largest number of gathered values of hidden states, and of head rows, at once: entries x hidden width."""
_GPU_ENTRIES = 2**26


@attrs.frozen(kw_only=True, eq=False)
class KeptSets:
    """Sampling masks of N tokens."""

    counts: Tensor
    """Number of kept tokens; 0: all tokens. Long. [N]"""
    ids: Tensor
    """Kept token ids, one mask after the other. Long. [E]"""

    @property
    def owner(self) -> Tensor:
        """Return the token whose mask each entry belongs to. Long, rising. [E]."""
        places = torch.arange(len(self.counts), device=self.counts.device)
        return places.repeat_interleave(self.counts, output_size=len(self.ids))

    def part(self, wanted: slice | Tensor) -> KeptSets:
        """Return the masks of some tokens, as a slice or indices select them."""
        counts = self.counts[wanted]
        starts = (self.counts.cumsum(0) - self.counts)[wanted]
        # The place of each entry: the start of its mask, and its rank in it.
        firsts = counts.cumsum(0) - counts
        total = int(counts.sum())
        shift = (starts - firsts).repeat_interleave(counts, output_size=total)
        return KeptSets(counts=counts, ids=self.ids[shift + torch.arange(total, device=shift.device)])


def kept_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    kept: KeptSets,
    *,
    divisor: Tensor | None,
    shard: VocabularyShard | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute log softmax(hidden @ weight[kept].T / divisor) at `targets`, and the entropies. [N] each, in nats.

    Every token must have a mask. `divisor` [N, 1], None for 1. All else is as in `losses.logprob.token_logprobs`.
    Raises `IndexError` for ids outside the vocabulary and for a target that its mask lacks.
    """
    vocabulary = len(weight) if shard is None else shard.vocabulary
    if len(kept.ids) and not bool(((kept.ids >= 0) & (kept.ids < vocabulary)).all()):
        raise IndexError(
            f"sampling masks: found ids in [{kept.ids.min()}, {kept.ids.max()}], expected [0, {vocabulary})"
        )
    logits: Tensor = _KeptLogits.apply(  # type: ignore[no-untyped-call]  # autograd's own signature
        hidden, weight, kept.owner, kept.ids, shard
    )
    return _normalised(logits, targets, kept, divisor)


def kept_logits_logprobs(
    logits: Tensor, targets: Tensor, kept: KeptSets, *, divisor: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the same as `kept_logprobs` from logits [N, V]."""
    picked = logits[kept.owner, kept.ids]
    wide = picked.double() if picked.dtype == torch.float64 else picked.float()
    return _normalised(wide, targets, kept, divisor)


def _normalised(logits: Tensor, targets: Tensor, kept: KeptSets, divisor: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the targets' log-probabilities and the entropies [N] from the logits of the masks' entries [E]."""
    owner, count = kept.owner, len(kept.counts)
    if divisor is not None:
        logits = logits / divisor.squeeze(1)[owner]
    hits = kept.ids == targets[owner]
    found = torch.zeros_like(kept.counts).index_add_(0, owner, hits.long())
    if not bool((found == 1).all()):
        place = int((found != 1).nonzero()[0])
        raise IndexError(
            f"sampling masks: token {int(targets[place])} at index {place} was sampled, but its mask has it "
            f"{int(found[place])} times, expected once"
        )
    # The maximum keeps exponentials from overflowing; it cancels out, so it needs no gradient.
    highest = logits.new_full((count,), -torch.inf).scatter_reduce(0, owner, logits.detach(), "amax")
    shifted = logits - highest[owner]
    exponentials = shifted.exp()
    total = logits.new_zeros(count).index_add(0, owner, exponentials)
    normaliser = total.log()
    logprobs = shifted[hits] - normaliser
    # H = log Z - sum p z, with the maximum taken off both.
    weighted = logits.new_zeros(count).index_add(0, owner, exponentials * shifted)
    return logprobs, normaliser - weighted / total


class _KeptLogits(torch.autograd.Function):
    """Inner products of hidden states and head rows, one per entry of the masks, without a gathered copy of all."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, owner: Tensor, ids: Tensor, shard: VocabularyShard | None
    ) -> Tensor:
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logits = torch.zeros(len(ids), dtype=wide, device=hidden.device)
        own, rows = _own(ids, len(weight), shard)
        for part in _parts(own, hidden):
            logits[part] = (hidden[owner[part]].to(wide) * weight[rows[part]].to(wide)).sum(1)
        if shard is not None:
            shard.add_up(logits)
        ctx.save_for_backward(hidden, weight, owner, ids)
        ctx.shard = shard
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, owner, ids = ctx.saved_tensors
        to_logits = gradients[0]
        to_hidden = torch.zeros_like(hidden, dtype=to_logits.dtype)
        to_weight = torch.zeros_like(weight, dtype=to_logits.dtype) if ctx.needs_input_grad[1] else None
        own, rows = _own(ids, len(weight), ctx.shard)
        for part in _parts(own, hidden):
            scale = to_logits[part, None]
            to_hidden.index_add_(0, owner[part], weight[rows[part]].to(scale.dtype) * scale)
            if to_weight is not None:
                to_weight.index_add_(0, rows[part], hidden[owner[part]].to(scale.dtype) * scale)
        if ctx.shard is not None:
            ctx.shard.add_up(to_hidden)
        head = None if to_weight is None else to_weight.to(weight.dtype)
        return to_hidden.to(hidden.dtype), head, None, None, None


def _own(ids: Tensor, count: int, shard: VocabularyShard | None) -> tuple[Tensor, Tensor]:
    """Return which entries have a head row in this process, and the row of each entry."""
    if shard is None:
        return torch.arange(len(ids), device=ids.device), ids
    rows = ids - shard.start
    return ((rows >= 0) & (rows < count)).nonzero().squeeze(1), rows


def _parts(own: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
    """Split entries so that the gathered rows of one part stay small."""
    most = _GPU_ENTRIES if hidden.is_cuda else _ENTRIES
    parts: tuple[Tensor, ...] = own.split(max(1, most // max(hidden.shape[1], 1)))  # type: ignore[no-untyped-call]
    return parts
