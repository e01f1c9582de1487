"""Raw HTTP/1.1 client with keep-alive and prepared bodies, so that its own cost hardly counts in a measurement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Self

import attrs


@attrs.frozen(kw_only=True)
class Target:
    """Where a conversation's calls go."""

    host: str
    port: int
    path: str
    headers: tuple[tuple[str, str], ...] = ()

    def request(self, body: bytes, *, method: str = "POST") -> bytes:
        """Return one request as it goes over the wire."""
        lines = [
            f"{method} {self.path} HTTP/1.1",
            f"host: {self.host}:{self.port}",
            "content-type: application/json",
            "accept: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in self.headers),
            "",
            "",
        ]
        return "\r\n".join(lines).encode() + body


@attrs.frozen(kw_only=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One keep-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        return cls(*await asyncio.open_connection(host, port, limit=2**24))

    async def send(self, request: bytes) -> Answer:
        """Send a request and read its whole answer."""
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
        if "content-length" in headers:
            body = await self._reader.readexactly(int(headers["content-length"]))
        elif "chunked" in headers.get("transfer-encoding", ""):
            body = await self._chunked()
        else:
            body = await self._reader.read()
        return Answer(status=int(head[0].split()[1]), headers=headers, body=body)

    async def _chunked(self) -> bytes:
        pieces: list[bytes] = []
        while size := int((await self._reader.readline()).split(b";")[0], 16):
            pieces.append(await self._reader.readexactly(size))
            await self._reader.readexactly(2)
        await self._reader.readline()
        return b"".join(pieces)

    def close(self) -> None:
        self._writer.close()


@attrs.frozen(kw_only=True)
class Sent:
    """The outcome of one load: answers in the order of the requests, and how long each took in seconds."""

    answers: list[Answer]
    latencies: list[float]


async def closed_loop(requests: Iterable[bytes], *, host: str, port: int, clients: int) -> Sent:
    """Send all requests over `clients` connections, the next on each when its last was answered."""
    todo = list(requests)
    answers: list[Answer | None] = [None] * len(todo)
    latencies = [0.0] * len(todo)
    numbers = iter(range(len(todo)))

    async def client() -> None:
        connection = await Connection.open(host, port)
        try:
            for number in numbers:
                begun = time.perf_counter()
                answers[number] = await connection.send(todo[number])
                latencies[number] = time.perf_counter() - begun
        finally:
            connection.close()

    await asyncio.gather(*(client() for _ in range(min(clients, len(todo)))))
    return _checked(answers, latencies)


async def open_loop(requests: Iterable[bytes], *, host: str, port: int, rate: float) -> Sent:
    """Send `rate` requests per second, whether earlier ones were answered or not; latencies count from the sending."""
    todo = list(requests)
    answers: list[Answer | None] = [None] * len(todo)
    latencies = [0.0] * len(todo)
    free: list[Connection] = [await Connection.open(host, port) for _ in range(16)]
    loop = asyncio.get_running_loop()
    start = loop.time() + 0.05

    async def one(number: int) -> None:
        due = start + number / rate
        await asyncio.sleep(max(due - loop.time(), 0))
        sent = loop.time()  # this process may itself be late; the server is not to blame for that
        connection = free.pop() if free else await Connection.open(host, port)
        answers[number] = await connection.send(todo[number])
        latencies[number] = loop.time() - sent
        free.append(connection)

    await asyncio.gather(*(one(number) for number in range(len(todo))))
    for connection in free:
        connection.close()
    return _checked(answers, latencies)


def _checked(answers: list[Answer | None], latencies: list[float]) -> Sent:
    found = [answer for answer in answers if answer is not None]
    wrong = next((answer for answer in found if answer.status != 200), None)
    if wrong is not None:
        raise RuntimeError(f"the server answered {wrong.status}: {wrong.body[:500]!r}")
    return Sent(answers=found, latencies=latencies)
