"""Compute log-probabilities of given tokens from hidden states without storing the logits of all tokens.

Logits exist for one tile (tokens x vocabulary rows) at a time. The backward pass computes them again, because a token's
gradient is known only after the whole loss. Tiles go over the tokens first: each part of the head is read once, and its
gradient is written once, for any number of tokens. All sums and products are accumulated in fp32, or fp64 for fp64
input. N tokens, H hidden width, V vocabulary rows of this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from agentrl_core.losses.kept import kept_logits_logprobs, kept_logprobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from agentrl_core.losses.kept import KeptSets
    from agentrl_core.losses.vocab_parallel import VocabularyShard

_TILE_ROWS, _CPU_TILE = 1024, 2**20
"""Largest number of tokens, and of logits, of a tile on CPU. Its 4 MB in fp32 stay in cache, which is twice as fast."""
_GPU_TILE = 2**26
"""Largest number of logits of a tile on other devices: 256 MB, with up to 8 * `_TILE_ROWS` tokens. Tiles are large so
that kernels run long compared with their launch."""


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: Tensor | float = 1.0,
    entropy: bool = False,
    kept: KeptSets | None = None,
    shard: VocabularyShard | None = None,
    tile: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute log softmax(hidden @ weight.T / temperature) at `targets`, and with `entropy` the entropies.

    hidden [N, H], weight [V, H], targets [N] long, temperature [N] or one for all -> log-probabilities [N], and
    entropies [N] or None. Results are in nats, in fp32 (fp64 for fp64 input), and differentiable; a detached entropy
    costs nothing in the backward pass. With a `shard`, `weight` has this process's rows of the head, and every process
    of the group must call with the same tokens. `kept`: sampling masks, over which softmax and entropy go. `tile`:
    tokens and vocabulary rows whose logits are in memory at once; None: a size for the device. Raises `IndexError` for
    targets outside the vocabulary or their masks.
    """
    _check_targets(targets, len(weight) if shard is None else shard.vocabulary)

    def of_all(hidden: Tensor, targets: Tensor, divisor: Tensor | None) -> tuple[Tensor, Tensor | None]:
        found: tuple[Tensor, Tensor | None] = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]  # autograd's own
            hidden, weight, targets, divisor, entropy, shard, tile or _tile(hidden, len(weight))
        )
        return found

    def of_kept(
        hidden: Tensor, targets: Tensor, divisor: Tensor | None, kept: KeptSets
    ) -> tuple[Tensor, Tensor | None]:
        logprobs, entropies = kept_logprobs(hidden, weight, targets, kept, divisor=divisor, shard=shard)
        return logprobs, entropies if entropy else None

    return _by_mask(hidden, targets, _divisor(temperature, hidden), kept, of_all, of_kept)


