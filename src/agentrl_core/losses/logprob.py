"""Log-probabilities of chosen tokens from hidden states, without ever holding all logits.

N tokens, H hidden width, V vocabulary. Logits live for one chunk of tokens at a time and are computed again in
the backward pass, because a token's gradient is known only after the whole loss is. What fits into one chunk
is kept instead, which costs nothing then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_ELEMENTS = 2**24
"""Logits held at once: 64 MB in fp32. Half of it is slower by a third at V = 152k on a CPU, more gains nothing."""


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: Tensor | float = 1.0,
    entropy: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor | None]:
    """Compute log softmax(hidden @ weight.T / temperature) at `targets`, and on request the entropy.

    hidden [N, H], weight [V, H], targets [N] long, temperature of each token [N] or of all -> [N] and [N] or None,
    in nats, fp32 (fp64 for fp64 input), both differentiable. Sums over the vocabulary run in fp32 for narrower inputs.
    """
    logprobs, entropies = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]  # autograd's own signature
        hidden, weight, targets, _divisor(temperature, hidden), entropy, max(1, chunk_elements // weight.shape[0])
    )
    return logprobs, entropies


def logits_logprobs(
    logits: Tensor, targets: Tensor, *, temperature: Tensor | float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The same from logits [N, V], for models that do more than one matrix product after the last hidden state."""
    divisor = _divisor(temperature, logits)
    wide = logits.to(_wide(logits))
    distribution = torch.log_softmax(wide if divisor is None else wide / divisor, -1)
    chosen = distribution.gather(1, targets[:, None]).squeeze(1)
    return chosen, -(distribution.exp() * distribution).sum(-1) if entropy else None


class _TokenLogprobs(torch.autograd.Function):
    """One chunk after the other, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        divisor: Tensor | None,
        entropy: bool,  # noqa: FBT001  # autograd functions take positional arguments only
        chunk: int,
    ) -> tuple[Tensor, Tensor | None]:
        wide = _wide(hidden)
        count = len(targets)
        logprobs = hidden.new_empty(count, dtype=wide)
        entropies = hidden.new_empty(count, dtype=wide) if entropy else None
        normalisers = hidden.new_empty(count, dtype=wide)
        logits = None
        for part in _parts(count, chunk):
            logits = _logits(hidden[part], weight, divisor, part)
            normalisers[part] = torch.logsumexp(logits, -1)
            logprobs[part] = logits.gather(1, targets[part, None]).squeeze(1) - normalisers[part]
            if entropies is not None:
                # H = log Z - sum p z
                mean = ((logits - normalisers[part, None]).exp_() * logits).sum(-1)
                entropies[part] = normalisers[part] - mean
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            hidden, weight, targets, normalisers, entropies, divisor, logits if count <= chunk else None
        )
        ctx.chunk = chunk
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, normalisers, entropies, divisor, kept = ctx.saved_tensors
        to_logprobs, to_entropies = gradients
        if to_logprobs is None:
            to_logprobs = torch.zeros_like(normalisers)
        to_hidden = torch.empty_like(hidden)
        to_weight = torch.zeros_like(weight, dtype=normalisers.dtype)
        for part in _parts(len(targets), ctx.chunk):
            logits = kept if kept is not None else _logits(hidden[part], weight, divisor, part)
            log_distribution = logits - normalisers[part, None]
            # d log p(y) / dz = onehot(y) - p;  dH / dz = -p (log p + H)
            scale = -to_logprobs[part, None]
            if to_entropies is not None and entropies is not None:
                scale = scale - (log_distribution + entropies[part, None]) * to_entropies[part, None]
            to_logits = log_distribution.exp_().mul_(scale)
            to_logits.scatter_add_(1, targets[part, None], to_logprobs[part, None])
            if divisor is not None:
                to_logits.div_(divisor[part])
            to_hidden[part] = to_logits.to(weight.dtype) @ weight
            to_weight.addmm_(to_logits.T, hidden[part].to(to_weight.dtype))
        return to_hidden, to_weight.to(weight.dtype), None, None, None, None


def _logits(hidden: Tensor, weight: Tensor, divisor: Tensor | None, part: slice) -> Tensor:
    logits = (hidden @ weight.T).to(_wide(hidden))
    return logits if divisor is None else logits.div_(divisor[part])


def _divisor(temperature: Tensor | float, like: Tensor) -> Tensor | None:
    """What the logits of each token are divided by, [N, 1]; None where it is 1 for all."""
    column = torch.as_tensor(temperature, dtype=_wide(like), device=like.device).expand(len(like))[:, None]
    return None if bool((column == 1.0).all()) else column


def _parts(count: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, count)) for start in range(0, count, chunk)]


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
