"""Latency of `/health` and of other sessions' calls while one session sends bodies of the largest allowed size.

The sending clients are in another process. Latencies are wall time, so a busy machine adds to them; the row without
greedy clients shows how much.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import httpx2
import orjson
from tests.benchmarks.gateway.model import model_dir, words
from tests.benchmarks.gateway.process import Server
from tests.benchmarks.report import FOLDER, Row, report

_MIB = 2**20
_ROOM = 16 * _MIB - 200
"""Bytes of a body beside what frames it."""
_PAUSE_S = 0.01
"""Between two looks at the latency."""


def _words(size: int) -> str:
    source = words("greedy")
    page = " ".join(next(source) for _ in range(20_000))
    return (page * (size // len(page) + 1))[:size]


def _chat(content: object, **fields: object) -> bytes:
    return orjson.dumps({"messages": [{"role": "user", "content": content}], **fields})


BODIES: Mapping[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "text_16MiB": lambda: _chat(_words(_ROOM)),
    "text_1MiB": lambda: _chat(_words(_MIB)),
    "one_word_16MiB": lambda: _chat("a" * _ROOM),
    "stop_strings_1.6MB": lambda: _chat("hi", stop=["a" * 99_999 + chr(98 + index) for index in range(16)]),
    "stop_string_16MiB": lambda: _chat("hi", stop="a" * _ROOM),
    "stop_strings_16x1000": lambda: _chat("hi", stop=["a" * 999 + chr(98 + index) for index in range(16)]),
    "arrays_8M": lambda: b"[" + b"[]," * (_ROOM // 3) + b"[]]",
    "strings_5M": lambda: b"[" + b'"",' * (_ROOM // 3) + b'""]',
    "numbers_8M": lambda: b'{"prompt":[' + b"1," * (_ROOM // 2) + b"1]}",
    "messages_30k": lambda: orjson.dumps({"messages": [{"role": "user", "content": "hi " * 150}] * 30_000}),
    "unknown_field_16MiB": lambda: _chat("hi", metadata="x" * _ROOM),
    "tools_16MiB": lambda: _chat(
        "hi", tools=[{"type": "function", "function": {"name": "f", "description": "x " * (_ROOM // 2)}}]
    ),
}


async def _attack(url: str, body: bytes, clients: int) -> None:
    """Send one body again and again, by several clients, until the process is ended."""

    async def send(client: httpx2.AsyncClient) -> None:
        while True:
            try:
                await client.post(url, content=body)
            except httpx2.TransportError:  # refused while it was sent
                await asyncio.sleep(0.01)

    async with httpx2.AsyncClient(trust_env=False, timeout=120) as client, asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(send(client))


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _watch(url: str, path: str, key: str, seconds: float) -> dict[str, float]:
    """Ask `/health` and the policy by turns; latencies in ms."""
    split = urlsplit(url)
    found: dict[str, list[float]] = {"health": [], "call": []}
    connection = http.client.HTTPConnection(str(split.hostname), split.port, timeout=120)
    body, headers = _chat("hello"), {"authorization": f"Bearer {key}"}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, latencies in found.items():
            started = time.perf_counter()
            if name == "health":
                connection.request("GET", "/health")
            else:
                connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{name} was answered by {answer.status}")
            latencies.append(1e3 * (time.perf_counter() - started))
            time.sleep(_PAUSE_S)
    connection.close()
    return {
        f"{name}_{label}_ms": value
        for name, values in found.items()
        for label, value in (
            ("p50", _percentile(values, 0.5)),
            ("p99", _percentile(values, 0.99)),
            ("max", max(values)),
        )
    }


def _measure(case: str, *, context: int, clients: int, seconds: float) -> list[Row]:
    arguments = ("--model", str(model_dir()), "--context", str(context))
    with Server.of_module("tests.benchmarks.gateway.serve", *arguments, log=FOLDER / "greedy.log") as server:
        url: str = server.read()["url"]
        greedy, other = server.ask(do="open", count=2)
        path = urlsplit(other["url"]).path + "/v1/chat/completions"
        _watch(url, path, other["key"], 0.2)
        cpu, rss = server.cpu_seconds(), server.rss_mb()
        route = "/v1/completions" if case == "numbers_8M" else "/v1/chat/completions"
        command = [sys.executable, "-m", "tests.benchmarks.bench_greedy", "--attack", case]
        attack = None
        if case != "nothing":
            attack = subprocess.Popen([*command, "--url", greedy["url"] + route, "--clients", str(clients)])
        try:
            found = _watch(url, path, other["key"], seconds)
        finally:
            if attack is not None:
                attack.kill()
                attack.wait()
        found |= {"cpu_s": server.cpu_seconds() - cpu, "rss_added_mb": server.rss_mb() - rss}
    return [Row(case=case, model=f"context {context}", metric=metric, ours=value) for metric, value in found.items()]


def main() -> None:
    """Measure, print the table and write build/benchmarks/greedy.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each case")
    parser.add_argument("--clients", type=int, default=8, help="that send at once")
    parser.add_argument("--contexts", type=int, nargs="+", default=[2048, 131_072])
    parser.add_argument("--cases", nargs="+", default=list(BODIES), choices=list(BODIES))
    parser.add_argument("--attack", choices=list(BODIES), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attack:
        os.nice(5)  # what is measured is the server, not its clients' share of the cores
        asyncio.run(_attack(arguments.url, BODIES[arguments.attack](), arguments.clients))
        return
    rows: list[Row] = []
    for case in arguments.cases:
        for context in arguments.contexts:
            print(f"{case}, context {context} …", file=sys.stderr, flush=True)  # noqa: T201 - it takes minutes
            rows += _measure(case, context=context, clients=arguments.clients, seconds=arguments.seconds)
    report("greedy", rows, better="less is better", notes=["bar: health_p99_ms <= 100 in a quiet run"])


if __name__ == "__main__":
    main()
