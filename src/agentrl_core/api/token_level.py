"""Requests and responses in token ids, for token-level workflows (`RolloutWorkflow`); the names are AReaL's."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.types import Message


ALL_TOKENS = 10**7
"""More tokens than any vocabulary has; AReaL's default of `top_k` is 10**8."""


@attrs.define(kw_only=True)
class GenerationHyperparameters:
    """Sampling options of a call, as far as the workflow may choose: while training, the run's config decides."""

    n_samples: int = 1
    """Must be 1: call once per reply."""
    max_new_tokens: int | None = None
    """Longest reply; None: the run's `sampling.max_tokens`."""
    min_new_tokens: int | None = None
    """No stop token is sampled before that many tokens; None: the run's `sampling.min_tokens`."""
    max_tokens: int | None = None
    """Longest prompt and reply together."""
    temperature: float | None = None
    """None: the policy's temperature."""
    greedy: bool = False
    top_p: float = 1.0
    top_k: int = 0
    """0, or at least the size of the vocabulary: all tokens."""
    stop: Sequence[str] | None = attrs.field(default=None)
    stop_token_ids: Sequence[int] = ()
    """Token ids that end a reply, besides those of the model."""
    ignore_eos: bool = False
    """True: the model's own end tokens do not end a reply, even if `stop_token_ids` has them."""
    skip_special_tokens: bool = True
    """Ignored: replies are ids. Stop strings are searched in text with special tokens."""
    frequency_penalty: float = 0.0
    """Ignored, because it would change the distribution that is trained; the trace notes it."""
    lora_name: str = "default_lora"
    """Name of the policy on AReaL's servers. Here there is only one policy; the trace notes a name other than the
    default."""
    use_beam_search: bool = attrs.field(default=False)

    @stop.validator
    def _check_stop(self, _: Any, value: Sequence[str] | None) -> None:
        # A text is a sequence too: each letter would become a stop string.
        if isinstance(value, str):
            raise ValueError(f"stop: expected a list of texts, found the text {value!r}")  # noqa: TRY004 (a wrong value, as below)

    @use_beam_search.validator
    def _check_beams(self, _: Any, value: bool) -> None:  # noqa: FBT001 (a validator's signature)
        if value:
            raise ValueError("use_beam_search: beam search is not supported, replies are sampled; leave it out")

    def new(self, **changes: Any) -> GenerationHyperparameters:
        """Return a copy with changes."""
        return attrs.evolve(self, **changes)

    def new_with_stop_and_pad_token_ids(self, tokenizer: Any) -> GenerationHyperparameters:
        """Return a copy that also stops at the tokenizer's end and padding tokens."""
        ids = (getattr(tokenizer, name, None) for name in ("eos_token_id", "pad_token_id"))
        more = [token for token in ids if token is not None]
        return self.new(stop_token_ids=list(dict.fromkeys([*self.stop_token_ids, *more])))


@attrs.define(kw_only=True)
class ModelRequest:
    """One call of the policy."""

    input_ids: Sequence[int]
    """The whole prompt. [T]. If it begins with the prompt and output of an earlier call, it continues that call."""
    rid: str = attrs.field(factory=lambda: uuid.uuid4().hex)
    """Name that the workflow gives the call."""
    gconfig: GenerationHyperparameters = attrs.field(factory=GenerationHyperparameters)
    metadata: dict[str, Any] = attrs.field(factory=dict)
    """Free for the workflow; with `trainable: False` the call is recorded but not trained."""
    tokenizer: Any = None
    """Used by `ModelResponse.output_tokens_without_stop` alone; the engine works on ids, and uses the policy's
    tokenizer for stop strings."""
    image_data: Sequence[Any] | None = attrs.field(factory=list)
    """Must be empty: a prompt in ids has no images. To show images to a policy that accepts them, use an agent that
    sends them as parts of its messages."""
    processor: Any = None
    """Copied to the response."""
    vision_msg_vllm: Sequence[Any] | None = attrs.field(default=None)
    """Must be None: there are no images."""

    @image_data.validator
    @vision_msg_vllm.validator
    def _check_images(self, attribute: Any, value: Sequence[Any] | None) -> None:
        if value:
            raise ValueError(
                f"{attribute.name}: a call in token ids cannot have images; use an agent that sends them to base_url "
                "as parts of its messages, with a policy that accepts images"
            )

    def copy(self) -> ModelRequest:
        """Return a copy whose lists and dicts can be changed without changing this request."""
        return attrs.evolve(
            self, input_ids=list(self.input_ids), gconfig=self.gconfig.new(), metadata=dict(self.metadata)
        )


