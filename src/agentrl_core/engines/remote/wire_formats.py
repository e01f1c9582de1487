"""Wire formats of vLLM and SGLang: build requests with token ids, and read and check the replies.

Facts of SGLang 0.5.23 (`/generate`) and vLLM 0.33 (`/v1/completions` with token ids).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import attrs
import orjson

from agentrl_core.errors import EngineError, UnavailableError, UnservableError
from agentrl_core.types import FinishReason, Grammar

if TYPE_CHECKING:
    from agentrl_core.types import GenerateRequest

Top: TypeAlias = tuple[tuple[int, float], ...]
"""Likeliest tokens of one position, likeliest first. [K]"""

_MOST_SHOWN_CHARS = 300
_NO_LOGPROB = -9999.0
"""vLLM's stand-in for minus infinity, which JSON cannot express."""
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


@attrs.frozen(kw_only=True)
class Ask:
    """One call to a server: a whole request, or the rest of an interrupted one."""

    id: str
    """Unique among all calls, and not a prefix of another call's id: SGLang aborts by prefix."""
    request_id: str
    prompt_ids: Sequence[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    min_tokens: int = 0
    ignore_eos: bool = False
    seed: int
    grammar: Grammar | None
    top_logprobs: int
    stream: bool
    model: str


@attrs.frozen(kw_only=True)
class Part:
    """Tokens that a reply adds to the earlier ones."""

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[Top, ...] = ()
    labels: tuple[str, ...] = ()
    """The server's name for the weights that sampled each token; empty if it does not tell. [T]"""
    finish_reason: FinishReason | None = None
    stop_string: str | None = None
    cached_tokens: int | None = None


class LostReplyError(UnavailableError):
    """No reply, or an incomplete one: the call is repeated, and counts as failed only if the repetitions fail too.

    Sampling again is safe, because nobody has seen the tokens of a lost reply.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 502,
        retry_after_s: float | None = None,
        answered: bool = False,
        waited: bool = False,
        unreached: bool = False,
    ) -> None:
        super().__init__(message, status=status, retry_after_s=retry_after_s)
        self.unreached = unreached
        """Whether no server was reached; then the failure says nothing about the call."""
        self.answered = answered
        """Whether the model server itself replied; an overloaded server is not away."""
        self.waited = waited
        """Whether so much time has passed that an immediate repetition would not help."""


class ServerFormat(Protocol):
    """Wire format of one kind of server."""

    name: str
    path: str
    """Route that samples tokens."""

    def body(self, ask: Ask) -> dict[str, Any]:
        """Return the body of a request."""
        ...

    def part(self, ask: Ask, reply: Any, num_seen: int) -> Part:
        """Read a reply, or one event of a stream; `num_seen` tokens came in earlier events.

        Raises `EngineError` if ids or logprobs are missing, or do not fit together.
        """
        ...

    def scoring_body(self, ask: Ask, output_ids: Sequence[int]) -> dict[str, Any]:
        """Return a request for the logprobs of `output_ids` after the prompt, without grammar, at temperature 1."""
        ...

    def scores(self, ask: Ask, reply: Any, output_ids: Sequence[int]) -> tuple[float, ...]:
        """Read the logprobs from the reply to `scoring_body`. [T]."""
        ...


class SGLang:
    """SGLang's own `/generate`. Its logprobs are those of the temperature-scaled distribution."""

    name = "SGLang"
    path = "/generate"

    def body(self, ask: Ask) -> dict[str, Any]:
        """Return the body of a request."""
        sampling: dict[str, Any] = {
            "max_new_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            # -1 stands for all tokens, as 0 does here.
            "top_k": ask.top_k or -1,
            # The server fills what is left out from the model's generation_config.json.
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop": list(ask.stop),
            "stop_token_ids": list(ask.stop_token_ids),
            "min_new_tokens": ask.min_tokens,
            "ignore_eos": ask.ignore_eos,
            # The sampled ids must come back unchanged, with the stop string and special tokens.
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "sampling_seed": ask.seed,
        }
        if ask.grammar is not None:
            sampling |= _sglang_grammar(ask)
        return {
            "rid": ask.id,
            "input_ids": ask.prompt_ids,
            "sampling_params": sampling,
            "return_logprob": True,
            "top_logprobs_num": ask.top_logprobs,
            "stream": ask.stream,
        }

    def part(self, ask: Ask, reply: Any, num_seen: int) -> Part:
        """Read a reply; whether events of a stream are cumulative depends on the server's settings."""
        meta = reply["meta_info"]
        total: int = meta["completion_tokens"]
        entries = meta.get("output_token_logprobs")
        if entries is None and total:
            raise EngineError(_lacks(ask, "logprobs (meta_info.output_token_logprobs)"))
        entries = entries or []
        # As many entries as tokens in total: the event is cumulative, so skip those already seen.
        first = num_seen if len(entries) == total else 0
        if len(entries) not in {total, total - num_seen} or first > len(entries):
            raise _bad(
                f"request {ask.request_id}: SGLang reports {total} tokens in total, but sends {len(entries)} logprobs "
                f"after {num_seen} earlier tokens"
            )
        top = (meta.get("output_top_logprobs") or [])[first:] if ask.top_logprobs else ()
        finish = meta.get("finish_reason") or {}
        reason = _REASONS[finish["type"]] if finish else None
        matched = finish.get("matched")
        ids = tuple(entry[1] for entry in entries[first:])
        if reason is not None:
            _check_output_ids(ask, reply.get("output_ids"), [entry[1] for entry in entries])
        return _checked(
            ask,
            Part(
                ids=ids,
                logprobs=tuple(entry[0] for entry in entries[first:]),
                top_logprobs=tuple(tuple((entry[1], entry[0]) for entry in position) for position in top),
                labels=_labels(ask, meta, total)[total - len(ids) :],
                finish_reason=reason,
                stop_string=matched if isinstance(matched, str) else None,
                cached_tokens=meta.get("cached_tokens"),
            ),
        )

    def scoring_body(self, ask: Ask, output_ids: Sequence[int]) -> dict[str, Any]:
        """Return a request for the logprobs of the prompt, without sampling."""
        return {
            "rid": ask.id,
            "input_ids": [*ask.prompt_ids, *output_ids],
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": len(ask.prompt_ids) - 1,
        }

    def scores(self, ask: Ask, reply: Any, output_ids: Sequence[int]) -> tuple[float, ...]:
        """Read the logprobs of the prompt; the first entry belongs to the token before the output and is skipped."""
        entries = reply["meta_info"]["input_token_logprobs"][1:]
        part = Part(ids=tuple(entry[1] for entry in entries), logprobs=tuple(entry[0] for entry in entries))
        if part.ids != tuple(output_ids):
            raise _bad(f"request {ask.request_id}: SGLang returned logprobs of other tokens than those sampled")
        return _checked(ask, part).logprobs


class VLLM:
    """vLLM's `/v1/completions` with token ids."""

    name = "vLLM"
    path = "/v1/completions"

    def body(self, ask: Ask) -> dict[str, Any]:
        """Return the body of a request."""
        body: dict[str, Any] = {
            "model": ask.model,
            "request_id": ask.id,
            "prompt": ask.prompt_ids,
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            # The server fills what is left out from the model's generation_config.json.
            "top_k": ask.top_k,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop": list(ask.stop),
            "stop_token_ids": list(ask.stop_token_ids),
            "min_tokens": ask.min_tokens,
            "ignore_eos": True,  # the tokens that end a turn are all in stop_token_ids
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "seed": ask.seed,
            "logprobs": ask.top_logprobs,
            "return_token_ids": True,
            # Keys of top_logprobs are then token ids; the texts of tokens need not be unique.
            "return_tokens_as_token_ids": True,
            "stream": ask.stream,
        }
        if ask.stream:
            body["stream_options"] = {"include_usage": True}
        if ask.grammar is not None:
            body["structured_outputs"] = _vllm_grammar(ask.grammar)
        return body

    def part(self, ask: Ask, reply: Any, num_seen: int) -> Part:
        """Read a reply; each event of a stream holds only new tokens."""
        usage = reply.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        # The last event of a stream holds the usage only.
        if not reply["choices"]:
            return Part(cached_tokens=cached)
        choice = reply["choices"][0]
        if choice.get("token_ids") is None:
            raise EngineError(_lacks(ask, "token ids (choices[].token_ids)"))
        ids = tuple(choice["token_ids"])
        logprobs = choice.get("logprobs") or {}
        if ids and not logprobs.get("token_logprobs"):
            raise EngineError(_lacks(ask, "logprobs (choices[].logprobs.token_logprobs)"))
        prompt = choice.get("prompt_token_ids")
        if prompt is not None and prompt != list(ask.prompt_ids):
            raise _bad(f"request {ask.request_id}: vLLM replied to another prompt than the one that was sent")
        told = usage.get("completion_tokens")
        if told is not None and told != num_seen + len(ids):
            raise _bad(f"request {ask.request_id}: vLLM reports {told} tokens, but sent {num_seen + len(ids)}")
        reason, stop = choice.get("finish_reason"), choice.get("stop_reason")
        top = logprobs.get("top_logprobs") or () if ask.top_logprobs else ()
        return _checked(
            ask,
            Part(
                ids=ids,
                logprobs=tuple(logprobs.get("token_logprobs") or ()),
                top_logprobs=tuple(_vllm_top(position, ask.top_logprobs) for position in top),
                finish_reason=None if reason is None else _REASONS[reason],
                stop_string=stop if isinstance(stop, str) else None,
                cached_tokens=cached,
            ),
        )

    def scoring_body(self, ask: Ask, output_ids: Sequence[int]) -> dict[str, Any]:
        """Return a request for the logprobs of the prompt; vLLM must sample one token, which is ignored."""
        prompt = [*ask.prompt_ids, *output_ids]
        return {
            "model": ask.model,
            "request_id": ask.id,
            "prompt": prompt,
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": 0,
        }

    def scores(self, ask: Ask, reply: Any, output_ids: Sequence[int]) -> tuple[float, ...]:
        """Read the logprobs of the prompt: one table per token, keyed by token id."""
        tables = reply["choices"][0]["prompt_logprobs"][len(ask.prompt_ids) :]
        pairs = zip(tables, output_ids, strict=True)
        part = Part(ids=tuple(output_ids), logprobs=tuple(table[str(token)]["logprob"] for table, token in pairs))
        return _checked(ask, part).logprobs


def check_servable(request: GenerateRequest, server: ServerFormat, *, scaled: bool) -> None:
    """Refuse requests for which a server would return other logprobs than the embedded engine.

    `scaled`: whether its logprobs take the temperature into account; they then also take top_p and top_k into account.
    """
    sampling, wrong = request.sampling, None
    cut = sampling.top_p < 1 or sampling.top_k > 0
    constrained = sampling.grammar is not None or sampling.min_tokens > 0
    rule = "min_tokens" if sampling.grammar is None else "a grammar"
    if request.images:
        wrong = "images are not sent to model servers; leave them out"
    elif constrained and sampling.temperature not in {0.0, 1.0}:
        # Constrained outputs get their logprobs from a second call at temperature 1; those of temperature 0 are equal.
        wrong = f"{rule} needs temperature 0 or 1 here, not {sampling.temperature}"
    elif constrained and request.top_logprobs:
        wrong = f"top_logprobs would cover only the tokens that {rule} allows; leave one of the two out"
    elif server.name == "SGLang" and sampling.ignore_eos and sampling.stop_token_ids:
        wrong = "ignore_eos: SGLang then ignores stop_token_ids as well; leave one of the two out"
    elif server.name == "vLLM" and not scaled and sampling.temperature not in {0.0, 1.0}:
        wrong = (
            f"temperature {sampling.temperature}: this vLLM server returns logprobs without it; start the server "
            "with --logprobs-mode processed_logprobs, or sample with temperature 1"
        )
    elif server.name == "vLLM" and scaled and cut:
        wrong = "top_p and top_k: this vLLM server returns logprobs after both; sample with top_p 1 and all tokens"
    if wrong is not None:
        raise UnservableError(f"request {request.request_id}: {wrong}")


def read_json(where: str, data: bytes) -> Any:
    """Decode a reply; `LostReplyError` quotes its beginning if it is not a JSON object."""
    try:
        reply = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise LostReplyError(f"{where}: the reply is not JSON: {shown(data)}") from error
    if not isinstance(reply, dict):
        raise LostReplyError(f"{where}: the reply is not a JSON object: {shown(data)}")
    return reply


def shown(data: bytes) -> str:
    """Return the beginning of a reply, for error messages."""
    text = data[: 4 * _MOST_SHOWN_CHARS].decode(errors="replace")
    return repr(text if len(text) <= _MOST_SHOWN_CHARS else f"{text[:_MOST_SHOWN_CHARS]}…")


def error_text(data: bytes) -> str:
    """Return the error message in a server's reply, in whichever of the usual shapes it comes."""
    try:
        reply = orjson.loads(data)
    except orjson.JSONDecodeError:
        return shown(data)
    found = reply.get("error", reply) if isinstance(reply, dict) else reply
    if isinstance(found, dict):
        found = found.get("message") or found.get("detail") or found
    return found[:_MOST_SHOWN_CHARS] if isinstance(found, str) else shown(data)


def _checked(ask: Ask, part: Part) -> Part:
    """Raise if a token lacks its logprob, or if a value is not a valid id or logprob; else return `part`."""
    num_ids, num_logprobs = len(part.ids), len(part.logprobs)
    if num_ids != num_logprobs:
        raise _bad(f"request {ask.request_id}: the server sent {num_ids} token ids and {num_logprobs} logprobs")
    for token, logprob in zip(part.ids, part.logprobs, strict=True):
        if type(token) is not int or token < 0:
            raise _bad(f"request {ask.request_id}: the server sent {token!r} as a token id")
        if type(logprob) not in {float, int} or not math.isfinite(logprob) or logprob <= _NO_LOGPROB:
            raise _bad(f"request {ask.request_id}: the server sent {logprob!r} as the logprob of token {token}")
    if part.labels and len(part.labels) != num_ids:
        raise _bad(f"request {ask.request_id}: the server reports no weight version for some of its {num_ids} tokens")
    if ask.top_logprobs and part.ids and len(part.top_logprobs) != num_ids:
        raise _bad(
            f"request {ask.request_id}: the server sent {num_ids} token ids and the likeliest tokens of "
            f"{len(part.top_logprobs)} positions"
        )
    return part


def _bad(message: str) -> UnavailableError:
    """Return the error for one reply that cannot be trusted; none of it is used, but other replies may be sound."""
    return UnavailableError(message, status=502)


def _lacks(ask: Ask, what: str) -> str:
    return (
        f"request {ask.request_id}: the server returns no {what}. Without them it can only be used as an upstream "
        "(gateway.upstreams), never for training."
    )


def _check_output_ids(ask: Ask, told: Any, ids: list[int]) -> None:
    """Compare the two places where SGLang reports ids.

    `output_ids` may lack the stop token, and in a stream may hold the new tokens only.
    """
    if told is None or told in (ids, ids[:-1]) or (ask.stream and told == ids[len(ids) - len(told) :]):
        return
    raise _bad(
        f"request {ask.request_id}: SGLang's output_ids ({len(told)} tokens) are not those of its logprobs ({len(ids)})"
    )


def _labels(ask: Ask, meta: Mapping[str, Any], total: int) -> tuple[str, ...]:
    """Return the server's name for the weights that sampled each token."""
    spans = meta.get("weight_versions")
    if spans:
        # Checked before the labels are built: a wrong span could ask for any number of them.
        if sum(span["end"] - span["start"] for span in spans) != total:
            raise _bad(
                f"request {ask.request_id}: SGLang reports the weight versions {spans!r:.200} for an output of {total} "
                "tokens"
            )
        return tuple(str(span["version"]) for span in spans for _ in range(span["start"], span["end"]))
    label = meta.get("weight_version")
    return () if label is None else (str(label),) * total


def _sglang_grammar(ask: Ask) -> dict[str, Any]:
    grammar = ask.grammar
    assert grammar is not None  # noqa: S101 (the caller's condition)
    if grammar.kind == "json_object":
        return {"json_schema": '{"type": "object"}'}
    if grammar.kind == "lark":
        raise UnservableError(
            f"request {ask.request_id}: SGLang accepts grammars in EBNF, not in Lark; use a JSON schema or a regular "
            "expression"
        )
    return {grammar.kind: grammar.value}


def _vllm_grammar(grammar: Grammar) -> dict[str, Any]:
    if grammar.kind == "json_object":
        return {"json_object": True}
    if grammar.kind == "json_schema":
        return {"json": grammar.value}
    return {"regex" if grammar.kind == "regex" else "grammar": grammar.value}


def _vllm_top(position: Mapping[str, float], most: int) -> Top:
    """Read `{"token_id:5": -0.1, …}`, which may contain the sampled token besides the likeliest ones."""
    pairs = [(int(name.removeprefix("token_id:")), logprob) for name, logprob in position.items()]
    return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:most])
