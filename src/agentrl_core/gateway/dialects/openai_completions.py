"""Dialect of OpenAI's legacy completions, `POST /v1/completions`: prompts of text or token ids, no chat template."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import ChatRequest, Choice, Decode, Delta, Reply, ReplyHead
from agentrl_core.gateway.dialects.fields import Fields, missing, wrong_type
from agentrl_core.gateway.dialects.openai_fields import MOST_CHOICES, SHARED, kept, parse_stop, shared, shared_options
from agentrl_core.gateway.dialects.openai_replies import ChunkWriter, completion, openai_error
from agentrl_core.gateway.dialects.shape import MOST_INTEGER, accepted, either, flag, integer, listed, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.gateway.call_types import TopLogprobs

_KIND = "text_completion"
_REPLACEMENT = "\ufffd"
_TOKEN_IDS = listed(integer(), minItems=1)

REQUEST = accepted(
    {"prompt": either(text(), _TOKEN_IDS, listed(either(text(), _TOKEN_IDS), minItems=1, maxItems=MOST_CHOICES))},
    **shared("model", "temperature", "top_p", "top_k", "max_tokens", "stop", "n"),
    **shared("stream", "stream_options", "return_token_ids"),
    best_of=integer("Must equal `n`.", minimum=1),
    echo=flag("Whether the reply's text begins with the prompt's."),
    suffix=text("Must be empty: the policy cannot fill a gap."),
    logprobs=SHARED["top_logprobs"],
)


class Completions:
    """Dialect of `POST /v1/completions`."""

    id_prefix = "cmpl-"

    def parse(self, body: Any, headers: Mapping[str, str]) -> ChatRequest:
        """Check a decoded JSON body; `RequestError` (400) names the field at fault."""
        fields = Fields(body, REQUEST)
        prompts = _parse_prompts(fields.take("prompt"))
        n = fields.integer("n") or 1
        best_of = fields.integer("best_of")
        if best_of is not None and best_of != n:
            raise _unsupported("best_of", f"{best_of} is not supported unless it equals n ({n}): set n and choose")
        if fields.take("suffix"):
            raise _unsupported("suffix", "is not supported: the policy continues a prompt and cannot fill a gap")
        echo, top = fields.flag("echo"), fields.integer("logprobs")
        if echo and top is not None:
            raise _unsupported("echo", "with logprobs is not supported: a prompt's own logprobs are not computed")
        stream_options = fields.inside("stream_options")
        return ChatRequest(
            api="completions",
            prompts=prompts,
            **shared_options(fields, headers),
            max_tokens=fields.integer("max_tokens"),
            stop=parse_stop(fields.take("stop")),
            n=n,
            include_usage=stream_options.flag("include_usage"),
            logprobs=top is not None,
            top_logprobs=top or 0,
            return_token_ids=fields.flag("return_token_ids"),
            echo={"prompt": True} if echo else {},
            ignored=kept(fields.rest()),
        )

    def response(self, reply: Reply, decode: Decode) -> dict[str, Any]:
        """Build the body of a reply that is not streamed."""
        choices = [_choice(index, choice, reply, decode) for index, choice in enumerate(reply.choices)]
        return completion(reply, _KIND, choices)

    def writer(self, request: ChatRequest, head: ReplyHead, decode: Decode) -> CompletionsWriter:
        """Build the encoder of a streamed reply."""
        return CompletionsWriter(request=request, reply_id=head.id, created=int(time.time()), decode=decode)

    def error(self, error: RequestError) -> dict[str, Any]:
        """Build the body of a refusal."""
        return openai_error(error)


def _choice(index: int, choice: Choice, reply: Reply, decode: Decode) -> dict[str, Any]:
    request, interaction = reply.request, choice.interaction
    built: dict[str, Any] = {
        "index": index,
        "text": _echoed(request, index, decode) + (interaction.output["content"] or ""),
        "logprobs": None,
        "finish_reason": choice.finish_reason,
    }
    if request.logprobs:
        logprobs = _Logprobs(decode=decode)
        built["logprobs"] = logprobs.of(interaction.output_ids, interaction.logprobs, choice.top_logprobs)
    if request.return_token_ids:
        built["token_ids"] = interaction.output_ids
        built["prompt_token_ids"] = choice.prompt_ids
    return built


def _echoed(request: ChatRequest, index: int, decode: Decode) -> str:
    """Return the prompt's text if the request asks to repeat it (`echo`), else an empty text."""
    if not request.echo:
        return ""
    prompt = request.prompts[index // request.n]
    return prompt if isinstance(prompt, str) else decode(prompt)


@attrs.define(kw_only=True)
class _Logprobs:
    """Builds the log-probabilities of one choice, with the offset in the text at which each token begins."""

    decode: Decode
    _offset: int = 0
    _incomplete: list[int] = attrs.field(factory=list, init=False)
    """Ids of the tokens of a character that is not complete yet."""

    def of(self, ids: Sequence[int], logprobs: Sequence[float], top_logprobs: TopLogprobs) -> dict[str, Any]:
        """Return the API's four lists for all sampled tokens, including the one that ended the output."""
        return {
            "tokens": [self.decode((token,)) for token in ids],
            "token_logprobs": list(logprobs),
            # Several tokens may decode to one text; reversed, the likeliest of them is set last and stays.
            "top_logprobs": [
                {self.decode((token,)): logprob for token, logprob in reversed(likeliest)} for likeliest in top_logprobs
            ]
            or None,
            "text_offset": [self._begin_of(token) for token in ids],
        }

    def _begin_of(self, token: int) -> int:
        begin = self._offset
        self._incomplete.append(token)
        # A character may take several tokens: until it is complete they decode to replacement characters.
        text = self.decode(self._incomplete)
        if not text.endswith(_REPLACEMENT):
            self._offset += len(text)
            self._incomplete.clear()
        return begin


@attrs.define(kw_only=True)
class _Held:
    """Tokens of one choice whose text is not sent yet."""

    logprobs_writer: _Logprobs
    ids: list[int] = attrs.field(factory=list)
    logprobs: list[float] = attrs.field(factory=list)
    top_logprobs: TopLogprobs = ()


@attrs.define(kw_only=True)
class CompletionsWriter(ChunkWriter):
    """Encodes one streamed reply as chunks in the format of the whole reply."""

    kind: ClassVar[str] = _KIND
    _held: dict[int, _Held] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._held = defaultdict(lambda: _Held(logprobs_writer=_Logprobs(decode=self.decode)))

    def begin(self) -> bytes:
        """Encode the prompts if the request asks to repeat them."""
        if not self.request.echo:
            return b""
        count = len(self.request.prompts) * self.request.n
        return b"".join(self._chunk(index, _echoed(self.request, index, self.decode)) for index in range(count))

    def delta(self, delta: Delta) -> bytes:
        """Encode new text with all tokens since the last chunk; empty bytes if there is none."""
        held = self._held[delta.index]
        held.ids.extend(delta.ids)
        held.logprobs.extend(delta.logprobs)
        held.top_logprobs += delta.top_logprobs
        return self._chunk(delta.index, delta.content) if delta.content else b""

    def _last_chunk(self, index: int, choice: Choice) -> bytes:
        return self._chunk(index, "", finish_reason=choice.finish_reason, prompt_ids=choice.prompt_ids)

    def _chunk(
        self, index: int, text: str, *, finish_reason: str | None = None, prompt_ids: Sequence[int] | None = None
    ) -> bytes:
        choice: dict[str, Any] = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
        held = self._held[index]
        if self.request.logprobs and held.ids:
            choice["logprobs"] = held.logprobs_writer.of(held.ids, held.logprobs, held.top_logprobs)
        if self.request.return_token_ids:
            choice["token_ids"] = held.ids
            if prompt_ids is not None:
                choice["prompt_token_ids"] = prompt_ids
        data = self._event([choice])
        held.ids, held.logprobs, held.top_logprobs = [], [], ()
        return data


def _parse_prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """Check `prompt`: a text, token ids, or a list of either."""
    if value is None:
        raise missing("prompt")
    if isinstance(value, str):
        return (value,)
    # A list of numbers is one prompt of token ids, not a list of prompts.
    if _are_ids(value):
        return (tuple(value),)
    if not isinstance(value, list) or not all(isinstance(item, str) or _are_ids(item) for item in value):
        raise wrong_type("prompt", "must be a string, a list of token ids, or a list of either")
    if not 0 < len(value) <= MOST_CHOICES:
        raise RequestError(400, "invalid_value", f"prompt must have from 1 to {MOST_CHOICES} items", param="prompt")
    return tuple(item if isinstance(item, str) else tuple(item) for item in value)


def _are_ids(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    # `type(…) is`, as booleans are ints in Python, too.
    return all(type(item) is int for item in value) and min(value) >= 0 and max(value) <= MOST_INTEGER


def _unsupported(param: str, message: str) -> RequestError:
    return RequestError(400, "unsupported_value", f"{param} {message}", param=param)
