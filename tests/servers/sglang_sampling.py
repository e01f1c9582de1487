"""State, sampling and weights of the stand-in for SGLang; `sglang_fake` puts it behind HTTP."""

import asyncio
import contextlib
import hashlib
import uuid
from pathlib import Path

import attrs
import torch
from fastapi import HTTPException
from safetensors.torch import load_file
from tests.servers.sglang_schemas import fields_of
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from agentrl_core.api.kept_tokens import ids_of
from agentrl_core.api.weights import ModuleWeights
from agentrl_core.engines.embedded import EmbeddedEngine
from agentrl_core.errors import EngineError
from agentrl_core.types import GenerateRequest, Grammar, Sampling

CAP = 4096
"""Default of --sampling-mask-max-tokens."""
ALL_TOKENS = 1 << 30
"""`top_k` of a request that keeps all tokens, in SGLang's `SamplingParams`."""
LOCK_POLL_S = 0.02
"""Time between two looks whether the requests have ended during a pause; SGLang sleeps for a second."""


@attrs.define(eq=False)
class Running:
    """A request that is being sampled for."""

    obj: object
    params: object
    ids: list[int] = attrs.field(factory=list)
    chunks: list[object] = attrs.field(factory=list)
    plain: list[torch.Tensor] = attrs.field(factory=list)
    """Log-probabilities before top-k and top-p, of all tokens at each position; with sampling masks only. [T][V]"""

    def every(self, name):
        return [value for chunk in self.chunks for value in getattr(chunk, name)]


