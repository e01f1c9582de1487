"""Calls of the policy in token ids, as workflows of the kind `RolloutWorkflow` make them; AReaL's names."""

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
"""More than any vocabulary has; AReaL's default of top_k is 10**8."""


@attrs.define(kw_only=True)
class GenerationHyperparameters:
    """How a call is to be sampled, as far as the workflow may choose: while training, the run's config decides."""

    n_samples: int = 1
    """Of one call, 1: call as often as replies are wanted."""
    max_new_tokens: int | None = None
    """None: the run's `sampling.max_tokens`."""
    min_new_tokens: int | None = None
    """No stop token is sampled before so many; None: the run's `sampling.min_tokens`."""
    max_tokens: int | None = None
    """Longest prompt and reply together."""
    temperature: float | None = None
    """None: the policy's."""
    greedy: bool = False
    top_p: float = 1.0
    top_k: int = 0
    """0, or as much as the vocabulary has: all tokens."""
    stop: Sequence[str] | None = attrs.field(default=None)
    stop_token_ids: Sequence[int] = ()
    """Ids that end a reply beside those of the model."""
    ignore_eos: bool = False
    """Whether those of the model do not end a reply, even if `stop_token_ids` has them."""
    skip_special_tokens: bool = True
    """Of no effect: replies are ids. Stop strings are looked for in text with special tokens."""
    frequency_penalty: float = 0.0
    """Has no effect, as it would change the distribution that is trained; the trace notes it."""
    lora_name: str = "default_lora"
    """AReaL's servers know the policy by it; here there is one policy, whatever its name. The trace notes another."""
    use_beam_search: bool = attrs.field(default=False)

    @stop.validator
    def _check_stop(self, _: Any, value: Sequence[str] | None) -> None:
        if isinstance(value, str):  # it would be taken letter by letter
            raise ValueError(f"stop: expected a list of texts, found the text {value!r}")  # noqa: TRY004 (as below)

    @use_beam_search.validator
    def _check_beams(self, _: Any, value: bool) -> None:  # noqa: FBT001 (a validator's signature)
        if value:
            raise ValueError("use_beam_search: replies are sampled, one token after the other; leave it out")

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
    """For `ModelResponse.output_tokens_without_stop`; the engine has ids, and the policy's tokenizer for strings."""
    image_data: Sequence[Any] | None = attrs.field(factory=list)
    """Empty: a prompt in ids has no images. An agent shows images to a policy that sees as parts of its messages."""
    processor: Any = None
    """Given back with the response."""
    vision_msg_vllm: Sequence[Any] | None = attrs.field(default=None)
    """None, as there are no images."""

    @image_data.validator
    @vision_msg_vllm.validator
    def _check_images(self, attribute: Any, value: Sequence[Any] | None) -> None:
        if value:
            raise ValueError(
                f"{attribute.name}: a call in token ids shows no images; let an agent send them to base_url as parts "
                "of its messages, to a policy that sees"
            )

    def copy(self) -> ModelRequest:
        """Return a request that may be changed without this one."""
        return attrs.evolve(
            self, input_ids=list(self.input_ids), gconfig=self.gconfig.new(), metadata=dict(self.metadata)
        )


@attrs.frozen(kw_only=True)
class ModelResponse:
    """What the policy sampled."""

    id: str = ""
    """Of the interaction: a key for a reward of its own. Empty in a response that no engine made."""
    input_tokens: list[int] = attrs.field(factory=list)
    """The whole prompt. [T]."""
    output_tokens: list[int] = attrs.field(factory=list)
    """With the token that ended it. [T]."""
    output_logprobs: list[float] = attrs.field(factory=list)
    """Of `output_tokens`, in nats. [T]."""
    output_versions: list[int] = attrs.field(factory=list)
    """The policy version of each of `output_tokens`. [T]."""
    stop_reason: Literal["stop", "length"] = "stop"
    latency: float = math.inf
    """Seconds."""
    tokenizer: Any = None
    """The request's."""
    processor: Any = None
    """The request's."""
    input_images: list[Any] = attrs.field(factory=list)
    """Always empty."""
    routed_experts: None = None
    """Not told: `trainer.routing_replay` needs none of the engine."""

    @property
    def input_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.input_tokens)

    @property
    def output_len(self) -> int:
        """Tokens sampled."""
        return len(self.output_tokens)

    @property
    def ttft(self) -> float:
        """Seconds until the first token was here: as in AReaL the latency, for a reply comes whole."""
        return self.latency

    @property
    def itl(self) -> list[float]:
        """Seconds between tokens: none are known of a reply that comes whole."""
        return []

    @property
    def end_with_stop(self) -> bool:
        """Whether the last token is the end or padding token of the request's `tokenizer`; ValueError without one."""
        return bool(self.output_tokens) and self.output_tokens[-1] in self._ends("end_with_stop")

    @property
    def output_tokens_without_stop(self) -> list[int]:
        """The reply without the end and padding tokens behind it; ValueError where nothing would be left of it.

        One that was cut at its length is whole. ValueError, too, for one that ends with another token, or where the
        request had no `tokenizer`.
        """
        ends = self._ends("output_tokens_without_stop")
        if self.stop_reason == "length" or not self.output_tokens:
            return self.output_tokens
        if self.output_tokens[-1] not in ends:
            raise ValueError(f"the reply ends with token {self.output_tokens[-1]}, which is no end of the tokenizer's")
        kept = list(self.output_tokens)
        while kept and kept[-1] in ends:
            kept.pop()
        if not kept:
            raise ValueError("the reply is nothing but end and padding tokens")
        return kept

    def _ends(self, asked: str) -> set[int]:
        if self.tokenizer is None:
            raise ValueError(f"{asked} needs the tokenizer: give one to the ModelRequest")
        return {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id} - {None}


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
