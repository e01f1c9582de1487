"""Fake model server on loopback with the routes of SGLang and vLLM and a deterministic model.

It logs every request and every sampled token, and it really reads the weights that it is told to load.
"""

import asyncio
import math
import random
import re
import socket
import threading
import zlib
from pathlib import Path

import numpy as np
import orjson
import uvicorn
from safetensors.numpy import load_file, save_file
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

VOCAB = 263
TOKEN_S = 0.0005


def write_weights(directory, salt):
    directory.mkdir(parents=True, exist_ok=True)
    save_file({"salt": np.array([salt], dtype=np.int64)}, directory / "model.safetensors")
    return directory


def read_weights(directory):
    return int(load_file(Path(directory) / "model.safetensors")["salt"][0])


def log_softmax(logits):
    shifted = logits - logits.max()
    return shifted - math.log(np.exp(shifted).sum())


def logits(salt, ids):
    """Of the token after `ids`: they depend on the weights, the last four ids and how many there are."""
    key = zlib.crc32(f"{salt}/{len(ids)}/{list(ids[-4:])}".encode())
    return np.random.default_rng(key).standard_normal(VOCAB) * 2.0


def left_of(logits, top_p, top_k):
    """Which tokens top-k and then top-p leave."""
    ordered = np.sort(logits)[::-1]
    left = logits >= ordered[min(top_k, len(logits)) - 1] if top_k > 0 else np.full(len(logits), fill_value=True)
    odds = np.exp(log_softmax(np.where(left, logits, -np.inf)))
    order = np.argsort(-odds, kind="stable")
    before = odds[order].cumsum() - odds[order]
    left[order[before >= top_p]] = False
    return left


def reference_logprobs(salt, prompt_ids, output_ids, temperature):
    ids = list(prompt_ids)
    found = []
    for token in output_ids:
        found.append(float(log_softmax(logits(salt, ids) / temperature)[token]))
        ids.append(token)
    return found


def _event(data):
    return b"data: " + orjson.dumps(data) + b"\n\n"


def _is_broken(regex):
    try:
        re.compile(regex or "")
    except re.error:
        return True
    return False


class Sampled:
    """A generation on its way through the server."""

    def __init__(self, rid, prompt, label):
        self.rid, self.prompt, self.label = rid, prompt, label
        self.ids, self.logprobs, self.top = [], [], []
        self.kept, self.renormalised = [], []
        self.finish = None
        self.aborted = False


