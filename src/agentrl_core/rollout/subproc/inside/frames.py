"""Frames of the control socket between the run and a worker: two lengths of 4 bytes, a JSON header, a body."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

MAX_ANSWER_BYTES = 16 * 2**20
"""Longest message of a worker, and so the largest return value. A dict of per-turn rewards takes kilobytes."""

_LENGTHS = struct.Struct(">II")
"""Prefix of a frame: the lengths of header and body."""


def frame(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Encode one message of the run."""
    text = json.dumps(header).encode()
    return _LENGTHS.pack(len(text), len(body)) + text + body


def answer_frame(header: Mapping[str, Any]) -> bytes:
    """Encode one message of the worker as strict JSON. Characters that UTF-8 cannot encode are replaced."""
    text = json.dumps(header, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    return _LENGTHS.pack(len(text), 0) + text


def receive(sock: socket.socket) -> tuple[dict[str, Any], bytes] | None:
    """Read one message; return None at the end of the connection."""
    lengths = _read(sock, _LENGTHS.size)
    if lengths is None:
        return None
    sizes = _LENGTHS.unpack(lengths)
    text, body = (_read(sock, size) for size in sizes)
    return None if text is None or body is None else (json.loads(text.decode()), body)


def _read(sock: socket.socket, size: int) -> bytes | None:
    pieces = []
    while size:
        piece = sock.recv(min(size, 2**20))
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