@attrs.frozen(kw_only=True)
class ModelResponse:
    """Reply that the policy sampled."""

    id: str = ""
    """Id of the interaction: the key for its own reward. Empty in a response that no engine made."""
    input_tokens: list[int] = attrs.field(factory=list)
    """The whole prompt. [T]."""
    output_tokens: list[int] = attrs.field(factory=list)
    """Sampled tokens, including the one that ended the reply. [T]."""
    output_logprobs: list[float] = attrs.field(factory=list)
    """Logprobs of `output_tokens`, in nats. [T]."""
    output_versions: list[int] = attrs.field(factory=list)
    """Policy version of each of `output_tokens`. [T]."""
    stop_reason: Literal["stop", "length"] = "stop"
    latency: float = math.inf
    """Seconds from request to reply."""
    tokenizer: Any = None
    """Tokenizer of the request."""
    processor: Any = None
    """Processor of the request."""
    input_images: list[Any] = attrs.field(factory=list)
    """Always empty."""
    routed_experts: None = None
    """Always None: `trainer.routing_replay` needs nothing from the engine."""

    @property
    def input_len(self) -> int:
        """Number of prompt tokens."""
        return len(self.input_tokens)

    @property
    def output_len(self) -> int:
        """Number of sampled tokens."""
        return len(self.output_tokens)

    @property
    def ttft(self) -> float:
        """Seconds to the first token: the whole latency, as in AReaL, because a reply comes in one piece."""
        return self.latency

    @property
    def itl(self) -> list[float]:
        """Seconds between tokens: unknown, because a reply comes in one piece."""
        return []

    @property
    def end_with_stop(self) -> bool:
        """Return whether the last token is the tokenizer's end or padding token; ValueError without a tokenizer."""
        return bool(self.output_tokens) and self.output_tokens[-1] in self._ends("end_with_stop")

    @property
    def output_tokens_without_stop(self) -> list[int]:
        """The reply without end and padding tokens at its end.

        A reply that was cut at its length is returned whole. Raises ValueError if nothing would be left, if the reply
        ends with another token, or if the request had no `tokenizer`.
        """
        ends = self._ends("output_tokens_without_stop")
        if self.stop_reason == "length" or not self.output_tokens:
            return self.output_tokens
        if self.output_tokens[-1] not in ends:
            raise ValueError(f"the reply ends with token {self.output_tokens[-1]}, not with the tokenizer's end token")
        kept = list(self.output_tokens)
        while kept and kept[-1] in ends:
            kept.pop()
        if not kept:
            raise ValueError("the reply consists of end and padding tokens only")
        return kept

    def _ends(self, asked: str) -> set[int]:
        if self.tokenizer is None:
            raise ValueError(f"{asked} needs a tokenizer: pass tokenizer=… to the ModelRequest")
        return {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id} - {None}


class TokenEngine(Protocol):
    """Engine that `arun_episode` receives: the policy, bound to one record."""

    @property
    def tokenizer(self) -> PolicyTokenizer:
        """The policy's tokenizer and chat template."""
        ...

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        """Sample one reply and record the call."""
        ...


class PolicyTokenizer(Protocol):
    """The part of a Hugging Face tokenizer's interface that makes prompts and reads replies, without transformers."""

    eos_token_id: int
    """The token that ends a turn."""
    pad_token_id: int
    """The same token as `eos_token_id`."""

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
        """Return the text of token ids."""
        ...
