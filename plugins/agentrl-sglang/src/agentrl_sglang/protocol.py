"""Wire format and control routes of SGLang, read at 0.5.23: token ids to `/generate`, weights from a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.kept_tokens import ids_of, mask_of
from agentrl_core.api.remote import (
    FINISH_REASONS,
    Command,
    ReplyPart,
    Served,
    ServerCalls,
    ServerRequest,
    missing_data,
    version_labels,
    wrong_reply,
)
from agentrl_core.errors import EngineError, UnservableError
from agentrl_sglang.transfer import SGLangCollective, SGLangHandles

if TYPE_CHECKING:
    from agentrl_core.types import GenerateRequest, Grammar


class SGLang:
    """SGLang's own `/generate` (see `ServerProtocol`).

    Its logprobs are those after the temperature; beside sampling masks it also tells those renormalised over them.
    """

    name = "SGLang"
    path = "/generate"
    collective = SGLangCollective()
    handles = SGLangHandles()

    async def describe(self, calls: ServerCalls, served: Served) -> Served:
        """Add the name and the directory of the weights in use."""
        info = await calls.get("/model_info") or {}
        label = info.get("weight_version")
        path = str(info.get("model_path") or "")
        return attrs.evolve(served, label=None if label is None else str(label), model_path=path)

    async def workers(self, calls: ServerCalls) -> Sequence[str] | None:
        """Return the workers of an SGLang router (read at 0.3.2), which has no control routes of its own."""
        listed = await calls.get("/workers")
        if listed is None:
            return None
        workers = listed["workers"]
        split = {worker["worker_type"] for worker in workers} - {"regular"}
        if split:
            raise EngineError(
                f"the router's workers are split into {', '.join(sorted(split))}; use workers that prefill and decode, "
                "or name an address at which SGLang samples"
            )
        # The unhealthy ones, too: a router calls its workers unhealthy while they load weights.
        return [worker["url"] for worker in workers]

    def unservable(self, request: GenerateRequest, served: Served) -> str | None:  # noqa: ARG002 (the protocol's)
        """Refuse stop tokens together with `ignore_eos`, and sampling masks of any size."""
        if request.return_kept and request.sampling.truncates and not request.sampling.top_k:
            return (
                "top_p without top_k: SGLang refuses sampling masks of more tokens than --sampling-mask-max-tokens (if "
                "not given 4,096); set sampling.top_k, for example to 50"
            )
        if request.sampling.ignore_eos and request.sampling.stop_token_ids:
            return "ignore_eos: SGLang then ignores stop_token_ids as well; leave one of the two out"
        return None

    def body(self, request: ServerRequest) -> Mapping[str, Any]:
        """Return the body of a request."""
        sampling: dict[str, Any] = {
            "max_new_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            # -1 stands for all tokens, as 0 does here.
            "top_k": request.top_k or -1,
            # The server fills what is left out from the model's generation_config.json.
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop": list(request.stop),
            "stop_token_ids": list(request.stop_token_ids),
            "min_new_tokens": request.min_tokens,
            # Otherwise the model's own end tokens end the output, even of a request without stop tokens.
            "ignore_eos": request.ignore_eos or not request.stop_token_ids,
            # The sampled ids must come back unchanged, with the stop string and special tokens.
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "sampling_seed": request.seed,
        }
        if request.grammar is not None:
            sampling |= _grammar(request, request.grammar)
        return {
            "rid": request.id,
            "input_ids": request.prompt_ids,
            "sampling_params": sampling,
            "return_logprob": True,
            "top_logprobs_num": request.top_logprobs,
            "return_sampling_mask": request.return_kept,
            "stream": request.stream,
        }

    def part(self, request: ServerRequest, reply: Any, num_seen: int) -> ReplyPart:
        """Read a reply; whether events of a stream are cumulative depends on the server's settings."""
        meta = reply["meta_info"]
        total: int = meta["completion_tokens"]
        entries = meta.get("output_token_logprobs")
        if entries is None and total:
            raise missing_data(request, "logprobs (meta_info.output_token_logprobs)")
        entries = entries or []
        # As many entries as tokens in total: the event is cumulative, so skip those already seen.
        first = num_seen if len(entries) == total else 0
        if len(entries) not in {total, total - num_seen} or first > len(entries):
            raise wrong_reply(
                request,
                f"SGLang reports {total} tokens in total, but sends {len(entries)} logprobs after {num_seen} earlier "
                "tokens",
            )
        top = (meta.get("output_top_logprobs") or [])[first:] if request.top_logprobs else ()
        finish = meta.get("finish_reason") or {}
        reason = FINISH_REASONS[finish["type"]] if finish else None
        matched = finish.get("matched")
        ids = tuple(entry[1] for entry in entries[first:])
        if reason is not None:
            _check_output_ids(request, reply.get("output_ids"), [entry[1] for entry in entries])
        part = ReplyPart(
            ids=ids,
            logprobs=tuple(entry[0] for entry in entries[first:]),
            top_logprobs=tuple(tuple((entry[1], entry[0]) for entry in position) for position in top),
            labels=_labels(request, meta, total)[total - len(ids) :],
            finish_reason=reason,
            stop_string=matched if isinstance(matched, str) else None,
            cached_tokens=meta.get("cached_tokens"),
        )
        return _with_masks(request, part, meta, first) if request.return_kept and ids else part

    def scoring_body(self, request: ServerRequest, output_ids: Sequence[int]) -> Mapping[str, Any]:
        """Return a request for the logprobs of the prompt, without sampling."""
        return {
            "rid": request.id,
            "input_ids": [*request.prompt_ids, *output_ids],
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": len(request.prompt_ids) - 1,
        }

    def scores(self, request: ServerRequest, reply: Any, output_ids: Sequence[int]) -> tuple[float, ...]:
        """Read the logprobs of the prompt; the first entry belongs to the token before the output and is skipped."""
        entries = reply["meta_info"]["input_token_logprobs"][1:]
        if [entry[1] for entry in entries] != list(output_ids):
            raise wrong_reply(request, "SGLang returned logprobs of other tokens than those sampled")
        return tuple(entry[0] for entry in entries)

    def pause(self) -> Sequence[Command]:
        """Abort what runs; the requests return their tokens so far."""
        return (Command(path="/pause_generation", body={"mode": "abort"}),)

    def resume(self) -> Sequence[Command]:
        """Let the server sample again."""
        return (Command(path="/continue_generation"),)

    def load_weights(self, directory: Path, label: str) -> Sequence[Command]:
        """Read the directory, name the weights and flush the prefix cache in one call."""
        body = {"model_path": str(directory), "weight_version": label, "flush_cache": True}
        return (Command(path="/update_weights_from_disk", body=body),)

    def abort(self, call_id: str) -> Sequence[Command]:
        """End a call at once; SGLang would notice a closed connection only seconds later."""
        return (Command(path="/abort_request", body={"rid": call_id}),)


