"""The network behind a policy: hidden states where they are asked for, and what the head makes of them.

B rows of T tokens, U predictions, H hidden width, V vocabulary.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn

from agentrl_core.errors import ConfigError
from agentrl_core.losses.logprob import logits_logprobs, token_logprobs
from agentrl_core.training.recompute import recomputable_layers, recomputing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch import Tensor


@attrs.frozen(eq=False)
class Network:
    """A Hugging Face causal LM, its output embedding left out of the forward where that changes nothing."""

    model: Any
    head: nn.Parameter | None
    recomputed: tuple[nn.Module, ...] = ()
    """Layers of which the backward pass computes again what is inside."""

    @classmethod
    def of(cls, model: Any, *, gradient_checkpointing: bool = False) -> Network:
        """Look at what the model does after its last hidden state.

        Raises `ConfigError` where its layers are to be computed again and none can.
        """
        layers = recomputable_layers(model) if gradient_checkpointing else ()
        if gradient_checkpointing and not layers:
            raise ConfigError(
                f"trainer.gradient_checkpointing: {type(model).__name__} has no layer that transformers can compute "
                "again; leave it out"
            )
        return cls(model, _plain_head(model), layers)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        found: torch.device = next(self.model.parameters()).device
        return found

    @property
    def config(self) -> Any:
        """The config of the language model, which in one of several modalities is a part."""
        return self.model.config.get_text_config()

    @contextmanager
    def attention(self, implementation: str) -> Iterator[None]:
        """Let the model attend by another function of transformers' registry for a while."""
        former = self.model.config._attn_implementation  # noqa: SLF001  # what set_attn_implementation sets has no other getter
        self.model.set_attn_implementation(implementation)
        try:
            yield
        finally:
            self.model.set_attn_implementation(former)

    def states(self, ids: Tensor, row: Tensor, place: Tensor, **arguments: Any) -> Tensor:
        """Run over `ids` [B, T]; what predicts the token after each (row, place) [U]: [U, H], or [U, V] without a head.

        `arguments` go to the model: `position_ids`, a cache, what the attention needs to know.
        """
        arguments = {"use_cache": False} | arguments
        with self._recomputing(cached=arguments["use_cache"]):
            return self._states(ids, row, place, arguments)

    def _states(self, ids: Tensor, row: Tensor, place: Tensor, arguments: dict[str, Any]) -> Tensor:
        if self.head is not None:
            hidden: Tensor = self.model.base_model(input_ids=ids, **arguments).last_hidden_state
            return hidden[row, place]
        if len(ids) == 1 and "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            # the logits of all tokens would be the largest tensor of the step
            logits: Tensor = self.model(input_ids=ids, logits_to_keep=place, **arguments).logits[0]
            return logits
        logits = self.model(input_ids=ids, **arguments).logits
        return logits[row, place]

    def _recomputing(self, *, cached: bool) -> AbstractContextManager[None]:
        """Layers leave out their cache where they are computed again; what has one keeps little as it is."""
        if cached or not self.recomputed or not torch.is_grad_enabled():
            return nullcontext()
        attention = self.model.config._attn_implementation  # noqa: SLF001  # as above
        return recomputing(self.recomputed, lambda: self.attention(attention))

    def cached(self, cache: Any) -> dict[str, Any]:
        """Arguments that let the model go on from a cache of transformers, and put into it what it computes."""
        # state-space models name it otherwise
        names = inspect.signature(self.model.base_model.forward).parameters
        return {"cache_params" if "cache_params" in names else "past_key_values": cache, "use_cache": True}

    def score(self, states: Tensor, tokens: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs of `tokens` after their states, and each distribution's entropy. [U] each, in nats."""
        if self.head is None:
            logprobs, entropy = logits_logprobs(states, tokens, temperature=temperature, entropy=True)
        else:
            logprobs, entropy = token_logprobs(states, self.head, tokens, temperature=temperature, entropy=True)
        if entropy is None:
            raise AssertionError("entropy was asked for")
        return logprobs, entropy


@torch.no_grad()
def _plain_head(model: Any) -> nn.Parameter | None:
    """The output embedding, where logits are nothing but hidden states times it; else None.

    Some models scale or cap their logits, or add a bias. Asking the model itself is the test that needs no list
    of them: both ways must give the same for two tokens, also where their hidden states are larger.
    """
    head, base = model.get_output_embeddings(), model.base_model
    if base is model or not isinstance(head, nn.Linear) or head.bias is not None:
        return None
    ids = torch.tensor([[0, 1]], device=head.weight.device)
    for magnified in (1.0, 1000.0):  # a cap shows at large logits only, a bias beside small ones
        hidden, logits = _hidden_and_logits(model, ids, magnified)
        wanted = hidden @ head.weight.T
        if logits.shape != wanted.shape or not torch.allclose(wanted, logits, rtol=1e-3, atol=1e-5):
            return None
    weight: nn.Parameter = head.weight
    return weight


def _hidden_and_logits(model: Any, ids: Tensor, magnified: float) -> tuple[Tensor, Tensor]:
    """Last hidden states, so many times what they are, and the logits that the model makes of them."""
    seen: list[Tensor] = []

    def magnify(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state * magnified
        seen.append(output.last_hidden_state)
        return output

    hook = model.base_model.register_forward_hook(magnify)
    try:
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
    finally:
        hook.remove()
    return seen[0], logits
