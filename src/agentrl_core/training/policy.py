"""The policy being trained: a causal LM, and its log-probs at the loss tokens of a micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from agentrl_core.errors import ConfigError
from agentrl_core.losses.logprob import logits_logprobs, token_logprobs
from agentrl_core.models.loading import load_causal_lm

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from agentrl_core.batching.packing import MicroBatch


class Policy:
    """Any Hugging Face causal LM. Dropout stays off, as it is while sampling."""

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model.eval()
        self._head = _plain_head(self.model)

    @classmethod
    def load(cls, directory: Path, *, dtype: str = "float32") -> Policy:
        """Read a model directory; `ConfigError` where it is broken or lacks weights."""
        return cls(load_causal_lm(directory, getattr(torch, dtype), error=ConfigError))

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

        Each at the temperature that its token was sampled at. [N] each, in nats. The entropy carries a gradient
        only on request.
        """
        before = batch.position - 1  # a token's distribution is at the place before it
        if self._head is None:
            logits = self.model(input_ids=batch.ids, use_cache=False).logits[batch.row, before]
            logprobs, entropy = logits_logprobs(logits, batch.targets, temperature=batch.temperature, entropy=True)
        else:
            hidden = self.model.base_model(input_ids=batch.ids, use_cache=False).last_hidden_state
            logprobs, entropy = token_logprobs(
                hidden[batch.row, before], self._head, batch.targets, temperature=batch.temperature, entropy=True
            )
        if entropy is None:
            raise AssertionError("entropy was asked for")
        return logprobs, entropy if entropy_gradient else entropy.detach()


@torch.no_grad()
def _plain_head(model: Any) -> nn.Parameter | None:
    """The output embedding, where logits are nothing but hidden states times it; else None.

    Some models scale or cap their logits, or add a bias. Asking the model itself is the test that needs no list
    of them: both ways must give the same for two tokens.
    """
    head, base = model.get_output_embeddings(), model.base_model
    if base is model or not isinstance(head, nn.Linear) or head.bias is not None:
        return None
    ids = torch.tensor([[0, 1]], device=head.weight.device)
    hidden = base(input_ids=ids, use_cache=False).last_hidden_state
    logits = model(input_ids=ids, use_cache=False).logits
    same = logits.shape == (1, 2, len(head.weight)) and torch.allclose(
        hidden @ head.weight.T, logits, rtol=1e-3, atol=1e-5
    )
    return head.weight if same else None
