"""HTTP written by hand, for test clients that break off a request anywhere; covers the gateway's four APIs."""

from __future__ import annotations

import asyncio
import json

import attrs


@attrs.frozen(kw_only=True)
class Told:
    """What a client has read to its end."""

    status: int
    id: str = ""
    text: str = ""
    error: str = ""


class Wire:
    """One connection, of one address."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, address: tuple[str, int]) -> Wire:
        return cls(*await asyncio.open_connection(*address))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def leave(self, *, rudely: bool) -> None:
        """Go away: with a reset, or politely."""
        if rudely:
            self.writer.transport.abort()
        else:
            self.writer.close()

    async def read(self) -> tuple[int, bytes]:
        """Read one whole reply; `EOFError` where the connection ends first."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), None)
        if length is not None:
            return status, await self.reader.readexactly(length)
        assert b"transfer-encoding: chunked" in lines
        body = bytearray()
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
        return status, bytes(body)


def request(path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Api:
    """One dialect: the body of a call, and what a reply says."""

    def __init__(self, route: str) -> None:
        self.route = route

    def body(self, history: list[dict], *, stream: bool) -> bytes:
        fields: dict = {"model": "default", "stream": stream}
        match self.route:
            case "responses":
                fields["input"] = history
            case "completions":
                turns = [f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in history]
                fields["prompt"] = "".join([*turns, "<|im_start|>assistant\n"])
            case _:
                fields |= {"messages": history, "max_tokens": 50}
        return json.dumps(fields).encode()

    def told(self, status: int, body: bytes, *, stream: bool) -> Told:
        """Read a whole reply; a stream must have come to the end that its API gives it."""
        if status != 200:
            return Told(status=status, error=body.decode())
        if not stream:
            return self._whole(json.loads(body))
        events = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
        if self.route in {"chat/completions", "completions"}:
            ended = events[-1] == "[DONE]"
            events = events[:-1] if ended else events
        values = [json.loads(event) for event in events]
        failed = [value for value in values if value.get("error")]
        if failed:
            return Told(status=500, error=json.dumps(failed[0]))
        match self.route:
            case "chat/completions":
                assert ended
                texts = [value["choices"][0]["delta"].get("content") or "" for value in values]
            case "completions":
                assert ended
                texts = [value["choices"][0]["text"] for value in values]
            case "responses":
                assert values[-1]["type"] == "response.completed"
                return self._whole(values[-1]["response"])
            case _:
                assert values[-1]["type"] == "message_stop"
                texts = [value["delta"]["text"] for value in values if value["type"] == "content_block_delta"]
        first = values[0].get("message", values[0])
        return Told(status=200, id=first["id"], text="".join(texts))

    def _whole(self, reply: dict) -> Told:
        match self.route:
            case "chat/completions":
                text = reply["choices"][0]["message"]["content"]
            case "completions":
                text = reply["choices"][0]["text"]
            case "responses":
                text = reply["output"][0]["content"][0]["text"]
            case _:
                text = reply["content"][0]["text"]
        return Told(status=200, id=reply["id"], text=text)


APIS = tuple(Api(route) for route in ("chat/completions", "responses", "messages", "completions"))
