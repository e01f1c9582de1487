"""Run a token trie depth first with the model's own cache: for sliding windows, linear attention and state spaces.

Each node runs with the cache that its parent left. This works for every layer that can continue from its cache, also
for attention sinks. It needs two forward passes:

- The forward pass stores no activations.
- The backward pass runs the forward again with gradients, and goes backward through a node as soon as all nodes below
  it are done. A child uses a detached copy of its parent's cache; its gradient with respect to that copy is added to
  the parent's backward.

So at most one path from the root to a leaf is in memory. U predictions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import torch

from agentrl_core.training.attention.branch_cache import Past

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from agentrl_core.batching.packing import MicroBatch
    from agentrl_core.batching.trie import TrieNode
    from agentrl_core.training.policy import Network


@attrs.frozen(eq=False)
class Dfs:
    """Attention method that calls the model's own forward for one node after the other.

    The backward pass adds to the parameters' `grad` itself. Call `backward()` on the loss; `torch.autograd.grad` does
    not see these gradients.
    """

    name: str = "dfs"
    merges = True

    def logprobs(self, network: Network, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of the batch's predictions. [U] each."""
        walk = _Walk(network, batch, tuple(_segments(batch.trie.nodes)))
        # Autograd calls a function's backward only if one of its tensor inputs requires a gradient. The weights are
        # not inputs here, so a dummy scalar stands for them.
        trained = torch.is_grad_enabled() and any(one.requires_grad for one in network.model.parameters())
        anchor = torch.zeros((), device=batch.ids.device, requires_grad=trained)
        logprobs, entropies = _Logprobs.apply(anchor, walk)  # type: ignore[no-untyped-call]  # autograd's own
        return logprobs, entropies


class _Segment(NamedTuple):
    """Tokens of one forward call: a node of the trie, except for nodes of a single token (see `_segments`)."""

    head: int | None
    """Place of the parent's single token, which runs in front of this node's own tokens; None as a rule."""
    start: int
    end: int
    stop: int
    """End of all nodes below it."""
    lone: bool
    """True for a leaf of one token after a cache. The token is repeated, so that the call has two tokens."""

    def ids(self, batch: MicroBatch) -> Tensor:
        """Return the token ids of the call. [1, tokens]."""
        own = batch.ids[self.start : self.end]
        if self.head is not None:
            own = torch.cat((batch.ids[self.head : self.head + 1], own))
        return (own.repeat(2) if self.lone else own)[None]

    def wanted(self, batch: MicroBatch) -> slice:
        """Return the range of the predictions that this segment scores.

        Several children may run the same head. Only the child right after the head scores the head's predictions, so
        that each prediction is scored once.
        """
        first = self.start - (self.head == self.start - 1)
        borders = torch.tensor([first, self.end], device=batch.ids.device)
        low, high = torch.searchsorted(batch.predictions.place, borders).tolist()
        return slice(low, high)


def _segments(nodes: Sequence[TrieNode]) -> Iterator[_Segment]:
    """Yield the nodes depth first, so that no call has a single token after a cache.

    For such a call models switch to a decoding kernel, which need not have a backward pass. A node of one token
    therefore runs in front of each of its children. Without children its token is repeated.
    """
    # (stop, place of the single token that is left to the children) of each node on the current path.
    above: list[tuple[int, int | None]] = []
    for start, end, stop in nodes:
        while above and above[-1][0] <= start:
            above.pop()
        head = above[-1][1] if above else None
        alone = end - start == 1 and bool(above) and head is None
        above.append((stop, start if alone and stop > end else None))
        if above[-1][1] is None:
            yield _Segment(head, start, end, stop, lone=alone)


