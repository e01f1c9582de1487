"""Load on a fleet of model servers of which one is killed and restarted now and then, while weights are published."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
from tests.benchmarks.fleet.server import LOGPROB, token
from tests.benchmarks.gateway.process import Server
from tests.benchmarks.report import FOLDER, Row

from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.types import FinishReason, GenerateRequest, Sampling
from agentrl_sglang.engine import SGLangEngine

NUM_SERVERS = 4
_SLOTS = 32
_OUTPUT_TOKENS = 128
_PROMPT_TOKENS = 200
_PUBLISH_S = 4.0
_WINDOW_S = 2.0
"""Length of the windows whose throughput is compared: half a publication's period."""
_BACK = 0.95
"""Share of the undisturbed throughput from which on it counts as back."""
_UP_S = 60.0
"""Longest time that a server process may take to start."""


@attrs.define
class Seen:
    """Counts and times that the clients, and the thread that kills servers, have taken."""

    arrivals: list[tuple[float, int]] = attrs.field(factory=list)
    """Time and number of tokens of each chunk."""
    finished: int = 0
    lost: int = 0
    """Requests that failed, or came back incomplete."""
    wrong_tokens: int = 0
    """Tokens other than those that the stated version samples at their place."""
    killed: list[float] = attrs.field(factory=list)
    up_again: list[float] = attrs.field(factory=list)
    """Times from which on a restarted server accepts connections."""
    publications_s: list[float] = attrs.field(factory=list)

    def rate(self, begin: float, end: float) -> float:
        """Return tokens per second between two times."""
        return sum(count for at, count in self.arrivals if begin <= at < end) / (end - begin)

    def windows(self, begin: float, end: float) -> Iterator[tuple[float, float]]:
        """Yield begin and throughput of overlapping windows."""
        at = begin
        while at + _WINDOW_S <= end:
            yield at, self.rate(at, at + _WINDOW_S)
            at += 0.1


class Processes:
    """The server processes, each on a port of its own."""

    def __init__(self) -> None:
        with ExitStack() as held:
            sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(NUM_SERVERS)]
            self.ports = [item.getsockname()[1] for item in sockets]
        self._running = {port: self._start(port) for port in self.ports}

    @staticmethod
    def _start(port: int) -> Server:
        command = [sys.executable, "-m", "tests.benchmarks.fleet.server", "--port", str(port), "--slots", str(_SLOTS)]
        return Server(command, log=FOLDER / f"fleet-{port}.log", answers=False)

    async def up(self, port: int) -> None:
        """Wait until a server accepts connections."""
        async with asyncio.timeout(_UP_S):
            while True:
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    return
                await asyncio.sleep(0.02)

    async def restart(self, port: int, seen: Seen) -> None:
        """Kill a server, and start it again with the weights of the beginning."""
        seen.killed.append(time.monotonic())
        self._running[port].kill()
        self._running[port].close()
        self._running[port] = self._start(port)
        await self.up(port)
        seen.up_again.append(time.monotonic())

    def close(self) -> None:
        """End all of them."""
        for server in self._running.values():
            server.close()


def fleet(seconds: float, period_s: float) -> list[Row]:
    """Measure the same fleet undisturbed, then with a server that is killed and restarted every `period_s`."""
    with TemporaryDirectory(prefix="agentrl-fleet-") as folder:
        processes = Processes()
        try:
            undisturbed = asyncio.run(_play(processes, Path(folder), seconds / 3, None))
            disturbed = asyncio.run(_play(processes, Path(folder), seconds, period_s))
        finally:
            processes.close()
    return list(_rows(undisturbed, disturbed))


