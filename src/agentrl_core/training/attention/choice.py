"""Choose the attention method for a model (`trainer.attention`) by a trial run on that model.

The trial runs a small token trie with the candidate method and with the model's own attention (`rows`), and compares
log-probabilities and gradients.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import torch

from agentrl_core.batching.packing import pack
from agentrl_core.batching.samples import Sample
from agentrl_core.errors import ConfigError
from agentrl_core.losses.aggregate import AggregationConfig
from agentrl_core.training.attention.branch_cache import unknown_states
from agentrl_core.training.attention.dfs import Dfs
from agentrl_core.training.attention.rows import Rows
from agentrl_core.training.attention.tree import TreeAttention

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from agentrl_core.batching.packing import MicroBatch
    from agentrl_core.training.policy import Network

logger = logging.getLogger(__name__)

AttentionName: TypeAlias = Literal["auto", "rect", "flex", "dfs", "dense", "rows"]
"""Value of `trainer.attention`. `rect` (CPU) and `flex` (CUDA) run the trie in one forward pass, `dfs` runs its nodes
one after another with the model's cache, `dense` uses a T x T mask, `rows` runs each sequence separately. `auto` uses
the fastest that fits."""

_AUTO = {"cpu": ("rect", "dfs"), "cuda": ("flex", "dfs")}
"""Candidates that `auto` tries on a device, the fastest first."""
_SHARES = {torch.float32: 0.01, torch.float64: 0.01}
"""Largest accepted error, as a share of the error of a layout that is wrong on purpose. Narrower dtypes: 0.1."""
_ROUNDING = 1e-5
"""Error that is always accepted, as a share of the norm of the right result, or of 1 where that norm is smaller."""
_LAYERS = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers that a tree kernel can replace. A sliding window is checked again for every micro-batch."""
_TRUNK, _LONGEST_TRUNK = 40, 300
"""Length in tokens of the prefix that the sequences of a trial of `dfs` share. A model with a short window (at most the
second number) gets a prefix longer than its window, so that the trial tests the window too."""


