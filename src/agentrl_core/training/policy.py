"""The causal LM that is trained: its log-probabilities at the loss tokens of a micro-batch.

`Policy` is the learner's interface to a model. `Network` is that of `attention`, which decides how tries are run: it
runs layers and output head separately, so that logits exist only for the loss tokens. For a plain output head the
forward pass stops at the last hidden states, and `losses.logprob` computes log-probabilities tile by tile. Other heads
run as part of the model. B rows of T tokens, U predictions, H hidden width, V vocabulary.
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
from agentrl_core.models.loading import load_causal_lm
from agentrl_core.training.attention import choose
from agentrl_core.training.attention.dfs import Dfs
from agentrl_core.training.gradient_checkpointing import recomputable_layers, recomputing
from agentrl_core.training.master_weights import MasterWeights
from agentrl_core.training.private_names import attention_implementation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from torch import Tensor

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
        self._masters: MasterWeights | None = None

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        dtype: str = "float32",
        device: torch.device | str = "cpu",
        attention: AttentionName = "auto",
        gradient_checkpointing: bool = False,
    ) -> Policy:
        """Load a model directory onto a device.

        Raises `ConfigError` if it is broken, lacks weights, or `attention` does not fit the model.
        """
        model = load_causal_lm(directory, getattr(torch, dtype), device=device, error=ConfigError)
        return cls(model, attention=attention, gradient_checkpointing=gradient_checkpointing)

    @property
    def masters(self) -> MasterWeights:
        """The trained weights as an optimizer sees them, made on first use; a frozen policy needs none."""
        if self._masters is None:
            self._masters = MasterWeights(self.model)
        return self._masters

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


@attrs.frozen(eq=False)
class Network:
    """Hugging Face causal LM, with its output head apart from the forward pass if the head is plain."""

    model: Any
    head: nn.Parameter | None
    """Weight of the output head [V, H], if logits are exactly hidden states times it; else None."""
    recomputed: tuple[nn.Module, ...] = ()
    """Layers whose activations are recomputed in the backward pass (`trainer.gradient_checkpointing`)."""

    @classmethod
    def of(cls, model: Any, *, gradient_checkpointing: bool = False) -> Network:
        """Build the network of a model, after a trial of its output head.

        Raises `ConfigError` if `gradient_checkpointing` is set and no layer of the model supports it.
        """
        layers = recomputable_layers(model) if gradient_checkpointing else ()
        if gradient_checkpointing and not layers:
            raise ConfigError(
                f"trainer.gradient_checkpointing: {type(model).__name__} has no layer that supports gradient "
                "checkpointing in transformers; leave it out"
            )
        return cls(model, _plain_head(model), layers)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        found: torch.device = next(self.model.parameters()).device
        return found

    @property
    def config(self) -> Any:
        """Config of the language model; in a multimodal model this is a part of the whole config."""
        return self.model.config.get_text_config()

    @contextmanager
    def attention(self, implementation: str) -> Iterator[None]:
        """Make the model use another attention function of transformers' registry inside the context."""
        former = attention_implementation(self.model)
        self.model.set_attn_implementation(implementation)
        try:
            yield
        finally:
            self.model.set_attn_implementation(former)

    def states(self, ids: Tensor, row: Tensor, place: Tensor, **arguments: Any) -> Tensor:
        """Run `ids` [B, T] and return the states that predict the token after each (row, place) [U].

        Hidden states [U, H], or logits [U, V] if `head` is None. `arguments` are passed to the model, such as
        `position_ids`, a cache, or the attention's layout.
        """
        arguments = {"use_cache": False} | arguments
        with self._recomputing(cached=arguments["use_cache"]):
            return self._states(ids, row, place, arguments)

    def _states(self, ids: Tensor, row: Tensor, place: Tensor, arguments: dict[str, Any]) -> Tensor:
        if self.head is not None:
            hidden: Tensor = self.model.base_model(input_ids=ids, **arguments).last_hidden_state
            return hidden[row, place]
        if len(ids) == 1 and "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            # The logits of all T tokens would be the largest tensor of the step.
            logits: Tensor = self.model(input_ids=ids, logits_to_keep=place, **arguments).logits[0]
            return logits
        logits = self.model(input_ids=ids, **arguments).logits
        return logits[row, place]

    def _recomputing(self, *, cached: bool) -> AbstractContextManager[None]:
        """Return the context of a forward pass: with gradient checkpointing, if configured and useful."""
        # Transformers' layers drop their cache under gradient checkpointing, so a forward with a cache goes without.
        # It saves little there anyway: `dfs` keeps only one path of the trie.
        if cached or not self.recomputed or not torch.is_grad_enabled():
            return nullcontext()
        attention = attention_implementation(self.model)
        return recomputing(self.recomputed, lambda: self.attention(attention))

    def cached(self, cache: Any) -> dict[str, Any]:
        """Return the arguments that make the model continue from a transformers cache and update it."""
        # State-space models have another name for it.
        names = inspect.signature(self.model.base_model.forward).parameters
        return {"cache_params" if "cache_params" in names else "past_key_values": cache, "use_cache": True}

    def score(self, states: Tensor, tokens: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of `tokens` after `states`, and each distribution's entropy. [U] each, in nats.

        `states` as returned by `states`; `temperature` [U].
        """
        if self.head is None:
            logprobs, entropy = logits_logprobs(states, tokens, temperature=temperature, entropy=True)
        else:
            logprobs, entropy = token_logprobs(states, self.head, tokens, temperature=temperature, entropy=True)
        if entropy is None:
            raise AssertionError("expected an entropy, because it was requested; found None")
        return logprobs, entropy


@torch.no_grad()
def _plain_head(model: Any) -> nn.Parameter | None:
    """Return the weight of the output head, if logits are exactly hidden states times it; else None.

    Some models scale or cap their logits, or add a bias. A trial finds them without a list of models: both ways must
    give the same logits for two tokens, also after their hidden states are scaled up.
    """
    head, base = model.get_output_embeddings(), model.base_model
    if base is model or not isinstance(head, nn.Linear) or head.bias is not None:
        return None
    ids = torch.tensor([[0, 1]], device=head.weight.device)
    # A cap shows only at large logits, a bias only at small ones.
    for magnified in (1.0, 1000.0):
        hidden, logits = _hidden_and_logits(model, ids, magnified)
        wanted = hidden @ head.weight.T
        # Two ways of one product may round to neighbouring numbers, which are 0.8 % apart in bf16.
        relative = max(1e-3, 2 * torch.finfo(logits.dtype).eps)
        if logits.shape != wanted.shape or not torch.allclose(wanted, logits, rtol=relative, atol=1e-5):
            return None
    weight: nn.Parameter = head.weight
    return weight


def _hidden_and_logits(model: Any, ids: Tensor, magnified: float) -> tuple[Tensor, Tensor]:
    """Return the last hidden states times `magnified` [1, T, H], and the logits that the model computes from them."""
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