def _rows(undisturbed: Seen, disturbed: Seen) -> Iterator[Row]:
    begun, ended = undisturbed.arrivals[0][0] + _WINDOW_S, undisturbed.arrivals[-1][0] - _WINDOW_S
    usual = statistics.median(rate for _, rate in undisturbed.windows(begun, ended))
    last = disturbed.arrivals[-1][0]
    share = (NUM_SERVERS - 1) / NUM_SERVERS
    failover = [_time_to(disturbed, at, last, _BACK * share * usual) for at in disturbed.killed]
    back = [_time_to(disturbed, at, last, _BACK * usual) for at in disturbed.up_again]
    first = disturbed.arrivals[0][0] + _WINDOW_S
    for metric, ours, peer in (
        ("requests_lost", disturbed.lost, undisturbed.lost),
        ("wrong_tokens", disturbed.wrong_tokens, undisturbed.wrong_tokens),
        ("requests", disturbed.finished, undisturbed.finished),
        ("kills", len(disturbed.killed), 0),
        ("publications", len(disturbed.publications_s), len(undisturbed.publications_s)),
        ("publication_s_max", max(disturbed.publications_s), max(undisturbed.publications_s)),
        ("tokens_per_s", disturbed.rate(first, last - _WINDOW_S), usual),
        ("failover_s_max", max(failover), None),
        ("back_s_max", max(back), None),
        ("restart_s_max", max(up - down for down, up in zip(disturbed.killed, disturbed.up_again, strict=True)), None),
    ):
        yield Row(
            case="fleet", metric=metric, ours=ours, peer=peer, peer_name="undisturbed" if peer is not None else ""
        )


def _time_to(seen: Seen, begin: float, end: float, wanted: float) -> float:
    """Return how long after `begin` the throughput first reached `wanted`: the beginning of the first such window."""
    return next((at - begin for at, rate in seen.windows(begin, end) if rate >= wanted), end - begin)


async def _play(processes: Processes, folder: Path, seconds: float, period_s: float | None) -> Seen:
    seen = Seen()
    policy = _weights(folder, 0)
    for port in processes.ports:
        await processes.up(port)
    async with _engine([f"http://127.0.0.1:{port}" for port in processes.ports], policy) as engine:
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            numbers = itertools.count(1)
            for _ in range(NUM_SERVERS * _SLOTS):
                group.create_task(_client(engine, numbers, end, seen))
            group.create_task(_publish(engine, folder, end, seen))
            if period_s is not None:
                group.create_task(_kill(processes, period_s, end, seen))
    return seen


@asynccontextmanager
async def _engine(urls: Sequence[str], policy: Path) -> AsyncIterator[SGLangEngine]:
    engine = SGLangEngine(url=tuple(urls), model_dir=policy)
    await asyncio.to_thread(engine.start)
    try:
        yield engine
    finally:
        await asyncio.to_thread(engine.close)


def _weights(folder: Path, version: int) -> Path:
    """Write the weights of a version: its number."""
    directory = folder / f"version-{version}"
    directory.mkdir(exist_ok=True)
    (directory / "version").write_text(str(version))
    return directory


async def _client(engine: SGLangEngine, numbers: Iterator[int], end: float, seen: Seen) -> None:
    """Send one request after the other, and check each token."""
    while time.monotonic() < end:
        number = next(numbers)
        asked = GenerateRequest(
            request_id=f"r{number}",
            prompt_ids=(number % 2**20, *range(1, _PROMPT_TOKENS)),
            sampling=Sampling(max_tokens=_OUTPUT_TOKENS, seed=number),
            stream=True,
            group=f"g{number // 8}",
        )
        place, is_whole = _PROMPT_TOKENS, False
        try:
            async for chunk in engine.generate(asked):
                seen.arrivals.append((time.monotonic(), len(chunk.ids)))
                expected = [token(chunk.version, asked.prompt_ids[0], place + index) for index in range(len(chunk.ids))]
                seen.wrong_tokens += sum(map(int.__ne__, chunk.ids, expected))
                seen.wrong_tokens += sum(logprob != LOGPROB for logprob in chunk.logprobs)
                place += len(chunk.ids)
                is_whole = chunk.finish_reason is FinishReason.LENGTH
        finally:
            is_whole = is_whole and place == _PROMPT_TOKENS + _OUTPUT_TOKENS
            seen.finished += 1
            seen.lost += not is_whole


async def _publish(engine: SGLangEngine, folder: Path, end: float, seen: Seen) -> None:
    for version in itertools.count(1):
        await asyncio.sleep(_PUBLISH_S)
        if time.monotonic() > end:
            return
        begun = time.monotonic()
        await engine.load_weights(version, DirectoryWeights(_weights(folder, version)))
        seen.publications_s.append(time.monotonic() - begun)


async def _kill(processes: Processes, period_s: float, end: float, seen: Seen) -> None:
    for port in itertools.cycle(processes.ports):
        await asyncio.sleep(period_s / 2)
        # The time until the next kill belongs to the measurement.
        if time.monotonic() + period_s / 2 > end:
            return
        await processes.restart(port, seen)
        await asyncio.sleep(period_s / 2)
