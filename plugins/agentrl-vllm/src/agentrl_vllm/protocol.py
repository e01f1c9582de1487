"""Wire format and control routes of vLLM, read at 0.32: token ids in and out, weights from a directory.

The control routes exist only in a server that was started with `VLLM_SERVER_DEV_MODE=1`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.kept_tokens import mask_of
from agentrl_core.api.remote import (
    FINISH_REASONS,
    Command,
    ReplyPart,
    Served,
    ServerCalls,
    ServerRequest,
    TopLogprobs,
    missing_data,
    version_labels,
    wrong_reply,
)
from agentrl_core.errors import EngineError
from agentrl_vllm.transfer import VLLMCollective, VLLMHandles

if TYPE_CHECKING:
    from agentrl_core.types import GenerateRequest, Grammar

_CALL_PREFIX = "generate-tokens-"
"""Beginning that vLLM gives to the ids of calls to this route."""
_MOST_TOP_LOGPROBS = 19
"""One below vLLM's default of `--max-logprobs`, because the sampled token takes the place of one."""

_NO_LOGPROB = -9999.0
_ID_OF, _LOGPROB_OF = itemgetter("token_id"), itemgetter("logprob")
"""Readers of an entry per token, without a loop in Python."""


class VLLM:
    """vLLM's route from token ids to token ids (see `ServerProtocol`)."""

    name = "vLLM"
    path = "/inference/v1/generate"
    collective = VLLMCollective()
    handles = VLLMHandles()

    async def describe(self, calls: ServerCalls, served: Served) -> Served:
        """Find out whether the server takes weights, and how it computes logprobs.

        Raises `EngineError` if the server lacks the route that samples.
        """
        info = await calls.get("/weight_info")
        if info is not None:
            # A run that ended early may have left the server paused, and the probe below would wait for its end.
            for command in self.resume():
                await calls.post(command.path, command.body)
        served = await self._probed(calls, served)
        if info is None:
            return attrs.evolve(
                served,
                takes_weights=False,
                notice=f"vLLM keeps serving {served.model}, and never gets trained weights: it has no control routes; "
                "start it with the environment variable VLLM_SERVER_DEV_MODE=1",
            )
        label = info.get("weight_version")
        return attrs.evolve(served, label=None if label is None else str(label))

    async def _probed(self, calls: ServerCalls, served: Served) -> Served:
        """Find out whether the logprobs ignore the temperature, as they do by default, and whether masks come along."""
        seen: list[TopLogprobs] = []
        returns_kept = False
        for temperature in (1.0, 2.0):
            request = attrs.evolve(_PROBE, model=served.model, temperature=temperature)
            reply = await calls.post(self.path, self.body(request))
            if reply is None:
                raise EngineError(
                    f"vLLM has no route {self.path}; start vLLM 0.32 or newer, with --enable-scale-out if it needs that"
                )
            part = self.part(request, reply, 0)
            seen += part.top_logprobs
            returns_kept = bool(part.kept)
        (first, second), (third, fourth) = ([logprob for _, logprob in top] for top in seen)
        # If scaled, temperature 2 halves the distance between the logprobs of two tokens. Compare with both outcomes.
        distance, scaled = first - second, third - fourth
        is_raw = abs(scaled - distance) <= abs(scaled - distance / 2)
        return attrs.evolve(served, has_raw_logprobs=is_raw, returns_kept=returns_kept)

    async def workers(self, calls: ServerCalls) -> Sequence[str] | None:  # noqa: ARG002 (the protocol's)
        """Return None: routers of vLLM do not list the servers behind them."""
        return None

    def unservable(self, request: GenerateRequest, served: Served) -> str | None:
        """Refuse sampling for which `--logprobs-mode` gives other logprobs."""
        sampling = request.sampling
        if served.has_raw_logprobs and sampling.temperature not in {0.0, 1.0}:
            return (
                f"temperature {sampling.temperature}: this vLLM server returns logprobs without it; start the server "
                "with --logprobs-mode processed_logprobs, or sample with temperature 1"
            )
        if served.returns_kept and not (sampling.temperature > 0 and sampling.top_k):
            return (
                f"temperature {sampling.temperature:g} with top_k {sampling.top_k}: a vLLM server that returns "
                "sampling masks needs both above 0; set sampling.top_k and eval.top_k, for example to 50 (1 is "
                "greedy), or start it without --return-sampling-mask"
            )
        truncated = sampling.top_p < 1 or sampling.top_k > 0
        if truncated and not served.returns_kept and (request.return_kept or not served.has_raw_logprobs):
            return (
                "top_p and top_k: this vLLM server does not say which tokens they left; start it with "
                "--return-sampling-mask and --logprobs-mode processed_logprobs, or sample with top_p 1 and all tokens"
            )
        if request.top_logprobs > _MOST_TOP_LOGPROBS:
            return f"top_logprobs {request.top_logprobs}: vLLM tells at most {_MOST_TOP_LOGPROBS}"
        return None

    def body(self, request: ServerRequest) -> Mapping[str, Any]:
        """Return the body of a sampling request."""
        sampling: dict[str, Any] = {
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop": list(request.stop),
            "stop_token_ids": list(request.stop_token_ids),
            "min_tokens": request.min_tokens,
            "ignore_eos": True,  # the tokens that end a turn are all in stop_token_ids
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "seed": request.seed,
            # The first of so many likeliest tokens is the sampled one, whether it is likely or not.
            "logprobs": request.top_logprobs + 1 if request.top_logprobs else 0,
        }
        if request.grammar is not None:
            sampling["structured_outputs"] = _grammar(request.grammar)
        body: dict[str, Any] = {
            "model": request.model,
            "request_id": request.id,
            "token_ids": request.prompt_ids,
            "sampling_params": sampling,
            "stream": request.stream,
        }
        if request.stream:
            body["stream_options"] = {"include_usage": True}
        return body

    def part(self, request: ServerRequest, reply: Any, num_seen: int) -> ReplyPart:
        """Read a reply; each event of a stream holds only new tokens, and the last one only the usage."""
        usage = reply.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if not reply["choices"]:
            return ReplyPart(cached_tokens=cached)
        choice = reply["choices"][0]
        if choice.get("token_ids") is None:
            raise missing_data(request, "token ids (choices[].token_ids)")
        ids = tuple(choice["token_ids"])
        content = (choice.get("logprobs") or {}).get("content") or ()
        if ids and not content:
            raise missing_data(request, "logprobs (choices[].logprobs.content)")
        _check_ids(request, ids, content)
        _check_usage(request, usage, num_seen + len(ids))
        past, labels = _labels(request, choice.get("weight_versions") or (), num_seen, len(ids))
        reason = choice.get("finish_reason")
        return ReplyPart(
            ids=ids,
            logprobs=tuple(map(_LOGPROB_OF, content)),
            top_logprobs=tuple(_top(entry, request.top_logprobs) for entry in content) if request.top_logprobs else (),
            labels=labels,
            past_labels=past,
            kept=tuple(mask_of(mask) for mask in choice.get("sampling_mask") or ()),
            finish_reason=None if reason is None else FINISH_REASONS[reason],
            stop_string=_stop_string(choice),
            cached_tokens=cached,
        )

    def scoring_body(self, request: ServerRequest, output_ids: Sequence[int]) -> Mapping[str, Any]:
        """Return a request for the logprobs of the prompt; vLLM must sample one token, which is ignored."""
        return {
            "model": request.model,
            "request_id": request.id,
            "token_ids": [*request.prompt_ids, *output_ids],
            # A server that returns sampling masks refuses requests without top_k.
            "sampling_params": {"max_tokens": 1, "temperature": 1.0, "top_k": 1, "prompt_logprobs": 0},
            "stream": False,
        }

    def scores(self, request: ServerRequest, reply: Any, output_ids: Sequence[int]) -> tuple[float, ...]:
        """Read the logprobs of the prompt: one table per token, keyed by token id."""
        tables = reply["prompt_logprobs"][len(request.prompt_ids) :]
        return tuple(table[str(token)]["logprob"] for table, token in zip(tables, output_ids, strict=True))

    def pause(self) -> Sequence[Command]:
        """Abort what runs, and drop the prefix cache.

        `mode=keep` would be exact in 0.32 if it clears the cache, which vLLM documents otherwise: it then computes keys
        and values of kept requests anew, as much as an abort does (tests/servers/test_vllm_control.py).
        """
        return (Command(path="/pause?mode=abort"),)

    def resume(self) -> Sequence[Command]:
        """Let the server sample again."""
        return (Command(path="/resume"),)

    def load_weights(self, directory: Path, label: str) -> Sequence[Command]:
        """Have all workers read the directory, then name the weights."""
        return (
            Command(
                path="/collective_rpc",
                body={"method": "reload_weights", "kwargs": {"weights_path": str(directory)}},
            ),
            # Without success, requests would go on with keys and values of the old weights.
            Command(path="/reset_prefix_cache", expected={"success": True}),
            Command(path="/update_weight_version", body={"new_version": label}, expected={"new_version": label}),
        )

    def abort(self, call_id: str) -> Sequence[Command]:
        """Return the command that ends a call.

        vLLM ends it when the connection closes, but a router in between may keep its own connection open.
        """
        return (Command(path="/inference/v1/abort_requests", body={"request_ids": [f"{_CALL_PREFIX}{call_id}"]}),)