def logits_logprobs(
    logits: Tensor,
    targets: Tensor,
    *,
    temperature: Tensor | float = 1.0,
    entropy: bool = False,
    kept: KeptSets | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute the same as `token_logprobs` from logits [N, V], for models whose head is not a plain matrix product."""

    def of_all(logits: Tensor, targets: Tensor, divisor: Tensor | None) -> tuple[Tensor, Tensor | None]:
        wide = logits.to(_wide(logits))
        distribution = torch.log_softmax(wide if divisor is None else wide / divisor, -1)
        chosen = distribution.gather(1, targets[:, None]).squeeze(1)
        return chosen, -(distribution.exp() * distribution).sum(-1) if entropy else None

    def of_kept(
        logits: Tensor, targets: Tensor, divisor: Tensor | None, kept: KeptSets
    ) -> tuple[Tensor, Tensor | None]:
        logprobs, entropies = kept_logits_logprobs(logits, targets, kept, divisor=divisor)
        return logprobs, entropies if entropy else None

    return _by_mask(logits, targets, _divisor(temperature, logits), kept, of_all, of_kept)


def _by_mask(
    inputs: Tensor,
    targets: Tensor,
    divisor: Tensor | None,
    kept: KeptSets | None,
    of_all: Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]],
    of_kept: Callable[[Tensor, Tensor, Tensor | None, KeptSets], tuple[Tensor, Tensor | None]],
) -> tuple[Tensor, Tensor | None]:
    """Compute tokens without a mask by `of_all`, those with one by `of_kept`; return both in the tokens' order."""
    if kept is None or not len(kept.ids):
        return of_all(inputs, targets, divisor)
    free = (kept.counts == 0).nonzero().squeeze(1)
    if not len(free):
        return of_kept(inputs, targets, divisor, kept)
    held = kept.counts.nonzero().squeeze(1)
    one, other = (None if divisor is None else divisor[rows] for rows in (free, held))
    parts = of_all(inputs[free], targets[free], one), of_kept(inputs[held], targets[held], other, kept.part(held))
    order = torch.cat((free, held)).argsort()
    (logprobs, entropies), (more, others) = parts
    both = None if entropies is None or others is None else torch.cat((entropies, others))[order]
    return torch.cat((logprobs, more))[order], both


@attrs.define(kw_only=True, eq=False)
class SoftmaxSums:
    """Running sums of an online softmax over the vocabulary rows seen so far. All [N]."""

    maximum: Tensor
    """Largest logit."""
    total: Tensor
    """Sum of exp(logit - maximum)."""
    weighted: Tensor | None
    """Sum of exp(logit - maximum) x logit, for the entropy; None if that is not computed."""
    chosen: Tensor
    """Logit of the target token, 0 while its row was not seen."""

    @classmethod
    def of_nothing(cls, hidden: Tensor, *, entropy: bool) -> SoftmaxSums:
        """Return the sums before the first vocabulary row, for hidden [N, H]."""
        zeros = hidden.new_zeros(len(hidden), dtype=_wide(hidden))
        return cls(
            maximum=torch.full_like(zeros, -torch.inf),
            total=zeros,
            weighted=zeros.clone() if entropy else None,
            chosen=zeros.clone(),
        )

    def add(self, logits: Tensor, scratch: Tensor | None, rows: slice) -> None:
        """Add a tile of logits [rows, columns]; without `scratch` the logits are overwritten."""
        # Old sums are rescaled to the new maximum, so that no exponential overflows.
        maximum = torch.maximum(self.maximum[rows], logits.amax(-1))
        old = (self.maximum[rows] - maximum).exp_()
        self.maximum[rows] = maximum
        shifted = torch.sub(logits, maximum[:, None], out=logits if scratch is None else scratch)
        exponentials = shifted.exp_()
        self.total[rows] = self.total[rows] * old + exponentials.sum(-1)
        if self.weighted is not None:
            self.weighted[rows] = self.weighted[rows] * old + exponentials.mul_(logits).sum(-1)


class _TokenLogprobs(torch.autograd.Function):
    """Autograd function that goes over the tiles, in the forward and again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        divisor: Tensor | None,
        entropy: bool,  # noqa: FBT001  # autograd functions take positional arguments only
        shard: VocabularyShard | None,
        tile: tuple[int, int],
    ) -> tuple[Tensor, Tensor | None]:
        start = 0 if shard is None else shard.start
        sums = SoftmaxSums.of_nothing(hidden, entropy=entropy)
        vectors = hidden.to(_operand(hidden))
        buffer = torch.empty(tile, dtype=sums.total.dtype, device=hidden.device).view(-1)
        scratch = torch.empty_like(buffer) if entropy else None
        for columns in _parts(len(weight), tile[1]):
            heads = weight[columns].to(vectors.dtype)
            for rows in _parts(len(hidden), tile[0]):
                logits = _logits(vectors[rows], heads, divisor, rows, buffer)
                place, inside = _places(targets[rows], start + columns.start, len(heads))
                picked = logits.gather(1, place[:, None]).squeeze(1)
                sums.chosen[rows] = torch.where(inside, picked, sums.chosen[rows])
                sums.add(logits, None if scratch is None else scratch[: logits.numel()].view_as(logits), rows)
        if shard is not None:
            shard.merge(sums)
        # log Z, and H = log Z - sum p z.
        normalisers = sums.maximum + sums.total.log()
        entropies = None if sums.weighted is None else normalisers - sums.weighted / sums.total
        # A result that the loss does not use has the gradient None instead of zeros: its backward costs nothing.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, targets, normalisers, entropies, divisor)
        ctx.start, ctx.shard, ctx.tile = start, shard, tile
        return sums.chosen - normalisers, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, normalisers, entropies, divisor = ctx.saved_tensors
        to_logprobs = torch.zeros_like(normalisers) if gradients[0] is None else gradients[0]
        to_entropies = gradients[1]
        to_hidden = torch.zeros_like(hidden, dtype=normalisers.dtype)
        to_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        vectors = hidden.to(_operand(hidden))
        buffer = torch.empty(ctx.tile, dtype=normalisers.dtype, device=hidden.device).view(-1)
        for columns in _parts(len(weight), ctx.tile[1]):
            heads = weight[columns].to(vectors.dtype)
            # The gradient of this part of the head is summed over all tokens in fp32 and rounded once.
            to_heads = torch.zeros_like(heads, dtype=normalisers.dtype)
            for rows in _parts(len(hidden), ctx.tile[0]):
                logits = _logits(vectors[rows], heads, divisor, rows, buffer)
                log_distribution = logits.sub_(normalisers[rows, None])
                # d log p(y) / dz = onehot(y) - p;  dH / dz = -p (log p + H). The onehot is added by scatter below.
                scale = -to_logprobs[rows, None]
                if to_entropies is not None and entropies is not None:
                    scale = scale - (log_distribution + entropies[rows, None]) * to_entropies[rows, None]
                to_logits = log_distribution.exp_().mul_(scale)
                place, inside = _places(targets[rows], ctx.start + columns.start, len(heads))
                to_logits.scatter_add_(1, place[:, None], (to_logprobs[rows] * inside)[:, None])
                if divisor is not None:
                    to_logits.div_(divisor[rows])
                narrow = to_logits.to(vectors.dtype)
                _add_product(to_hidden[rows], narrow, heads)
                if to_weight is not None:
                    _add_product(to_heads, narrow.T, vectors[rows])
            if to_weight is not None:
                to_weight[columns] = to_heads
        if ctx.shard is not None:
            ctx.shard.add_up(to_hidden)
        return to_hidden.to(hidden.dtype), to_weight, None, None, None, None, None


def _logits(vectors: Tensor, heads: Tensor, divisor: Tensor | None, rows: slice, buffer: Tensor) -> Tensor:
    """Return the logits of one tile [rows, columns], in `buffer` if its dtype is that of the operands."""
    if vectors.dtype == buffer.dtype:
        logits = buffer[: len(vectors) * len(heads)].view(len(vectors), len(heads))
        torch.mm(vectors, heads.T, out=logits)
    else:
        logits = torch.mm(vectors, heads.T, out_dtype=buffer.dtype)
    return logits if divisor is None else logits.div_(divisor[rows])


def _add_product(into: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == into.dtype:
        into.addmm_(left, right)
    else:
        into.add_(torch.mm(left, right, out_dtype=into.dtype))


def _places(targets: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the targets' columns in a tile that begins at vocabulary row `first`, and whether they are in the tile.

    Columns outside the tile are clamped to valid indices.
    """
    places = targets - first
    return places.clamp(0, count - 1), (places >= 0) & (places < count)


def _check_targets(targets: Tensor, vocabulary: int) -> None:
    # A target outside the vocabulary would be in no tile, and silently get the logit 0.
    if len(targets) and not bool(((targets >= 0) & (targets < vocabulary)).all()):
        raise IndexError(f"targets: found ids in [{targets.min()}, {targets.max()}], expected [0, {vocabulary})")


def _divisor(temperature: Tensor | float, like: Tensor) -> Tensor | None:
    """Return the divisor of each token's logits [N, 1]; None if it is 1 for all tokens."""
    column = torch.as_tensor(temperature, dtype=_wide(like), device=like.device).expand(len(like))[:, None]
    return None if bool((column == 1.0).all()) else column


def _tile(hidden: Tensor, vocabulary: int) -> tuple[int, int]:
    """Return the tile size for the device: tokens, and vocabulary rows of at most `vocabulary`."""
    most_rows, logits = (_TILE_ROWS, _CPU_TILE) if hidden.device.type == "cpu" else (8 * _TILE_ROWS, _GPU_TILE)
    rows = min(max(len(hidden), 1), most_rows)
    return rows, max(1, min(vocabulary, logits // rows))  # a process may have no rows of the head


def _operand(hidden: Tensor) -> torch.dtype:
    """Return the dtype of matrix operands.

    CUDA multiplies narrow dtypes and accumulates in fp32. Other devices would round each result, so they use fp32.
    """
    return hidden.dtype if hidden.is_cuda else _wide(hidden)


def _parts(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