class Server:
    """One server; all of it runs on one event loop."""

    def __init__(self, schemas, model_path, *, context_length=None, memory_saver=False):
        self.io, self.params, self.contract, self.batch = schemas
        self.model_path, self.served_name = str(model_path), str(model_path)
        self.model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
        self.engine = EmbeddedEngine(model_dir=Path(model_path), context_length=context_length)
        self.engine.start()
        self.tokenizer = Tokenizer.from_file(str(Path(model_path) / "tokenizer.json"))
        self.eos = _eos_ids(self.model)
        self.labels = ["default"]
        """Name of the weights of each version that the engine has had."""
        self.memory_saver, self.released = memory_saver, set()
        self.go = asyncio.Event()
        self.go.set()
        self.halted = False
        """Whether a pause keeps the running requests."""
        self.running = {}
        self.adapters = {}

    @property
    def label(self):
        return self.labels[-1]

    # Requests for tokens.

    def admit(self, obj, body):
        """Return the sampling parameters of a request as SGLang reads them; raises `ValueError` as it does."""
        if error := self.contract.generate_contract_error(body):
            raise ContractError(error)
        refuse_unknown(type(obj), body)
        obj.normalize_batch_and_arguments()
        if not obj.is_single or obj.input_ids is None:
            raise ValueError("the fake samples single requests with input_ids only")
        if obj.lora_path is not None and obj.lora_path not in self.adapters:
            raise ValueError(f"The following requested LoRA adapters are not loaded: {{{obj.lora_path!r}}}")
        most, asked = self.engine.context_length, obj.sampling_params.get("max_new_tokens") or 0
        if len(obj.input_ids) >= most:
            raise ValueError(
                f"The input ({len(obj.input_ids)} tokens) is longer than the model's context length ({most} tokens)."
            )
        if len(obj.input_ids) + asked > most:
            raise ValueError(f"Requested token count exceeds the model's maximum context length of {most} tokens.")
        params = self.params.SamplingParams(**obj.sampling_params)
        params.normalize(None if not obj.sampling_params.get("stop") else _Encoding(self.tokenizer))
        params.verify(self.model.config.vocab_size)
        if obj.return_sampling_mask and not 1 <= params.top_k <= CAP:
            raise ValueError(
                "return_sampling_mask requires top_k=1 for greedy sampling or finite 1 < top_k <= "
                f"{CAP}; got top_k={params.top_k}"
            )
        return params

    async def generate(self, obj, params):
        """Yield the reply, or the events of a stream."""
        obj.rid = obj.rid or uuid.uuid4().hex
        await self.go.wait()
        if self.released:
            raise HTTPException(500, f"sampling without {', '.join(sorted(self.released))}: memory was released")
        if params.max_new_tokens == 0:
            yield await self.scored(obj)
            return
        if obj.rid in self.running:
            raise ValueError(f"Duplicate request ID detected: {obj.rid}")
        run = self.running[obj.rid] = Running(obj, params)
        try:
            async with contextlib.aclosing(self.engine.generate(self._request(obj, params))) as chunks:
                async for chunk in chunks:
                    run.chunks.append(chunk)
                    run.ids += chunk.ids
                    if obj.return_sampling_mask and chunk.ids:
                        rows = self.distributions([*obj.input_ids, *run.ids], _temperature(obj, params))
                        run.plain += rows[-len(chunk.ids) :]
                    if obj.stream and chunk.finish_reason is None:
                        yield self._reply(run, None)
            yield self._reply(run, chunk)
        except EngineError as error:
            raise ValueError(str(error)) from error
        finally:
            del self.running[obj.rid]

    def _request(self, obj, params):
        ends = set(params.stop_token_ids or ()) | self.eos
        temperature = _temperature(obj, params)
        truncated = obj.sampling_params.get("temperature") != 0
        return GenerateRequest(
            request_id=obj.rid,
            prompt_ids=tuple(obj.input_ids),
            sampling=Sampling(
                temperature=temperature if truncated else 0.0,
                top_p=params.top_p,
                top_k=0 if params.top_k == ALL_TOKENS or not truncated else params.top_k,
                max_tokens=params.max_new_tokens,
                stop=tuple(params.stop_strs or ()),
                # `ignore_eos` passes over all stop tokens, the request's own as well.
                stop_token_ids=() if params.ignore_eos else tuple(sorted(ends)),
                min_tokens=params.min_new_tokens,
                seed=params.sampling_seed or 0,
                grammar=_grammar(params),
            ),
            stream=True,
            top_logprobs=obj.top_logprobs_num or 0,
            return_kept=bool(obj.return_sampling_mask),
        )

    def _reply(self, run, last):
        obj, num = run.obj, len(run.ids)
        reason = None if last is None else self._finish(run, last)
        meta = {
            "id": obj.rid,
            "finish_reason": reason,
            "prompt_tokens": len(obj.input_ids),
            "weight_version": self.label,
            "num_retractions": 0,
        }
        told, top = run.every("logprobs"), run.every("top_logprobs")
        if obj.return_sampling_mask:
            told = [row[token].item() for row, token in zip(run.plain, run.ids, strict=True)]
            most = [row.topk(obj.top_logprobs_num or 0) for row in run.plain]
            top = [list(zip(one.indices.tolist(), one.values.tolist(), strict=True)) for one in most]
        if obj.return_logprob:
            entries = [[value, token, None] for value, token in zip(told, run.ids, strict=True)]
            meta |= {"input_token_logprobs": [], "output_token_logprobs": entries}
            meta["output_token_logprobs_length"] = num
            if obj.top_logprobs_num:
                meta["output_top_logprobs"] = [[[value, token, None] for token, value in one] for one in top]
                meta["input_top_logprobs"] = []
        if obj.return_sampling_mask:
            # Without top-p and top-k at temperature 0: one token was left.
            kept = [list(ids_of(mask)) for mask in run.every("kept")] or [[token] for token in run.ids]
            meta["output_token_sampling_mask"] = kept
            meta["output_token_sampling_logprobs"] = run.every("logprobs") if run.every("kept") else [0.0] * num
            meta["output_token_sampling_mask_length"] = num
        cached = 0 if last is None else last.cached_tokens
        meta |= {"reasoning_tokens": 0, "completion_tokens": num, "cached_tokens": cached}
        if last is not None:
            meta["weight_versions"] = self._spans(run)
            meta["weight_version"] = meta["weight_versions"][-1]["version"]
            meta["e2e_latency"] = 0.0
        text = self.tokenizer.decode(run.ids, skip_special_tokens=run.params.skip_special_tokens)
        trims = reason and isinstance(reason.get("matched"), int) and not run.params.no_stop_trim
        return {"text": text, "output_ids": run.ids[:-1] if trims else list(run.ids), "meta_info": meta}

    def _finish(self, run, last):
        if last.finish_reason == "abort":
            return self.batch.FINISH_ABORT().to_json()
        if last.finish_reason == "length":
            return self.batch.FINISH_LENGTH(len(run.ids)).to_json()
        if last.stop_string is not None:
            return self.batch.FINISH_MATCHED_STR(last.stop_string).to_json()
        return self.batch.FINISH_MATCHED_TOKEN(run.ids[-1]).to_json()

    def _spans(self, run):
        spans = []
        for index, label in enumerate(self.labels[chunk.version] for chunk in run.chunks for _ in chunk.ids):
            if not spans or spans[-1]["version"] != label:
                spans.append({"version": label, "start": index, "end": index})
            spans[-1]["end"] = index + 1
        return spans or [{"version": self.label, "start": 0, "end": 0}]

    async def scored(self, obj):
        """Return the log-probabilities of the prompt from `logprob_start_len` on; the first token of all has none."""
        first = obj.logprob_start_len
        values = self.scores(obj.input_ids)[first:] if obj.return_logprob and first >= 0 else []
        values = [None, *values[1:]]  # the first one belongs to a token whose logits were not computed
        pairs = zip(values, obj.input_ids[first:], strict=True) if obj.return_logprob and first >= 0 else ()
        meta = {
            "id": obj.rid,
            "finish_reason": self.batch.FINISH_LENGTH(0).to_json(),
            "prompt_tokens": len(obj.input_ids),
            "weight_version": self.label,
            "num_retractions": 0,
            "input_token_logprobs": [[value, token, None] for value, token in pairs],
            "output_token_logprobs": [],
            "output_token_logprobs_length": 0,
            "completion_tokens": 0,
            "cached_tokens": 0,
        }
        return {"text": "", "output_ids": [], "meta_info": meta}

    def scores(self, ids):
        """Return the log-probability of each token given those before it; None for the first."""
        return [None, *self.distributions(ids, 1.0)[range(len(ids) - 1), ids[1:]].tolist()]

    def distributions(self, ids, temperature):
        """Return the log-probabilities of all tokens at each position but the first. [T - 1, V]"""
        with torch.inference_mode():
            rows = self.model(torch.tensor([ids])).logits[0, :-1].double()
        return (rows / temperature).log_softmax(-1)

    # Weights.

    def read(self, directory):
        """Load the safetensors of a directory into the model; raises `ValueError`, with the old weights kept."""
        files = sorted(Path(directory).glob("*.safetensors"))
        if not files:
            raise ValueError(f"Failed to get weights iterator: Cannot find any model weights with `{directory}`.")
        try:
            tensors = {name: tensor for path in files for name, tensor in load_file(path).items()}
            self._check(tensors)
        except Exception as error:
            raise ValueError(f"Failed to update weights: {error}.\nRolling back to original weights.") from error
        # As in SGLang, weights that the files lack keep their values.
        self.model.load_state_dict(tensors, strict=False)

    def _check(self, tensors):
        own = self.model.state_dict()
        wrong = [name for name, one in tensors.items() if name not in own or own[name].shape != one.shape]
        if wrong:
            raise KeyError(", ".join(wrong))

    async def update(self, obj):
        """Carry out `/update_weights_from_disk`; return whether it succeeded, and the message."""
        if obj.abort_all_requests:
            await self.abort("")
        if self.go.is_set():
            await self.drain()
        if self.halted == "in_place" and self.running and not obj.flush_cache:
            return False, "the fake cannot keep keys and values of old weights"
        try:
            self.read(obj.model_path)
        except ValueError as error:
            return False, str(error)
        self.labels.append(obj.weight_version or self.label)
        await self.engine.load_weights(len(self.labels) - 1, ModuleWeights(self.model))
        self.model_path = obj.model_path
        if obj.flush_cache and self.halted == "in_place" and self.running:
            return False, (
                "Weights were updated, but the cache was not flushed because requests are still running or queued. "
                "Retract or finish them, then call /flush_cache."
            )
        message = "Succeeded to update model weights."
        return True, message + (f" Weight version updated to {self.label}." if obj.weight_version else "")

    async def drain(self):
        """Wait until no request runs; SGLang's writer lock holds new ones back meanwhile."""
        while self.running:
            await asyncio.sleep(LOCK_POLL_S)

    async def abort(self, rid):
        """End the requests whose id begins with `rid`."""
        for one in [name for name in self.running if name.startswith(rid)]:
            await self.engine.abort(one)

    async def pause(self, mode):
        self.go.clear()
        if mode != "abort":
            self.halted = mode
            await self.engine.pause()
            return
        while True:
            await self.abort("")
            if not self.running:
                return
            await asyncio.sleep(LOCK_POLL_S)

    async def resume(self):
        if self.halted:
            await self.engine.resume()
        self.halted = False
        self.go.set()

    def checksums(self):
        """As `/weights_checker` sends them, for one rank; the hash is another one."""
        sums = {
            name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest()[:16]
            for name, tensor in self.model.state_dict().items()
        }
        overall = hashlib.sha256("".join(name + sums[name] for name in sorted(sums)).encode()).hexdigest()
        places = ("tp_rank", "dp_rank", "pp_rank", "rank")
        rank = (
            {"role": "target"} | dict.fromkeys(places, 0) | dict.fromkeys(("tp_size", "dp_size", "pp_size", "size"), 1)
        )
        return {"checksums": sums, "per_gpu_checksum": overall, "parallelism_info": [rank]}


class ContractError(ValueError):
    """A body that the schema of the HTTP interface refuses; its reply has another shape than that of a ValueError."""


class _Encoding:
    """The tokenizer as `SamplingParams.normalize` calls it."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def encode(self, text, add_special_tokens):
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids


def _eos_ids(model):
    found = model.generation_config.eos_token_id
    found = model.config.eos_token_id if found is None else found
    return set(found) if isinstance(found, list) else {found} - {None}


def _temperature(obj, params):
    """Return the temperature by which logits are divided: 1 for greedy requests."""
    return params.temperature if obj.sampling_params.get("temperature") != 0 else 1.0


def _grammar(params):
    if params.json_schema is not None:
        return Grammar(kind="json_schema", value=params.json_schema)
    if params.regex is not None:
        return Grammar(kind="regex", value=params.regex)
    if params.ebnf is not None or params.structural_tag is not None:
        raise ValueError("the fake has no grammars in EBNF and no structural tags")
    return None


def refuse_unknown(kind, body):
    """Refuse fields that the class does not have; SGLang would not tell."""
    if unknown := sorted(set(body) - fields_of(kind)):
        raise ValueError(f"the fake refuses fields that {kind.__name__} does not have: {', '.join(unknown)}")