@attrs.frozen(eq=False)
class _Walk:
    """Forward and backward passes of one micro-batch, over its segments in depth-first order."""

    network: Network
    batch: MicroBatch
    segments: tuple[_Segment, ...]

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of all predictions. [U] each, without a gradient."""
        scores, above = [], list[_Step]()
        for segment in self.segments:
            while above and above[-1].segment.stop <= segment.start:
                above.pop()
            step = self._run(segment, above[-1] if above else None, _shared)
            above.append(step)
            scores.append(step.scores)
        logprobs, entropies = zip(*scores, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    def backward(self, to_scores: Sequence[Tensor | None]) -> None:
        """Add each trained parameter's gradient to its `grad`.

        `to_scores`: gradients of the loss with respect to log-probabilities and entropies, [U] each.
        """
        above: list[_Step] = []
        # The segments come depth first: when the next one starts at or after a step's `stop`, all below that step is
        # done, and its gradient is complete.
        for segment in self.segments:
            while above and above[-1].segment.stop <= segment.start:
                above.pop().backward(to_scores)
            above.append(self._run(segment, above[-1] if above else None, _cut_off))
        while above:
            above.pop().backward(to_scores)

    def _run(self, segment: _Segment, parent: _Step | None, take: Callable[[Tensor], Tensor]) -> _Step:
        """Run a segment with its parent's cache; `take` (`_shared` or `_cut_off`) is applied to each cached state."""
        network, batch = self.network, self.batch
        taken: list[Tensor] = []

        def borrow(state: Tensor) -> Tensor:
            taken.append(take(state))
            return taken[-1]

        past = parent.past.passed_on(borrow) if parent else Past(config=network.model.config)
        ids, chosen = segment.ids(batch), segment.wanted(batch)
        wanted = batch.predictions
        place = wanted.place[chosen] - segment.start + (segment.head is not None)
        # A sequence without branches needs no cache: nothing continues from it.
        cached = {} if parent is None and segment.stop == segment.end else network.cached(past)
        states = network.states(ids, torch.zeros_like(place), place, **cached)
        if len(place):
            scores = network.score(states, wanted.part(chosen))
        else:
            scores = (states.new_empty(0), states.new_empty(0))
        left = past.states if segment.stop > segment.end else []
        return _Step(segment, chosen, scores, past, parent, taken, left, [None] * len(left))


@attrs.frozen(eq=False)
class _Step:
    """Segment after its forward call, with everything that its backward needs."""

    segment: _Segment
    chosen: slice
    """Range of its predictions."""
    scores: tuple[Tensor, Tensor]
    """Log-probabilities and entropies of its predictions."""
    past: Past
    parent: _Step | None
    taken: list[Tensor]
    """Copies of the parent's cached states that this segment continued from."""
    left: list[Tensor]
    """Cached states that the children continue from; empty without children."""
    to_left: list[Tensor | None]
    """Gradient with respect to each of `left`, summed over the children that are done."""

    def backward(self, to_scores: Sequence[Tensor | None]) -> None:
        """Go backward through this segment and add its gradients to the parent's `to_left`.

        Call it after the backward of all segments below.
        """
        gradients = [None if one is None else one[self.chosen] for one in to_scores]
        pairs = [*zip(self.scores, gradients, strict=True), *zip(self.left, self.to_left, strict=True)]
        used = [(output, gradient) for output, gradient in pairs if gradient is not None and output.requires_grad]
        if not used:
            return
        outputs, given = zip(*used, strict=True)
        torch.autograd.backward(outputs, given)
        if self.parent is None:
            return
        sums = self.parent.to_left
        for index, state in enumerate(self.taken):
            if state.grad is not None:
                so_far = sums[index]
                sums[index] = state.grad if so_far is None else so_far + state.grad


def _shared(state: Tensor) -> Tensor:
    return state


def _cut_off(state: Tensor) -> Tensor:
    return state.detach().requires_grad_()


class _Logprobs(torch.autograd.Function):
    """Autograd function of the whole walk. `anchor` makes autograd call its backward, and has no other use."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, walk: _Walk) -> tuple[Tensor, Tensor]:
        del anchor
        ctx.set_materialize_grads(False)
        ctx.walk = walk
        return walk.forward()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None]:
        with torch.enable_grad():
            ctx.walk.backward(gradients)
        return None, None
