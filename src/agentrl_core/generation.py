"""Calls of the policy in token ids, as workflows of the kind `RolloutWorkflow` make them; AReaL's names."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.types import Message


@attrs.define(kw_only=True)
class GenerationHyperparameters:
    """How a call is to be sampled, as far as the workflow may choose: while training, the run's config decides."""

    n_samples: int = 1
    """Of one call, 1: call as often as replies are wanted."""
    max_new_tokens: int | None = None
    """None: the run's `sampling.max_tokens`."""
    max_tokens: int | None = None
    """Longest prompt and reply together."""
    temperature: float | None = None
    """None: the policy's."""
    greedy: bool = False
    top_p: float = 1.0
    top_k: int = 0
    """0, or as much as the vocabulary has: all tokens."""
    stop: Sequence[str] | None = None
    stop_token_ids: Sequence[int] = ()
    """Ids that end a reply beside those of the model."""
    frequency_penalty: float = 0.0

    def new(self, **changes: Any) -> GenerationHyperparameters:
        """Return a copy with changes."""
        return attrs.evolve(self, **changes)

    def new_with_stop_and_pad_token_ids(self, tokenizer: Any) -> GenerationHyperparameters:
        """Return a copy that stops at the tokenizer's end and padding tokens, too."""
        ids = (getattr(tokenizer, name, None) for name in ("eos_token_id", "pad_token_id"))
        more = [token for token in ids if token is not None]
        return self.new(stop_token_ids=list(dict.fromkeys([*self.stop_token_ids, *more])))


@attrs.define(kw_only=True)
class ModelRequest:
    """One call of the policy."""

    input_ids: Sequence[int]
    """The whole prompt. [T]. Where it begins with the prompt and output of an earlier call, it goes on from that."""
    rid: str = attrs.field(factory=lambda: uuid.uuid4().hex)
    """The workflow's own name of the call."""
    gconfig: GenerationHyperparameters = attrs.field(factory=GenerationHyperparameters)
    metadata: dict[str, Any] = attrs.field(factory=dict)
    """The workflow's own; `trainable: False` lets the call be recorded and not trained."""
    tokenizer: Any = None
    """Accepted and not used: the engine has ids, and the policy's tokenizer for stop strings."""

    def copy(self) -> ModelRequest:
        """Return a request that may be changed without this one."""
        return attrs.evolve(
            self, input_ids=list(self.input_ids), gconfig=self.gconfig.new(), metadata=dict(self.metadata)
        )


@attrs.frozen(kw_only=True)
class ModelResponse:
    """What the policy sampled."""

    id: str
    """Of the interaction: a key for a reward of its own."""
    input_tokens: list[int]
    """The whole prompt. [T]."""
    output_tokens: list[int]
    """With the token that ended it. [T]."""
    output_logprobs: list[float]
    """Of `output_tokens`, in nats. [T]."""
    output_versions: list[int]
    """The policy version of each of `output_tokens`. [T]."""
    stop_reason: Literal["stop", "length"]
    latency: float
    """Seconds."""

    @property
    def input_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.input_tokens)

    @property
    def output_len(self) -> int:
        """Tokens sampled."""
        return len(self.output_tokens)


class TokenEngine(Protocol):
    """What `arun_episode` is given: the policy, on behalf of one record."""

    @property
    def tokenizer(self) -> PolicyTokenizer:
        """The policy's tokenizer and chat template."""
        ...

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        """Sample one reply; it is recorded."""
        ...


class PolicyTokenizer(Protocol):
    """The part of a Hugging Face tokenizer's interface that makes prompts and reads replies; no transformers in it."""

    eos_token_id: int
    """The token that ends a turn."""
    pad_token_id: int
    """The same."""

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **options: Any,
    ) -> Any:
        """Return a conversation as a list of ids, or as text; `options` are further variables of the template."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of exactly this text: special tokens in it are recognised, none is added."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of ids."""
        ...
