"""Walk a token trie node by node with the model's own cache: for models that keep more of the past than keys.

A node's tokens run after the cache that its parent left, so that any mixer goes that can be continued from what it
caches: sliding windows, linear attention, state spaces, sinks. Nothing of the forward is kept. Backward, the walk is
made again with a gradient, and a node goes back as soon as all below it has: what its children took over from its
cache was cut off there, and their gradients of it are the node's own share. So never more than one path from root to
leaf is held, at the price of a second forward. U predictions.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import torch
from transformers import cache_utils as caches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from agentrl_core.batching.packing import MicroBatch
    from agentrl_core.batching.trie import Node
    from agentrl_core.training.network import Network

_CONTINUED = frozenset(
    {
        caches.DynamicLayer,
        caches.DynamicSlidingWindowLayer,
        caches.LinearAttentionLayer,
        caches.LinearAttentionAndFullAttentionLayer,
        caches.LinearAttentionAndSlidingWindowAttentionLayer,
        caches.DummyLayer,
    }
)
"""What a layer may keep: whether others are right past their first few tokens, no short trial can tell."""


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


def unknown_states(network: Network) -> str | None:
    """Which of the model's layers keep what a node cannot be trusted to go on from; None where all can."""
    kinds = {type(layer) for layer in Past(config=network.model.config).layers} - _CONTINUED
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    return f"it keeps its past in {names}" if kinds else None


class Past(caches.DynamicCache):
    """A cache whose updates never write into the tensors that it was given: others, or a backward, still read them."""

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **others: Any) -> Tensor:
        """Take over the newest inputs of a convolution."""
        self._renew("conv_states", layer_idx, state_idx)
        updated: Tensor = super().update_conv_state(conv_states, layer_idx, state_idx, **others)
        return updated

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **others: Any
    ) -> Tensor:
        """Take over a state after its last token."""
        self._renew("recurrent_states", layer_idx, state_idx)
        updated: Tensor = super().update_recurrent_state(recurrent_states, layer_idx, state_idx, **others)
        return updated

    def _renew(self, name: str, layer_idx: int, state_idx: int) -> None:
        held = getattr(self.layers[layer_idx], name)
        if held[state_idx] is not None:
            held[state_idx] = held[state_idx].clone()

    def passed_on(self, change: Callable[[Tensor], Tensor]) -> Past:
        """Return a copy to go on from, with `change` of each state in the place of it."""
        child = copy.copy(self)
        child.layers = [_passed_on(layer, change) for layer in self.layers]
        return child

    @property
    def states(self) -> list[Tensor]:
        """All that it holds, in the order in which `passed_on` goes over it."""
        found: list[Tensor] = []

        def collect(state: Tensor) -> Tensor:
            found.append(state)
            return state

        self.passed_on(collect)
        return found


def _passed_on(layer: Any, change: Callable[[Tensor], Tensor]) -> Any:
    # those with a recurrence are written in place, by the layer and by models
    written = isinstance(layer, caches.LinearAttentionCacheLayerMixin)

    def renew(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: renew(item) for key, item in value.items()}
        if not isinstance(value, torch.Tensor):
            return value
        if not value.is_floating_point():
            return value.clone()
        return change(value).clone() if written else change(value)

    child = copy.copy(layer)
    vars(child).update({name: renew(value) for name, value in vars(layer).items()})
    return child


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