class ModelServer:
    """Runs in a thread of its own; `reset` makes it new."""

    def __init__(self, decode, model_path):
        self.decode, self.model_path = decode, model_path
        self.reset()
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()  # whoever comes before the thread serves waits
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(self._app(), log_level="critical", lifespan="off", timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def reset(self):
        """Serve the first weights; nobody may be asking."""
        self._loaded = 0
        self.salt, self.label, self.context_length, self.key = 0, "default", 4096, None
        self.scaled = True
        """Whether vLLM's logprobs take the temperature into account."""
        self.masks = False
        """Whether vLLM was started with --return-sampling-mask."""
        self.development = True
        """Whether vLLM was started with its control routes."""
        self.spans = "last"
        """Weight versions of vLLM's streams: in the `last` event those of all tokens, as 0.32 does; in each event those
        of its `new` tokens; or None if it tells none."""
        self.incremental = False
        """Whether SGLang's streams hold what is new only."""
        self.asked, self.controls, self.headers = [], [], []
        """Bodies of what it was asked, in order; what it was told to do; headers of all requests."""
        self.lost = False
        """Whether requests for tokens get no reply, as from a server that dies."""
        self.refused = set()
        """Commands of `pause` and `continue` that fail."""
        self.broken = False
        """Whether it fails to load weights."""
        self.loads = threading.Event()
        """Weights are loaded only while this is set."""
        self.loads.set()
        self.workers, self.worker_type = None, "regular"
        """Addresses of the servers behind it, if it is a router."""
        self.holds_cache = False
        """Whether vLLM keeps its prefix cache, which it tells with status 200."""
        self.faults = []
        """Replies to give in place of a generation, first in first out."""
        self.probe_faults = []
        """The same for a prompt of one token, by which the engine finds out what a server can do."""
        self.cards = None
        """The models that it lists; None: the one that it serves."""
        self.spoil = None
        """Changes the body of a reply before it is sent."""
        self.stopped = threading.Event()
        """Set when a generation was aborted."""
        self._running = {}
        self._go = asyncio.Event()
        self._go.set()

    def read_weights(self, directory):
        """What `logits` gets: here a number."""
        return read_weights(directory)

    def logits(self, weights, ids):
        return logits(weights, ids)

    def close(self):
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def _serve(self):
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def _app(self):
        routes = {
            "/generate": self._sglang,
            "/inference/v1/generate": self._vllm,
            "/v1/models": self._models,
            "/model_info": self._info,
            "/workers": self._workers,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/abort_request": self._abort,
            "/inference/v1/abort_requests": self._abort_all,
            "/update_weights_from_disk": self._load,
            "/pause": self._of_development(self._pause),
            "/resume": self._of_development(self._continue),
            "/collective_rpc": self._of_development(self._rpc),
            "/reset_prefix_cache": self._of_development(self._reset_prefix_cache),
            "/update_weight_version": self._of_development(self._name_weights),
            "/weight_info": self._of_development(self._weight_info),
        }
        return Starlette(
            routes=[Route(path, self._checked(handler), methods=["GET", "POST"]) for path, handler in routes.items()]
        )

    def _checked(self, handler):
        async def endpoint(request):
            self.headers.append(dict(request.headers))
            if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
                return JSONResponse({"error": "Unauthorized"}, 401)
            body = await request.json() if request.method == "POST" else {}
            if request.url.path in {"/generate", "/inference/v1/generate"}:
                if self.lost:
                    return Response(b"{", 200, {"content-length": "50"})
                # The engine's probes have one token.
                is_probe = len(body.get("input_ids") or body["token_ids"]) == 1
                if faults := self.probe_faults if is_probe else self.faults:
                    return faults.pop(0)
            sampling = body.get("sampling_params") or {}
            if _is_broken((sampling.get("structured_outputs") or sampling).get("regex")):
                return JSONResponse({"error": {"message": "Invalid grammar request.", "code": 400}}, 400)
            return await handler(request, body)

        return endpoint

    async def _models(self, _request, _body):
        card = {"id": "policy", "max_model_len": self.context_length, "root": self.model_path}
        return JSONResponse({"object": "list", "data": [card] if self.cards is None else self.cards})

    async def _workers(self, _request, _body):
        """As sglang-router 0.3.2 replies; a server has no such route."""
        if self.workers is None:
            return JSONResponse({"detail": "Not Found"}, 404)
        workers = [
            {"id": str(index), "url": url, "model_id": "policy", "worker_type": self.worker_type, "is_healthy": False}
            for index, url in enumerate(self.workers)
        ]
        return JSONResponse({"workers": workers, "total": len(workers), "stats": {"regular_count": len(workers)}})

    async def _info(self, _request, _body):
        return JSONResponse({"model_path": self.model_path, "weight_version": self.label, "is_generation": True})

    async def _weight_info(self, _request, _body):
        return JSONResponse({"weight_version": self.label})

    def _of_development(self, handler):
        """Routes that vLLM has only with VLLM_SERVER_DEV_MODE=1."""

        async def endpoint(request, body):
            return await handler(request, body) if self.development else JSONResponse({"detail": "Not Found"}, 404)

        return endpoint

    async def _pause(self, request, body):
        assert request.query_params.get("mode", body.get("mode")) == "abort"
        if "pause" in self.refused:
            return JSONResponse({"message": "cannot pause"}, 400)
        self.controls.append(("pause", body))
        self._go.clear()
        for run in self._running.values():
            run.aborted = True
        while self._running:
            await asyncio.sleep(TOKEN_S)
        return JSONResponse({"message": "Generation paused.", "status": "ok"})

    async def _continue(self, _request, body):
        if "continue" in self.refused:
            return JSONResponse({"message": "cannot continue"}, 400)
        self.controls.append(("continue", body))
        self._go.set()
        return JSONResponse({"message": "Generation continued.", "status": "ok"})

    async def _abort(self, _request, body):
        self.controls.append(("abort", body))
        for rid, run in self._running.items():
            if rid.startswith(body["rid"]):
                run.aborted = True
        return Response(b"")

    async def _abort_all(self, _request, body):
        self.controls.append(("abort", body))
        for rid in body["request_ids"]:
            if rid in self._running:
                self._running[rid].aborted = True
        return Response(b"")

    async def _load(self, _request, body):
        self.controls.append(("load", body))
        assert not self._running
        await self._until_loading()
        if self.broken:
            return JSONResponse({"success": False, "message": "cannot load"}, 400)
        try:
            self.salt = self.read_weights(body["model_path"])
        except OSError as error:
            return JSONResponse({"success": False, "message": f"Failed to load: {error}"}, 400)
        self.label = body["weight_version"]
        return JSONResponse({"success": True, "message": f"Weight version updated to {self.label}."})

    async def _rpc(self, _request, body):
        self.controls.append(("load", body))
        assert not self._running
        assert not self._go.is_set()
        await self._until_loading()
        if body["method"] != "reload_weights" or self.broken:
            return JSONResponse({"error": {"message": "cannot load", "code": 500}}, 500)
        try:
            self._loaded = self.read_weights(body["kwargs"]["weights_path"])
        except OSError as error:
            return JSONResponse({"error": {"message": f"Failed to load: {error}", "code": 500}}, 500)
        return JSONResponse({"results": [None]})

    async def _until_loading(self):
        while not self.loads.is_set():
            await asyncio.sleep(TOKEN_S)

    async def _reset_prefix_cache(self, _request, _body):
        """Until then, what is cached of the old weights would be used."""
        self.controls.append(("flush", {}))
        if self.holds_cache:
            return JSONResponse({"success": False})
        self.salt = self._loaded
        return JSONResponse({"success": True})

    async def _name_weights(self, _request, body):
        self.controls.append(("name", body))
        self.label = body["new_version"]
        return JSONResponse({"success": True, "new_version": self.label})

    # Sampling.

    async def _sample(
        self, run, *, tokens, least, temperature, seed, stop, stop_ids, num_top, grammar, scaled, leaving, top_p, top_k
    ):
        """Yield after each token."""
        while not self._go.is_set():
            await asyncio.sleep(TOKEN_S)
            if run.aborted or await leaving():
                run.finish = "abort"
                return
        run.label = self.label
        self._running[run.rid] = run
        source = random.Random(seed)
        try:
            while run.finish is None:
                await asyncio.sleep(TOKEN_S)
                if run.aborted or await leaving():
                    run.finish = "abort"
                    return
                raw = self.logits(self.salt, [*run.prompt, *run.ids])
                raw[100 if grammar else len(raw) :] -= 1e4
                raw[[token for token in stop_ids if len(run.ids) < least]] -= 1e4
                told = log_softmax(raw / temperature if temperature and scaled else raw)
                left = left_of(raw / (temperature or 1.0), top_p, top_k)
                among = log_softmax(np.where(left, raw / (temperature or 1.0), -np.inf))
                odds = np.exp(among).cumsum()
                token = int(np.searchsorted(odds, source.random() * odds[-1], side="right")) if temperature else None
                token = int(raw.argmax()) if token is None else min(token, len(raw) - 1)
                if self.masks:
                    told = np.maximum(among, -9999.0)  # processed_logprobs, which JSON can express
                run.ids.append(token)
                # Not in the order of their ids: SGLang sends the likeliest first.
                run.kept.append([int(i) for i in np.argsort(-among, kind="stable")[: left.sum()]])
                run.renormalised.append(float(among[token]))
                run.logprobs.append(float(told[token]))
                run.top.append([(int(i), float(told[i])) for i in np.argsort(-told, kind="stable")[:num_top]])
                text = self.decode(run.ids)
                if token in stop_ids:
                    run.finish, run.matched = "stop", token
                elif found := next((item for item in stop if item in text), None):
                    run.finish, run.matched = "stop", found
                elif len(run.ids) >= tokens:
                    run.finish = "length"
                yield
        finally:
            if run.finish in {None, "abort"}:
                self.stopped.set()
            del self._running[run.rid]

    def _scored(self, ids):
        told = [log_softmax(self.logits(self.salt, ids[:index])) for index in range(1, len(ids))]
        return [None, *(float(values[token]) for values, token in zip(told, ids[1:], strict=True))]

    def _reply(self, body):
        return JSONResponse(self.spoil(body) if self.spoil else body)

    async def _sglang(self, request, body):  # noqa: C901  (all that a reply may have)
        self.asked.append(body)
        prompt, sampling = body["input_ids"], body["sampling_params"]
        if len(prompt) + sampling["max_new_tokens"] > self.context_length:
            return JSONResponse({"error": {"message": "The input is too long.", "code": 400}}, 400)
        if sampling["max_new_tokens"] == 0:
            first = body["logprob_start_len"]
            pairs = list(zip(self._scored(prompt), prompt, strict=True))[first:]
            entries = [[None if index == 0 else value, token, None] for index, (value, token) in enumerate(pairs)]
            return self._reply({"text": "", "output_ids": [], "meta_info": {"input_token_logprobs": entries}})
        run = Sampled(body["rid"], prompt, self.label)
        steps = self._sample(
            run,
            tokens=sampling["max_new_tokens"],
            least=sampling["min_new_tokens"],
            temperature=sampling["temperature"],
            seed=sampling["sampling_seed"],
            stop=sampling["stop"],
            stop_ids=sampling["stop_token_ids"],
            num_top=body["top_logprobs_num"],
            grammar={"json_schema", "regex", "ebnf"} & sampling.keys(),
            scaled=True,
            top_p=sampling["top_p"],
            top_k=sampling["top_k"],
            leaving=request.is_disconnected,
        )

        def shape(seen=0):
            finish = {"length": {"type": "length", "length": len(run.ids)}, "abort": {"type": "abort", "message": "x"}}
            reason = finish.get(run.finish) or ({"type": "stop", "matched": run.matched} if run.finish else None)
            first = seen if self.incremental else 0
            entries = [[value, token, None] for value, token in zip(run.logprobs, run.ids, strict=True)][first:]
            meta = {
                "id": run.rid,
                "finish_reason": reason,
                "prompt_tokens": len(prompt),
                "weight_version": run.label,
                "completion_tokens": len(run.ids),
                "cached_tokens": 8,
                "output_token_logprobs": entries,
            }
            if body["return_sampling_mask"]:
                meta["output_token_sampling_mask"] = run.kept[first:]
                meta["output_token_sampling_logprobs"] = run.renormalised[first:]
                meta["output_token_sampling_mask_length"] = len(run.kept)
            if body["top_logprobs_num"]:
                meta["output_top_logprobs"] = [[[v, i, None] for i, v in top] for top in run.top][first:]
            return {"text": self.decode(run.ids), "output_ids": run.ids[first:], "meta_info": meta}

        if not body["stream"]:
            async for _ in steps:
                pass
            return self._reply(shape())

        async def events():
            seen = 0
            async for _ in steps:
                if run.finish is None:
                    yield _event(shape(seen))
                    seen = len(run.ids)
            yield _event(shape(seen)) + b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _vllm(self, request, body):
        self.asked.append(body)
        prompt, sampling = body["token_ids"], body["sampling_params"]
        if len(prompt) + sampling["max_tokens"] > self.context_length:
            message = f"This model's maximum context length is {self.context_length} tokens."
            return JSONResponse({"error": {"message": message, "type": "BadRequestError", "code": 400}}, 400)
        if "prompt_logprobs" in sampling:
            values = zip(prompt, self._scored(prompt), strict=True)
            tables = [None if value is None else {str(token): {"logprob": value, "rank": 1}} for token, value in values]
            return self._reply({"choices": [{"index": 0, "token_ids": [0]}], "prompt_logprobs": tables})
        if self.masks and not (sampling["temperature"] > 0 and sampling["top_k"] > 0):
            return JSONResponse({"error": {"message": "sampling distribution replay requires …", "code": 400}}, 400)
        if sampling["logprobs"] > 20:
            return JSONResponse({"error": {"message": "more than max_logprobs", "code": 400}}, 400)
        run = Sampled(f"generate-tokens-{body['request_id']}", prompt, self.label)
        steps = self._sample(
            run,
            tokens=sampling["max_tokens"],
            least=sampling["min_tokens"],
            temperature=sampling["temperature"],
            seed=sampling["seed"],
            stop=sampling["stop"],
            stop_ids=sampling["stop_token_ids"],
            num_top=sampling["logprobs"],
            grammar=sampling.get("structured_outputs"),
            scaled=self.scaled,
            top_p=sampling["top_p"],
            top_k=sampling["top_k"],
            leaving=request.is_disconnected,
        )

        def shape(seen=0):
            content = [self._entry(*step, most=max(sampling["logprobs"], 1)) for step in self._steps(run)]
            choice = {"index": 0, "token_ids": run.ids[seen:], "logprobs": {"content": content[seen:]}}
            num_told = len(run.ids) - (seen if self.spans == "new" else 0)
            spans = [{"version": run.label, "start": 0, "end": num_told}]
            told = run.ids and (self.spans == "new" or (self.spans == "last" and run.finish))
            choice |= {"finish_reason": run.finish, "weight_versions": spans if told else None}
            choice |= {"stop_reason": run.matched if run.finish == "stop" else None, "routed_experts": None}
            choice |= {"sampling_mask": run.kept[seen:]} if self.masks else {}
            return {"request_id": run.rid, "choices": [choice]}

        if body["stream"]:
            return StreamingResponse(self._vllm_events(run, steps, shape), media_type="text/event-stream")
        async for _ in steps:
            pass
        return self._reply(shape() | {"usage": self._usage(run)})

    async def _vllm_events(self, run, steps, shape):
        seen = 0
        async for _ in steps:
            if run.finish is None:
                yield _event(shape(seen))
                seen = len(run.ids)
        yield _event(shape(seen))  # also an abort's, which has no new tokens
        yield _event({"choices": [], "usage": self._usage(run)})
        yield "data: [DONE]\n\n"

    @staticmethod
    def _usage(run):
        counts = {"prompt_tokens": len(run.prompt), "completion_tokens": len(run.ids)}
        return counts | {"prompt_tokens_details": {"cached_tokens": 8}}

    @staticmethod
    def _entry(token, logprob, top, *, most):
        """The first of the likeliest is the sampled token."""
        likeliest = [{"token_id": i, "logprob": value, "rank": 1} for i, value in {token: logprob, **dict(top)}.items()]
        return {"token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": likeliest[:most]}

    @staticmethod
    def _steps(run):
        return zip(run.ids, run.logprobs, run.top, strict=True)
