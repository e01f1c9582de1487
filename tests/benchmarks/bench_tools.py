"""Tool calls of many episodes against one MCP server: our pooled client, and the SDK's client opened per episode.

64 episodes at the same time make 20 calls each, one after the other. `calls_per_cpu_s` divides by the CPU time of this
process alone: the server over HTTP or stdio is another process, whose CPU time per call is a row of its own. In
process, the server's work is included. The peer `fresh_client` opens a client over HTTP for each episode, lists the
tools and closes it; ours opens a session and lists the tools in each episode, too. Each case is measured `--repeats`
times, alternating, after a first round that does not count; the rows are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import attrs
import psutil
from tests.benchmarks.report import Row, report

from agentrl_core.api.tools import ToolEpisode
from agentrl_mcp.tools import MCPTools

SERVER = Path(__file__).with_name("adder_server.py")
START_S = 60.0
CALL_S = 60.0

Call = Callable[[int, int], Awaitable[int]]
"""Adds two numbers by a tool call."""
Open = Callable[[int], contextlib.AbstractAsyncContextManager[Call]]
"""Opens the tools of an episode."""


@attrs.frozen
class Round:
    """One measurement of a case."""

    calls_per_s: float
    p50_ms: float
    p99_ms: float
    calls_per_cpu_s: float
    server_cpu_ms: float | None
    """CPU time of the server per call; None in process."""


def main() -> None:
    """Measure, print the table and write build/benchmarks/tools.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    found = asyncio.run(measured(options.episodes, options.calls, options.repeats))
    peer = found.pop("fresh_client")
    rows = [
        Row(case=case, metric=metric, ours=value, peer=getattr(peer, metric), peer_name="fresh_client")
        for case, result in found.items()
        for metric, value in attrs.asdict(result).items()
        if value is not None
    ]
    notes = ["calls_per_cpu_s: CPU time of the client's process; in_process includes the server's work"]
    report("tools", rows, better="more calls and fewer ms are better", notes=notes)


async def measured(episodes: int, calls: int, repeats: int) -> dict[str, Round]:
    """Return the median of each case."""
    rounds: dict[str, list[Round]] = {}
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(http_server())
        url = f"http://127.0.0.1:{server[1]}/mcp"
        cases: dict[str, tuple[Open, psutil.Process | None]] = {"fresh_client": (fresh(url), server[0])}
        for case, tools in (
            ("http", MCPTools(url=url, isolation="session", start_timeout_s=START_S)),
            ("stdio", MCPTools(command=["python", str(SERVER), "stdio"], isolation="session", start_timeout_s=START_S)),
            ("in_process", MCPTools(server=f"{SERVER}:mcp", isolation="session")),
        ):
            await tools.start()
            stack.push_async_callback(tools.close)
            process = server[0] if case == "http" else stdio_process() if case == "stdio" else None
            cases[case] = (ours(tools), process)
        for _ in range(repeats + 1):
            for case, (opened, process) in cases.items():
                rounds.setdefault(case, []).append(await one_round(opened, episodes, calls, process))
    return {case: median(found[1:]) for case, found in rounds.items()}


def median(rounds: list[Round]) -> Round:
    """Return the median of each metric."""
    columns = [
        [value for value in column if value is not None] for column in zip(*map(attrs.astuple, rounds), strict=True)
    ]
    return Round(*(statistics.median(column) if column else None for column in columns))


async def one_round(opened: Open, episodes: int, calls: int, server: psutil.Process | None) -> Round:
    """Run all episodes at the same time."""
    times: list[float] = []

    async def episode(number: int) -> None:
        async with opened(number) as call:
            for step in range(calls):
                begun = time.perf_counter()
                assert await call(number, step) == number + step
                times.append((time.perf_counter() - begun) * 1000)

    before = spent(server)
    begun, cpu_begun = time.perf_counter(), time.process_time()
    await asyncio.gather(*(episode(number) for number in range(episodes)))
    wall_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_begun
    cuts = statistics.quantiles(times, n=100)
    return Round(
        calls_per_s=len(times) / wall_s,
        p50_ms=cuts[49],
        p99_ms=cuts[98],
        calls_per_cpu_s=len(times) / cpu_s,
        server_cpu_ms=None if server is None else (spent(server) - before) / len(times) * 1000,
    )


def spent(server: psutil.Process | None) -> float:
    """Return the CPU seconds of a server so far."""
    return 0.0 if server is None else sum(server.cpu_times()[:2])


def ours(tools: MCPTools) -> Open:
    """Sessions of our tool server."""

    @contextlib.asynccontextmanager
    async def opened(number: int) -> AsyncIterator[Call]:
        session = await tools.open(ToolEpisode(record_id=f"record-{number}", task_id="t", data={}))
        await session.list_tools()

        async def call(a: int, b: int) -> int:
            return int((await session.call("add", {"a": a, "b": b}, timeout_s=CALL_S)).text)

        try:
            yield call
        finally:
            await session.close()

    return opened


def fresh(url: str) -> Open:
    """A client of the SDK for each episode."""
    from mcp import Client

    @contextlib.asynccontextmanager
    async def opened(number: int) -> AsyncIterator[Call]:
        async with Client(url) as client:
            await client.list_tools()

            async def call(a: int, b: int) -> int:
                return int((await client.call_tool("add", {"a": a, "b": b})).content[0].text)

            yield call

    return opened


@contextlib.contextmanager
def http_server():
    """Start the server over HTTP; yields its process and port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, str(SERVER), "http", str(port)], **quiet) as process:
        try:
            yield psutil.Process(process.pid), port
        finally:
            process.kill()


def stdio_process() -> psutil.Process:
    """Return the server that our client has started, which is below its guard."""
    below = psutil.Process().children(recursive=True)
    (found,) = [item for item in below if item.cmdline()[1:] == [str(SERVER), "stdio"]]
    return found


if __name__ == "__main__":
    main()