def _check_output_ids(request: ServerRequest, told: Any, ids: list[int]) -> None:
    """Compare the two places where SGLang reports ids.

    `output_ids` may lack the stop token, and in a stream may hold the new tokens only.
    """
    if told is None or told in (ids, ids[:-1]) or (request.stream and told == ids[len(ids) - len(told) :]):
        return
    raise wrong_reply(request, f"SGLang's output_ids ({len(told)} tokens) are not those of its logprobs ({len(ids)})")


def _with_masks(request: ServerRequest, part: ReplyPart, meta: Mapping[str, Any], first: int) -> ReplyPart:
    """Add the sampling masks, and replace the logprobs, which SGLang tells before and after top-p and top-k.

    `first` is the place of the part's first token in the event's lists.
    """
    if "output_token_sampling_mask" not in meta:
        raise missing_data(request, "sampling masks (meta_info.output_token_sampling_mask)")
    kept = tuple(mask_of(mask) for mask in meta["output_token_sampling_mask"][first:])
    logprobs = tuple(meta["output_token_sampling_logprobs"][first:])
    # The likeliest tokens are those before; of those that were left, all have the same distance to the logprobs after.
    top = []
    for likeliest, mask, before, after in zip(part.top_logprobs, kept, part.logprobs, logprobs, strict=False):
        left = set(ids_of(mask))
        top.append(tuple((token, value + after - before) for token, value in likeliest if token in left))
    return attrs.evolve(part, kept=kept, logprobs=logprobs, top_logprobs=tuple(top))


def _labels(request: ServerRequest, meta: Mapping[str, Any], total: int) -> tuple[str, ...]:
    """Return the server's name for the weights that sampled each token."""
    spans = meta.get("weight_versions")
    if spans:
        return version_labels(request, spans, total)
    label = meta.get("weight_version")
    return () if label is None else (str(label),) * total


def _grammar(request: ServerRequest, grammar: Grammar) -> dict[str, Any]:
    if grammar.kind == "json_object":
        return {"json_schema": '{"type": "object"}'}
    if grammar.kind == "lark":
        raise UnservableError(
            f"request {request.request_id}: SGLang accepts grammars in EBNF, not in Lark; use a JSON schema or a "
            "regular expression"
        )
    return {grammar.kind: grammar.value}
