"""Run every sequence separately in padded rows: right for any model, but shared prefixes are computed repeatedly.

B rows of W tokens, U predictions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch

from agentrl_core.models.placement import moved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from agentrl_core.batching.packing import MicroBatch
    from agentrl_core.training.policy import Network

_PADDED = 1.25
"""Largest size of a padded batch, as a multiple of its real tokens: at most a fifth is padding."""


@attrs.frozen(eq=False)
class Rows:
    """Attention method that runs the model's own attention over each sequence of a micro-batch."""

    name: str = "rows"
    merges = False

    def logprobs(self, network: Network, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of the batch's predictions. [U] each."""
        wanted = batch.predictions
        states, chosen = [], []
        for rows in _parts(batch, single=network.head is None):
            own = torch.isin(wanted.row, torch.tensor(rows, device=wanted.row.device)).nonzero().squeeze(1)
            if len(own):
                states.append(_states(network, batch, rows, own))
                chosen.append(own)
        # Rows were sorted by length; the scores go back into the order of the predictions.
        place = torch.cat(chosen).argsort()
        return network.score(torch.cat(states)[place], wanted.token, wanted.temperature)


def _states(network: Network, batch: MicroBatch, rows: Sequence[int], own: Tensor) -> Tensor:
    """Run the sequences `rows`; return the hidden states of the predictions `own`. [predictions, H]."""
    wanted = batch.predictions
    width = max(batch.trie.lengths[row] for row in rows)
    # In main memory first: one transfer to a GPU instead of one per row.
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    number = torch.zeros(len(batch.trie.lengths), dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : batch.trie.lengths[row]] = torch.tensor(batch.trie.sequence(row))
        number[row] = index
    ids, number = moved(ids, batch.ids.device), moved(number, batch.ids.device)
    # Padding is on the right, where causal attention never looks, so no mask is needed.
    return network.states(ids, number[wanted.row[own]], batch.positions[wanted.place[own]])


def _parts(batch: MicroBatch, *, single: bool) -> list[list[int]]:
    """Group sequences of similar length, so that little is padding; `single` puts every sequence in its own part."""
    lengths = batch.trie.lengths
    parts: list[list[int]] = []
    real = 0
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        real += lengths[row]
        if parts and not single and (len(parts[-1]) + 1) * lengths[row] <= _PADDED * real:
            parts[-1].append(row)
        else:
            parts.append([row])
            real = lengths[row]
    return parts
