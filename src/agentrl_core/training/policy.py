"""The policy being trained: a causal LM, and its log-probs at the loss tokens of a micro-batch."""

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
    """Any Hugging Face causal LM. Dropout stays off, as it is while sampling."""

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
        """Read a model directory; `ConfigError` where it is broken, lacks weights, or `attention` does not fit."""
        model = load_causal_lm(directory, getattr(torch, dtype), error=ConfigError)
        return cls(model, attention=attention, gradient_checkpointing=gradient_checkpointing)

    @property
    def attention(self) -> str:
        """How micro-batches are run (`trainer.attention`)."""
        return self._attention.name

    @property
    def merges(self) -> bool:
        """Whether tokens that sequences share are computed once; else micro-batches are best packed without."""
        return self._attention.merges

    @property
    def recomputes(self) -> bool:
        """Whether the backward pass may run the model again."""
        ways = (self._attention, getattr(self._attention, "longer", None))
        return bool(self._network.recomputed) or any(isinstance(way, Dfs) for way in ways)

    @property
    def device(self) -> str:
        """Where the weights are."""
        return str(next(self.model.parameters()).device)

    @property
    def precise(self) -> bool:
        """Whether the weights are at least fp32, so that log-probs can be compared with the engine's."""
        return next(self.model.parameters()).dtype in {torch.float32, torch.float64}

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Token ids that end a turn, as the model's generation config names them."""
        stop = self.model.generation_config.eos_token_id
        if stop is None:
            stop = self.model.config.eos_token_id
        return frozenset([stop] if isinstance(stop, int) else stop or ())

    @property
    def context_length(self) -> int:
        """Most token ids of one sequence."""
        return int(getattr(self.model.config, "max_position_embeddings", 2**31))

    def logprobs(self, batch: MicroBatch, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probs of the loss tokens under the policy, and that distribution's entropy.

        What several loss tokens share is computed once, and gets the sum of their gradients. Each at the
        temperature that its token was sampled at. [N] each, in nats. The entropy carries a gradient only on request.
        """
        logprobs, entropy = self._attention.logprobs(self._network, batch)
        logprobs, entropy = logprobs[batch.prediction], entropy[batch.prediction]
        return logprobs, entropy if entropy_gradient else entropy.detach()
