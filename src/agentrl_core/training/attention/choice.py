"""Which way of running a trie fits a model: asked of the model itself, by a small trie whose result is known."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import torch

from agentrl_core.batching.packing import pack
from agentrl_core.batching.samples import Sample
from agentrl_core.errors import ConfigError
from agentrl_core.losses.aggregate import AggregationConfig
from agentrl_core.training.attention.rows import Rows
from agentrl_core.training.attention.tree import TreeAttention, masked, rect

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.batching.packing import MicroBatch
    from agentrl_core.training.network import Network

logger = logging.getLogger(__name__)

AttentionName: TypeAlias = Literal["auto", "rect", "dense", "rows"]

_AUTO = ("rect",)
"""What is tried in place of `auto`, the fastest first."""
_ROUNDING = 1e-5
_LAYERS = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers whose attention ours replaces; a window is looked at for every micro-batch."""


class Attention(Protocol):
    """A way of running a micro-batch."""

    @property
    def name(self) -> str:
        """What `trainer.attention` calls it."""
        ...

    @property
    def merges(self) -> bool:
        """Whether it computes what sequences share once."""
        ...

    def logprobs(self, network: Network, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of the batch's predictions. [U] each, both with a gradient."""
        ...


def choose(network: Network, wanted: AttentionName = "auto") -> Attention:
    """Return the first way that gives what the model's own attention does, or the one that is wanted.

    Raises `ConfigError` where that one does not fit the model.
    """
    rows = Rows()
    if wanted == "rows":
        return rows
    window = _window(network)
    merging = {
        "rect": TreeAttention("rect", rect, rows, window),
        "dense": TreeAttention("dense", masked, rows, window),
    }
    for name in _AUTO if wanted == "auto" else (wanted,):
        misfit = _misfit(merging[name], rows, network)
        if misfit is None:
            return merging[name]
        what = f"'{name}' does not fit {type(network.model).__name__}: {misfit}"
        if wanted != "auto":
            raise ConfigError(f"trainer.attention: {what}; leave it out for the fastest one that does")
        logger.info("trainer.attention: %s", what)
    logger.warning(
        "%s: what sequences share is computed for each of them, as no way of merging fits the model",
        type(network.model).__name__,
    )
    return rows


def _window(network: Network) -> int | None:
    """The sliding window, where some layers have one."""
    kinds = getattr(network.config, "layer_types", None)
    window = getattr(network.config, "sliding_window", None)
    slides = getattr(network.config, "use_sliding_window", True) if kinds is None else "sliding_attention" in kinds
    return window if slides else None


@torch.no_grad()
def _misfit(candidate: Attention, rows: Rows, network: Network) -> str | None:
    """Why a candidate is wrong for a model; None where it is right.

    Wrong is told from rounding by a layout that is certainly wrong: the same tokens as one sequence.
    """
    kinds = set(getattr(network.config, "layer_types", None) or ()) - _LAYERS
    if kinds and isinstance(candidate, TreeAttention):
        return f"it has layers of the kind {', '.join(sorted(kinds))}"
    batch = _trial(network)
    right, _ = rows.logprobs(network, batch)
    wanted = batch.predictions
    jumbled = network.states(batch.ids[None], torch.zeros_like(wanted.place), wanted.place)
    wrong, _ = network.score(jumbled, wanted.token, wanted.temperature)
    try:
        found, _ = candidate.logprobs(network, batch)
    except Exception as error:  # noqa: BLE001 - whatever a model raises in a trial is the reason not to take this way
        return f"{type(error).__name__}: {error}"
    gap, contrast = (found - right).abs().max().item(), (wrong - right).abs().max().item()
    if gap <= contrast / 10 + _ROUNDING:
        return None
    return f"log-probs differ by {gap:.1g} from those of the model's own attention"


def _trial(network: Network) -> MicroBatch:
    """A small trie with branches at several depths, one of them the end of another sequence."""
    size = min(network.config.vocab_size, 97)
    trunk = [(7 * place + 3) % size for place in range(9)]
    sequences = [trunk + [(5 * place + 11 * branch + 1) % size for place in range(7)] for branch in range(3)]
    sequences += [trunk[:4] + [(3 * place + 2) % size for place in range(5)], [*sequences[1][:12], 0, 1], trunk[:7]]
    samples = [
        Sample(
            ids=ids,
            positions=[*range(1, len(ids))],
            logprobs=[0.0] * (len(ids) - 1),
            temperatures=[1.0] * (len(ids) - 1),
            advantages=[0.0] * (len(ids) - 1),
            versions=[0] * (len(ids) - 1),
            interactions=[number] * (len(ids) - 1),
            sequences=[number] * (len(ids) - 1),
            record=number,
            group=0,
        )
        for number, ids in enumerate(sequences)
    ]
    update = pack(samples, max_tokens=2**31, config=AggregationConfig(), device=str(network.device))
    return update.micro_batches[0]
