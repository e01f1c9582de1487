"""Stand-in for an SGLang 0.5.23 server, which has no build for the CPU: `python -m tests.servers.sglang_fake --help`.

Requests are checked with the released wheel's own classes, as its HTTP server has FastAPI check them, and the replies
have the fields that it sends. Tokens are really sampled, by the embedded engine, and weights are really loaded from the
safetensors that a request names. Log-probabilities of prompts come from a forward pass by transformers.

It differs from SGLang in this: a field that SGLang does not know is refused, where SGLang may ignore it; with a grammar
or `min_new_tokens` the log-probabilities are those without them; of top-k and top-p together, top-p is taken of what
top-k leaves; keys and values of old weights cannot be kept (`in_place` with running requests, and no flush).
"""

import argparse
import asyncio
import contextlib
import hashlib
import os
from pathlib import Path
from typing import Annotated

import orjson
import torch
import uvicorn
from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from tests.servers.sglang_sampling import ContractError, Server, refuse_unknown
from tests.servers.sglang_schemas import load

from agentrl_core.api.weights import ModuleWeights


def routes(server):  # noqa: C901, PLR0915 (one function per route)
    """Return the application."""
    io, app = server.io, FastAPI()

    @app.exception_handler(RequestValidationError)
    async def invalid(request, error):
        told = {"object": "error", "message": f"{error} {error.errors()}", "type": "Bad Request", "param": None}
        return JSONResponse(told | {"code": 400}, 400)

    @app.exception_handler(ContractError)
    async def violated(request, error):
        return JSONResponse({"error": str(error)}, 400)

    @app.exception_handler(ValueError)
    async def wrong(request, error):
        return JSONResponse({"error": {"message": str(error)}}, 400)

    async def strict(request, obj):
        refuse_unknown(type(obj), await request.json())
        return obj

    def done(success, message, **more):
        return JSONResponse({"success": success, "message": message} | more, 200 if success else 400)

    @app.api_route("/generate", methods=["POST", "PUT"])
    async def generate(obj: io.GenerateReqInput, request: Request):
        params = server.admit(obj, await request.json())
        replies = server.generate(obj, params)
        if not obj.stream:
            return await _until_left(_first(replies), request, lambda: server.abort(obj.rid))

        async def events():
            try:
                async for reply in replies:
                    yield b"data: " + orjson.dumps(reply) + b"\n\n"
            except ValueError as error:
                told = {"message": str(error), "type": "invalid_request_error", "code": 400, "retryable": False}
                yield b"data: " + orjson.dumps({"error": told}) + b"\n\n"
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    @app.post("/update_weights_from_disk")
    async def update(obj: Annotated[io.UpdateWeightFromDiskReqInput, Body()], request: Request):
        return done(*await server.update(await strict(request, obj)), num_paused_requests=0)

    @app.post("/update_weight_version")
    async def rename(obj: Annotated[io.UpdateWeightVersionReqInput, Body()], request: Request):
        await strict(request, obj)
        if obj.abort_all_requests:
            await server.abort("")
        server.labels[-1] = obj.new_version
        return done(True, f"Weight version updated to {obj.new_version}", new_version=obj.new_version)

    @app.post("/pause_generation")
    async def pause(obj: Annotated[io.PauseGenerationReqInput, Body()], request: Request):
        await server.pause((await strict(request, obj)).mode)
        return {"message": "Generation paused successfully.", "status": "ok"}

    @app.post("/continue_generation")
    async def resume(obj: Annotated[io.ContinueGenerationReqInput, Body()], request: Request):
        await strict(request, obj)
        await server.resume()
        return {"message": "Generation continued successfully.", "status": "ok"}

    @app.post("/abort_request")
    async def abort(obj: Annotated[io.AbortReq, Body()], request: Request):
        await strict(request, obj)
        # The id must be one that is known, whole; then it is compared as the beginning of ids.
        if obj.abort_all or obj.rid in server.running:
            await server.abort("" if obj.abort_all else obj.rid)
        return Response()

    @app.api_route("/flush_cache", methods=["GET", "POST"])
    async def flush():
        if server.running and server.halted != "retract":
            return PlainTextResponse("Flush cache failed.\n", 400)
        await server.engine.load_weights(len(server.labels) - 1, ModuleWeights(server.model))
        return PlainTextResponse("Cache flushed.\n")

    @app.api_route("/weights_checker", methods=["GET", "POST"])
    async def checker(request: Request, obj: Annotated[io.CheckWeightsReqInput | None, Body()] = None):
        if obj is not None:
            await strict(request, obj)
            if obj.action != "checksum":
                return done(False, f"the fake has no action {obj.action}")
        rank = server.checksums()
        whole = hashlib.sha256(rank["per_gpu_checksum"].encode()).hexdigest()
        return done(True, "Success.", ranks=[rank], per_engine_checksum=whole)

    @app.api_route("/release_memory_occupation", methods=["GET", "POST"])
    async def release(obj: Annotated[io.ReleaseMemoryOccupationReqInput, Body()], request: Request):
        await strict(request, obj)
        if server.running and server.halted != "retract":
            raise HTTPException(500, "release_memory_occupation should be called only when server is idle.")
        if server.memory_saver:
            server.released |= set(obj.tags or ("weights", "kv_cache"))

    @app.api_route("/resume_memory_occupation", methods=["GET", "POST"])
    async def reclaim(obj: Annotated[io.ResumeMemoryOccupationReqInput, Body()], request: Request):
        await strict(request, obj)
        server.released -= set(obj.tags or ("weights", "kv_cache"))

    @app.post("/load_lora_adapter")
    async def load_adapter(obj: Annotated[io.LoadLoRAAdapterReqInput, Body()], request: Request):
        await strict(request, obj)
        wrong = None
        if obj.lora_name in server.adapters:
            wrong = f"LoRA with name {obj.lora_name} already exists."
        elif not (Path(obj.lora_path) / "adapter_config.json").exists():
            wrong = f"Can't find 'adapter_config.json' at '{obj.lora_path}'"
        else:
            server.adapters[obj.lora_name] = obj.lora_path
        told = {"success": wrong is None, "error_message": wrong, "loaded_adapters": server.adapters}
        return JSONResponse(told, 200 if wrong is None else 400)

    @app.post("/unload_lora_adapter")
    async def unload_adapter(obj: Annotated[io.UnloadLoRAAdapterReqInput, Body()], request: Request):
        await strict(request, obj)
        known = server.adapters.pop(obj.lora_name, None) is not None
        wrong = None if known else f"LoRA with name {obj.lora_name} does not exist."
        told = {"success": known, "error_message": wrong, "loaded_adapters": server.adapters}
        return JSONResponse(told, 200 if known else 400)

    @app.get("/health")
    @app.get("/health_generate")
    @app.get("/ready")
    async def health():
        return Response()

    @app.get("/v1/models")
    async def models():
        card = {"id": server.served_name, "object": "model", "owned_by": "sglang", "root": server.served_name}
        card |= {"created": 0, "parent": None, "max_model_len": server.engine.context_length}
        return {"object": "list", "data": [card]}

    @app.get("/model_info")
    @app.get("/get_model_info")
    async def model_info():
        config = server.model.config
        return {
            "model_path": server.model_path,
            "served_model_name": server.served_name,
            "tokenizer_path": server.served_name,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": server.label,
            "load_format": "auto",
            "disaggregation_mode": "null",
            "model_type": config.model_type,
            "architectures": config.architectures,
        }

    @app.get("/server_info")
    @app.get("/get_server_info")
    async def server_info():
        sizes = {"tp_size": 1, "dp_size": 1, "pp_size": 1}
        return {"model_path": server.served_name, "version": "0.5.23", "internal_states": [{}]} | sizes

    return app


async def _first(replies):
    async with contextlib.aclosing(replies):
        return await anext(replies)


async def _until_left(work, request, abort):
    """Await the reply; if the client leaves, abort the request, as SGLang does some seconds later."""
    task = asyncio.ensure_future(work)
    while not (await asyncio.wait([task], timeout=0.5))[0]:
        if await request.is_disconnected():
            await abort()
    return await task


def main():
    parser = argparse.ArgumentParser(description="Serve a model directory as SGLang 0.5.23 does.")
    parser.add_argument("--sources", type=Path, default=os.environ.get("AGENTRL_SGLANG_SOURCES"))
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--fd", type=int, required=True, help="descriptor of a bound socket")
    parser.add_argument("--context-length", type=int)
    parser.add_argument("--enable-memory-saver", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)

    async def serve():
        server = Server(
            load(chosen.sources),
            chosen.model_path,
            context_length=chosen.context_length,
            memory_saver=chosen.enable_memory_saver,
        )
        await uvicorn.Server(uvicorn.Config(routes(server), fd=chosen.fd, lifespan="off")).serve()
        server.engine.close()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
