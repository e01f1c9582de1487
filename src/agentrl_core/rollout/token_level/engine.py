"""Engine that a token-level workflow calls: bound to one record, whose interactions its calls become."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.token_level import ALL_TOKENS, GenerationHyperparameters, ModelRequest, ModelResponse
from agentrl_core.errors import EpisodeError
from agentrl_core.gateway.call_types import ChatRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.chat.facade import Chat
    from agentrl_core.rollout.episode_gateway import EpisodeGateway, EpisodeSession
    from agentrl_core.types import Message

_ID_PREFIX = "gen-"


class RecordEngine:
    """Samples for one record, under the same rules as calls over HTTP."""

    def __init__(self, gateway: EpisodeGateway[Any], session: EpisodeSession) -> None:
        self._gateway, self._session = gateway, session

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The policy's tokenizer and chat template."""
        return ChatTokenizer(self._gateway.chat)

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        """Sample one reply to `request.input_ids`; cancelling this aborts the generation.

        Raises `RequestError` if the gateway refuses the call, with the status that the call would get over HTTP.
        """
        ids = tuple(int(token) for token in request.input_ids)
        reply = await self._gateway.ask(self._session, _chat_request(request, ids), _ID_PREFIX)
        interaction = reply.first.interaction
        return ModelResponse(
            id=interaction.id,
            input_tokens=list(ids),
            output_tokens=list(interaction.output_ids),
            output_logprobs=list(interaction.logprobs),
            output_versions=list(interaction.output_versions),
            stop_reason="length" if reply.first.finish_reason == "length" else "stop",
            latency=interaction.finished_at - interaction.started_at,
            tokenizer=request.tokenizer,
            processor=request.processor,
        )


class ChatTokenizer:
    """The policy's tokenizer and chat template, with the method names of a Hugging Face tokenizer."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self.eos_token_id = self.pad_token_id = chat.stop_token_ids[0]

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
        # Accepted because callers of transformers pass it, whose default depends on the version; here ids are always a
        # list.
        options.pop("return_dict", None)
        text = self._chat.render(messages, tools, add_generation_prompt=add_generation_prompt, options=options)
        return self._chat.encode(text) if tokenize else text

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of exactly this text: special tokens in it are recognised, none is added."""
        if add_special_tokens:
            raise ValueError("encode adds no special tokens: write the tokens that you need into the text")
        return self._chat.encode(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids."""
        ids = list(token_ids)
        return self._chat.decode_plain(ids) if skip_special_tokens else self._chat.decode(ids)


def _chat_request(request: ModelRequest, ids: tuple[int, ...]) -> ChatRequest:
    wanted = request.gconfig
    if wanted.n_samples != 1:
        raise ValueError(f"gconfig.n_samples is {wanted.n_samples}: agenerate samples one reply, call it once for each")
    if not ids:
        raise ValueError("input_ids is empty: there is nothing to continue")
    if min(ids) < 0:
        raise ValueError(f"input_ids has the token id {min(ids)}")
    # Options without effect here; the trace lists those that differ from their defaults.
    others = {name: getattr(wanted, name) for name in ("frequency_penalty", "lora_name")}
    ignored = {name: value for name, value in others.items() if value != _defaults[name]}
    return ChatRequest(
        api="completions",
        prompts=(ids,),
        temperature=0.0 if wanted.greedy else wanted.temperature,
        top_p=None if wanted.top_p == 1 else wanted.top_p,
        top_k=wanted.top_k if 0 < wanted.top_k < ALL_TOKENS else None,
        max_tokens=_limit(wanted, len(ids)),
        stop=tuple(wanted.stop or ()),
        stop_token_ids=tuple(wanted.stop_token_ids),
        min_tokens=wanted.min_new_tokens,
        ignore_eos=wanted.ignore_eos,
        trainable=bool(request.metadata.get("trainable", True)),
        ignored=ignored,
    )


_defaults = {item.name: item.default for item in attrs.fields(GenerationHyperparameters)}


def _limit(wanted: GenerationHyperparameters, prompt_tokens: int) -> int | None:
    if wanted.max_tokens is None:
        return wanted.max_new_tokens
    left = wanted.max_tokens - prompt_tokens
    if left < 1:
        raise EpisodeError(
            "too_long", f"the prompt has {prompt_tokens} tokens, and gconfig.max_tokens is {wanted.max_tokens}"
        )
    return left if wanted.max_new_tokens is None else min(left, wanted.max_new_tokens)
