"""Load the causal LM that is trained and compute its log-probabilities at the loss tokens of a micro-batch.

This is the learner's interface to a model. `network` knows hidden states and head, `attention` how tries are run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from agentrl_core.errors import ConfigError
from agentrl_core.models.loading import load_causal_lm
from agentrl_core.training.attention import choose
from agentrl_core.training.attention.dfs import Dfs
from agentrl_core.training.network import Network

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor, nn

    from agentrl_core.batching.packing import MicroBatch
    from agentrl_core.training.attention import AttentionName


class Policy:
    """Hugging Face causal LM in evaluation mode: dropout stays off, as it is while sampling."""

    def __init__(
        self, model: nn.Module, *, attention: AttentionName = "auto", gradient_checkpointing: bool = False
    ) -> None:
        self.model: Any = model.eval()
        self._network = Network.of(self.model, gradient_checkpointing=gradient_checkpointing)
        self._attention = choose(self._network, attention)

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        dtype: str = "float32",
        attention: AttentionName = "auto",
        gradient_checkpointing: bool = False,
    ) -> Policy:
        """Load a model directory.

        Raises `ConfigError` if it is broken, lacks weights, or `attention` does not fit the model.
        """
        model = load_causal_lm(directory, getattr(torch, dtype), error=ConfigError)
        return cls(model, attention=attention, gradient_checkpointing=gradient_checkpointing)

    @property
    def attention(self) -> str:
        """Name of the attention method that was chosen (`trainer.attention`)."""
        return self._attention.name

    @property
    def merges(self) -> bool:
        """True if tokens that several sequences share are computed once; else pack micro-batches without merging."""
        return self._attention.merges

    @property
    def recomputes(self) -> bool:
        """True if the backward pass may run the model again."""
        ways = (self._attention, getattr(self._attention, "longer", None))
        return bool(self._network.recomputed) or any(isinstance(way, Dfs) for way in ways)

    @property
    def device(self) -> str:
        """Device of the weights."""
        return str(next(self.model.parameters()).device)

    @property
    def precise(self) -> bool:
        """True if the weights are at least fp32, precise enough to compare log-probabilities with the engine's."""
        return next(self.model.parameters()).dtype in {torch.float32, torch.float64}

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Token ids that end a turn, by the model's generation config, else its config."""
        stop = self.model.generation_config.eos_token_id
        if stop is None:
            stop = self.model.config.eos_token_id
        return frozenset([stop] if isinstance(stop, int) else stop or ())

    @property
    def context_length(self) -> int:
        """Longest sequence in tokens; 2**31 where the model's config sets no limit."""
        return int(getattr(self.model.config, "max_position_embeddings", 2**31))

    def logprobs(self, batch: MicroBatch, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of the loss tokens and the entropy of each one's distribution. [N] each, in nats.

        Both are at the temperature that the token was sampled at. Equal predictions of several loss tokens are computed
        once and get the sum of their gradients. The entropy has a gradient only with `entropy_gradient`.
        """
        logprobs, entropy = self._attention.logprobs(self._network, batch)
        logprobs, entropy = logprobs[batch.prediction], entropy[batch.prediction]
        return logprobs, entropy if entropy_gradient else entropy.detach()