def _check_usage(request: ServerRequest, usage: Mapping[str, Any], num_tokens: int) -> None:
    """Compare the server's own counts, where it tells them, with what it was sent and has sent."""
    prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if prompt is not None and prompt != len(request.prompt_ids):
        raise wrong_reply(
            request, f"vLLM replied to a prompt of {prompt} tokens, and not to the {len(request.prompt_ids)} sent"
        )
    if output is not None and output != num_tokens:
        raise wrong_reply(request, f"vLLM reports {output} tokens, but sent {num_tokens}")


def _check_ids(request: ServerRequest, ids: tuple[int, ...], content: Sequence[Mapping[str, Any]]) -> None:
    """Raise unless each logprob is that of the token at its place."""
    if tuple(map(_ID_OF, content)) == ids:
        return
    for token, entry in zip(ids, content, strict=False):  # their numbers are compared for all servers alike
        if entry["token_id"] != token:
            raise wrong_reply(request, f"vLLM sent the logprob of token {entry['token_id']} for token {token}")


def _stop_string(choice: Mapping[str, Any]) -> str | None:
    """Return the stop string that ended the output; vLLM tells a token id in the same field."""
    reason = choice.get("stop_reason")
    return reason if isinstance(reason, str) else None


def _labels(
    request: ServerRequest, spans: Sequence[Mapping[str, Any]], num_seen: int, num_new: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the server's names for the weights that sampled the tokens seen before, and the new ones.

    The spans are in the last event of a stream, and count from its first token; in the others there are none.
    """
    if not spans:
        return (), ()
    is_total = spans[-1]["end"] == num_seen + num_new and spans[0]["start"] == 0
    labels = version_labels(request, spans, num_seen + num_new if is_total else num_new)
    return labels[: len(labels) - num_new], labels[len(labels) - num_new :]


def _grammar(grammar: Grammar) -> dict[str, Any]:
    if grammar.kind == "json_object":
        return {"json_object": True}
    if grammar.kind == "json_schema":
        return {"json": grammar.value}
    return {"regex" if grammar.kind == "regex" else "grammar": grammar.value}


def _top(entry: Mapping[str, Any], most: int) -> TopLogprobs:
    """Read `[{"token_id": 5, "logprob": -0.1, …}, …]`, which contains the sampled token besides the likeliest."""
    # Tokens that top-p and top-k left out come with a number that stands for minus infinity.
    pairs = [(top["token_id"], top["logprob"]) for top in entry["top_logprobs"] if top["logprob"] > _NO_LOGPROB]
    return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:most])


_PROBE = ServerRequest(
    id="agentrl-probe",
    request_id="probe",
    prompt_ids=(0,),
    max_tokens=1,
    temperature=1.0,
    top_p=1.0,
    top_k=2,  # a server that returns sampling masks refuses 0
    stop=(),
    stop_token_ids=(),
    seed=1,
    grammar=None,
    top_logprobs=2,
    stream=False,
    model="",
)
"""Request for one token, to see how a server computes logprobs."""
