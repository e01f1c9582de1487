"""Walk a token trie node by node with the model's own cache: for models that keep more of the past than keys.

A node's tokens run after the cache that its parent left, so that any mixer goes that can be continued from what it
caches: sliding windows, linear attention, state spaces, sinks. Nothing of the forward is kept. Backward, the walk is
made again with a gradient, and a node goes back as soon as all below it has: what its children took over from its
cache was cut off there, and their gradients of it are the node's own share. So never more than one path from root to
leaf is held, at the price of a second forward. U predictions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import torch

from agentrl_core.training.attention.past import Past

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from agentrl_core.batching.packing import MicroBatch
    from agentrl_core.batching.trie import Node
    from agentrl_core.training.network import Network


@attrs.frozen(eq=False)
class Dfs:
    """The model's own forward over one node after the other.

    The backward pass adds to the parameters' `grad` itself, so a loss must be taken back by `backward()`, not by
    `torch.autograd.grad`.
    """

    name: str = "dfs"
    merges = True

    def logprobs(self, network: Network, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of the batch's predictions. [U] each."""
        walk = _Walk(network, batch, tuple(_segments(batch.trie.nodes)))
        trained = torch.is_grad_enabled() and any(one.requires_grad for one in network.model.parameters())
        anchor = torch.zeros((), device=batch.ids.device, requires_grad=trained)
        logprobs, entropies = _Logprobs.apply(anchor, walk)  # type: ignore[no-untyped-call]  # autograd's own
        return logprobs, entropies


class _Segment(NamedTuple):
    """What is run at once: a node, as a rule."""

    head: int | None
    """Place of a token that is run before the node's own, as it is a node by itself."""
    start: int
    end: int
    stop: int
    """End of everything below it."""
    lone: bool
    """It is one token after a cache, which is run twice, so that there are two."""

    def ids(self, batch: MicroBatch) -> Tensor:
        """[1, tokens]."""
        own = batch.ids[self.start : self.end]
        if self.head is not None:
            own = torch.cat((batch.ids[self.head : self.head + 1], own))
        return (own.repeat(2) if self.lone else own)[None]

    def wanted(self, batch: MicroBatch) -> slice:
        """Its predictions; the head's are made where it stands right before the node."""
        first = self.start - (self.head == self.start - 1)
        borders = torch.tensor([first, self.end], device=batch.ids.device)
        low, high = torch.searchsorted(batch.predictions.place, borders).tolist()
        return slice(low, high)


def _segments(nodes: Sequence[Node]) -> Iterator[_Segment]:
    """The nodes in their order, none of one token alone after a cache.

    There models take a decoding kernel, which need not have a backward: such a node is run at the head of each of
    its children, and where it has none, its token twice.
    """
    above: list[tuple[int, int | None]] = []  # stop, and place of the token that is left to the children
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
    """A micro-batch on its way through the model."""

    network: Network
    batch: MicroBatch
    segments: tuple[_Segment, ...]

    def forward(self) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of all predictions. [U] each, without a gradient."""
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
        """Add the gradient of all that is trained to its `grad`, from that of log-probs and entropies, [U] each."""
        above: list[_Step] = []
        for segment in self.segments:
            while above and above[-1].segment.stop <= segment.start:
                above.pop().backward(to_scores)
            above.append(self._run(segment, above[-1] if above else None, _cut_off))
        while above:
            above.pop().backward(to_scores)

    def _run(self, segment: _Segment, parent: _Step | None, take: Callable[[Tensor], Tensor]) -> _Step:
        """Run a segment after what its parent left, each state of which is looked at through `take`."""
        network, batch = self.network, self.batch
        taken: list[Tensor] = []

        def borrow(state: Tensor) -> Tensor:
            taken.append(take(state))
            return taken[-1]

        past = parent.past.passed_on(borrow) if parent else Past(config=network.model.config)
        ids, chosen = segment.ids(batch), segment.wanted(batch)
        wanted = batch.predictions
        place = wanted.place[chosen] - segment.start + (segment.head is not None)
        # a sequence that nothing branches off is run as ever
        cached = {} if parent is None and segment.stop == segment.end else network.cached(past)
        states = network.states(ids, torch.zeros_like(place), place, **cached)
        if len(place):
            scores = network.score(states, wanted.token[chosen], wanted.temperature[chosen])
        else:
            scores = (states.new_empty(0), states.new_empty(0))
        left = past.states if segment.stop > segment.end else []
        return _Step(segment, chosen, scores, past, parent, taken, left, [None] * len(left))


@attrs.frozen(eq=False)
class _Step:
    """A segment that was run."""

    segment: _Segment
    chosen: slice
    scores: tuple[Tensor, Tensor]
    past: Past
    parent: _Step | None
    taken: list[Tensor]
    """The parent's states, as they were gone on from."""
    left: list[Tensor]
    """States for the children."""
    to_left: list[Tensor | None]
    """Sum of the children's gradients of them."""

    def backward(self, to_scores: Sequence[Tensor | None]) -> None:
        """Take back this segment, below which all has been."""
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
    """The walk as one function; `anchor` is there to have something with a gradient."""

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