class Attention(Protocol):
    """Method of running a micro-batch through a network."""

    @property
    def name(self) -> str:
        """Name in `trainer.attention`."""
        ...

    @property
    def merges(self) -> bool:
        """True if tokens that several sequences share are computed once."""
        ...

    def logprobs(self, network: Network, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of the batch's predictions. [U] each, both with a gradient."""
        ...


def choose(network: Network, wanted: AttentionName = "auto") -> Attention:
    """Return the wanted method, or for `auto` the fastest one that agrees with the model's own attention.

    `auto` falls back to `rows` with a warning if no other method fits. Raises `ConfigError` if the wanted method does
    not fit the model.
    """
    rows, dfs = Rows(), Dfs()
    if wanted == "rows":
        return rows
    window = _window(network)
    found: Attention | None = None
    misfits = []
    for name in _AUTO.get(network.device.type, ("dfs",)) if wanted == "auto" else (wanted,):
        # `rows` handles micro-batches that are longer than the window, unless `dfs` passes its own trial below.
        candidate = dfs if name == "dfs" else TreeAttention(name, rows, window)
        misfit = _misfit(candidate, rows, network)
        if misfit is None:
            found = candidate
            break
        misfits.append(f"'{name}' does not fit {type(network.model).__name__}: {misfit}")
        if wanted != "auto":
            raise ConfigError(f"trainer.attention: {misfits[0]}; remove the option to use the fastest one that fits")
    if isinstance(found, TreeAttention) and window is not None and _misfit(dfs, rows, network) is None:
        found.longer = dfs
    if found is not None:
        if misfits:
            logger.info("trainer.attention: using '%s', because %s", found.name, "; ".join(misfits))
        return found
    logger.warning(
        "trainer.attention: using 'rows', which computes a shared prefix once per sequence, because %s",
        "; ".join(misfits),
    )
    return rows


def _window(network: Network) -> int | None:
    """Return the sliding window or attention chunk in tokens; None if no layer has one."""
    kinds = getattr(network.config, "layer_types", None)
    window = getattr(network.config, "sliding_window", None)
    chunk = getattr(network.config, "attention_chunk_size", None)
    if kinds is None:
        return window if getattr(network.config, "use_sliding_window", True) else None
    return window if "sliding_attention" in kinds else chunk if "chunked_attention" in kinds else None


def _misfit(candidate: Attention, rows: Rows, network: Network) -> str | None:
    """Return why a candidate gives wrong results for a model; None if it is right.

    To tell an error from rounding, the trie's tokens also run as one plain sequence, which is wrong on purpose. A
    candidate's difference from the model's own attention must be a small share of that layout's difference.
    """
    try:
        window = _window(network)
        if isinstance(candidate, TreeAttention):
            kinds = set(getattr(network.config, "layer_types", None) or ()) - _LAYERS
            if kinds:
                return f"it has layers of the kind {', '.join(sorted(kinds))}"
            batch = _trial(network, 9)
            if window is not None and batch.trie.depth > window:
                return f"it has a window of {window} tokens"
        else:
            unknown = unknown_states(network)
            if unknown is not None:
                return unknown
            batch = _trial(network, window + 5 if window is not None and window <= _LONGEST_TRUNK else _TRUNK)
        found = _outcome(network, batch, candidate.logprobs)
    except Exception as error:  # noqa: BLE001 - whatever a model raises in a trial is the reason not to take this way
        return f"{type(error).__name__}: {error}"
    right, wrong = _outcome(network, batch, rows.logprobs), _outcome(network, batch, _jumbled)
    share = _SHARES.get(next(network.model.parameters()).dtype, 0.1)
    for what, mine, own, other in zip(("log-probs", "gradients"), found, right, wrong, strict=True):
        gap = (mine - own).norm().item()
        if not gap <= share * (other - own).norm().item() + _ROUNDING * max(1.0, own.norm().item()):
            return f"{what} differ by {gap:.1g} from those of the model's own attention"
    return None


def _outcome(
    network: Network, batch: MicroBatch, logprobs: Callable[[Network, MicroBatch], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities [U], and the gradient of a weighted sum of them with respect to the model's vectors."""
    # Norms and biases are the only vectors: they are small and every layer has some, so their gradient shows an error
    # in any layer at little cost. Gradients that a caller has accumulated are set aside and restored.
    parameters = list(network.model.parameters())
    trained = [parameter.requires_grad for parameter in parameters]
    vectors = [one for one in parameters if one.requires_grad and one.ndim == 1]
    kept = [vector.grad for vector in vectors]
    for parameter in parameters:
        parameter.requires_grad_(parameter.requires_grad and parameter.ndim == 1)
    for vector in vectors:
        vector.grad = None
    try:
        with torch.set_grad_enabled(bool(vectors)):
            found, _ = logprobs(network, batch)
            if vectors:
                torch.autograd.backward(found, torch.linspace(-1, 1, len(found), device=found.device))
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in vectors]
        return found.detach().double(), torch.cat([found.new_zeros(1), *gradients]).double()
    finally:
        for vector, gradient in zip(vectors, kept, strict=True):
            vector.grad = gradient
        for parameter, before in zip(parameters, trained, strict=True):
            parameter.requires_grad_(before)


def _jumbled(network: Network, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """Return the results of the wrong layout: all of the trie's tokens as one plain sequence. [U] each."""
    wanted = batch.predictions
    states = network.states(batch.ids[None], torch.zeros_like(wanted.place), wanted.place)
    return network.score(states, wanted)


def _trial(network: Network, length: int) -> MicroBatch:
    """Build a trie with branches at several depths, nodes of one token, and a sequence that is another's prefix.

    `length`: tokens of the longest shared prefix.
    """
    size = min(network.config.vocab_size, 97)
    trunk = [(7 * place + 3) % size for place in range(length)]
    sequences = [trunk + [(5 * place + 11 * branch + 1) % size for place in range(7)] for branch in range(3)]
    sequences += [[*sequences[0][:-2], 2, last, 5] for last in (3, 4)]
    sequences += [trunk[:4] + [(3 * place + 2) % size for place in range(5)], [*sequences[1][:-4], 0, 1], trunk[:7]]
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
