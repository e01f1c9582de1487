"""Process of a model server with SGLang's routes and a realistic pace, whose every token can be checked.

A token depends on the weights, on the request and on its place alone: whoever has the output knows whether it is whole.
"""

from __future__ import annotations

import argparse
import asyncio
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request  # noqa: TC002 (Starlette reads the annotation)
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

VOCAB = 32_000
STRIDE = 16
"""Tokens of one event, as with `--stream-interval 16`."""
LOGPROB = -0.5


def token(version: int, request: int, place: int) -> int:
    """Return the id that weights of `version` sample at a place of the request that begins with the id `request`."""
    return zlib.crc32(f"{version}/{request}/{place}".encode()) % VOCAB


class FleetServer:
    """Samples at most `slots` requests at a time, one token each `token_s`."""

    def __init__(self, *, token_s: float, slots: int, load_s: float) -> None:
        self._token_s, self._load_s = token_s, load_s
        self._slots = asyncio.Semaphore(slots)
        self._version, self._label = 0, "default"
        self._go = asyncio.Event()
        self._go.set()
        self._stop = asyncio.Event()
        """Replaced at each pause: set to end what runs."""
        self._aborted: set[str] = set()
        self._running = 0

    def app(self) -> Starlette:
        """Return the routes."""
        routes = {
            "/v1/models": self._models,
            "/model_info": self._info,
            "/generate": self._generate,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/update_weights_from_disk": self._load,
            "/abort_request": self._abort,
        }
        return Starlette(routes=[Route(path, handler, methods=["GET", "POST"]) for path, handler in routes.items()])

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"data": [{"id": "policy", "max_model_len": 4096}]})

    async def _info(self, _: Request) -> Response:
        return JSONResponse({"model_path": "/policy", "weight_version": self._label})

    async def _pause(self, _: Request) -> Response:
        self._go.clear()
        self._stop.set()
        while self._running:
            await asyncio.sleep(0.002)
        return JSONResponse({"status": "ok"})

    async def _continue(self, _: Request) -> Response:
        self._stop = asyncio.Event()
        self._go.set()
        return JSONResponse({"status": "ok"})

    async def _load(self, request: Request) -> Response:
        body = await request.json()
        await asyncio.sleep(self._load_s)
        self._version = int((Path(body["model_path"]) / "version").read_text())
        self._label = body["weight_version"]
        return JSONResponse({"success": True, "message": ""})

    async def _abort(self, request: Request) -> Response:
        self._aborted.add((await request.json())["rid"])
        return Response(b"")

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        return StreamingResponse(self._events(body), media_type="text/event-stream")

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        async with self._slots:
            await self._go.wait()
            stop, label, version = self._stop, self._label, self._version
            prompt, most = body["input_ids"], body["sampling_params"]["max_new_tokens"]
            ids: list[int] = []
            self._running += 1
            try:
                due = time.monotonic()
                while len(ids) < most and not stop.is_set() and body["rid"] not in self._aborted:
                    new = min(STRIDE, most - len(ids))
                    due += new * self._token_s
                    await asyncio.sleep(max(due - time.monotonic(), 0))
                    place = len(prompt) + len(ids)
                    ids += [token(version, prompt[0], place + index) for index in range(new)]
                    if len(ids) < most:
                        yield _event(ids, label, None)
            finally:
                self._running -= 1
            reason = {"type": "length", "length": most} if len(ids) == most else {"type": "abort", "message": ""}
        yield _event(ids, label, reason) + b"data: [DONE]\n\n"


def _event(ids: list[int], label: str, reason: object) -> bytes:
    meta = {
        "finish_reason": reason,
        "weight_version": label,
        "completion_tokens": len(ids),
        "output_token_logprobs": [[LOGPROB, token, None] for token in ids],
    }
    return b"data: " + orjson.dumps({"output_ids": ids, "meta_info": meta}) + b"\n\n"


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--token-s", type=float, default=0.01)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--load-s", type=float, default=0.1)
    options = parser.parse_args()
    server = FleetServer(token_s=options.token_s, slots=options.slots, load_s=options.load_s)
    uvicorn.run(server.app(), host="127.0.0.1", port=options.port, log_level="warning", lifespan="off")


if __name__ == "__main__":
    main()
