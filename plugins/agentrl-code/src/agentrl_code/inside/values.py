"""Encoding of values between a test and the answer that it calls: JSON, because unlike a pickle it cannot hold code.

A value is None, bool, int, float, str, or a list `[TAG, …]`. A mutable container carries a number. If it occurs again,
or inside itself, it is sent as `["#", NUMBER]`, and the other side has one shared object, too.
"""

from __future__ import annotations

import json
import socket
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_BYTES = 8 << 20
"""Longest message."""
_SMALL = 1 << 63
"""Bound of integers that are sent as JSON numbers; larger ones are sent as hexadecimal text."""

_SIMPLE: Mapping[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: ("bytes", lambda value: value.decode("latin-1"), lambda text: text.encode("latin-1")),
    complex: ("complex", lambda value: [value.real, value.imag], lambda parts: complex(*map(float, parts))),
    slice: ("slice", lambda value: [value.start, value.stop, value.step], lambda parts: slice(*parts)),
    range: ("range", lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    Fraction: ("fraction", str, Fraction),
    Decimal: ("decimal", str, Decimal),
    date: ("date", date.isoformat, date.fromisoformat),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    timedelta: ("timedelta", lambda value: [value.days, value.seconds, value.microseconds], lambda p: timedelta(*p)),
    type(...): ("...", lambda _: None, lambda _: ...),
}
_SIMPLE_BY_TAG = {tag: unpack for tag, _, unpack in _SIMPLE.values()}
_FROZEN: dict[type, str] = {tuple: "tuple", frozenset: "frozenset"}
_MUTABLE: dict[type, str] = {
    list: "list", set: "set", dict: "dict", bytearray: "bytearray", deque: "deque", Counter: "counter",
    OrderedDict: "ordered", defaultdict: "defaultdict",
}  # fmt: skip
_BY_TAG = {tag: kind for kind, tag in (_FROZEN | _MUTABLE).items()}
_FACTORIES = {kind.__name__: kind for kind in (int, float, str, list, dict, set, tuple)}


class Encoder:
    """Encodes the values of one message; `other` encodes objects that are not plain data.

    `known` maps the id of a container that came from the other side to its number there. Such a container is sent as
    that number, without its contents.
    """

    def __init__(self, other: Callable[[Any], Any], known: Mapping[int, int] | None = None) -> None:
        self._other, self._known = other, known or {}
        self._numbers: dict[int, int] = {}
        self.numbered: list[Any] = []
        """Mutable containers of the message; a container's index is its number."""

    def encode(self, value: Any) -> Any:  # noqa: PLR0911 - one for each kind
        """Return the JSON value for `value`; a container in `known` becomes `["@", NUMBER]`."""
        kind = type(value)
        if value is None or kind in (bool, str, float):
            return value
        if kind is int:
            return value if -_SMALL <= value < _SMALL else ["int", hex(value)]
        if id(value) in self._known:
            return ["@", self._known[id(value)]]
        if kind in _SIMPLE:
            tag, pack, _ = _SIMPLE[kind]
            return [tag, self._parts(pack(value))]
        if kind in _FROZEN:
            return [_FROZEN[kind], [self.encode(item) for item in value]]
        if kind not in _MUTABLE or (kind is defaultdict and not self._has_plain_factory(value)):
            return self._other(value)
        if id(value) in self._numbers:
            return ["#", self._numbers[id(value)]]
        number = self._numbers[id(value)] = len(self.numbered)
        self.numbered.append(value)
        return [_MUTABLE[kind], number, self.contents(value)]

    def _parts(self, packed: Any) -> Any:
        return [self.encode(item) for item in packed] if isinstance(packed, list) else packed

    def contents(self, value: Any) -> Any:
        """Return the JSON value for the contents of a mutable container."""
        if isinstance(value, bytearray):
            return value.decode("latin-1")
        if isinstance(value, dict):
            pairs = [[self.encode(key), self.encode(item)] for key, item in value.items()]
            factory = value.default_factory if isinstance(value, defaultdict) else None
            return [factory.__name__ if isinstance(factory, type) else None, pairs]
        items = [self.encode(item) for item in value]
        return [value.maxlen, items] if isinstance(value, deque) else items

    @staticmethod
    def _has_plain_factory(value: defaultdict[Any, Any]) -> bool:
        return value.default_factory is None or value.default_factory in _FACTORIES.values()


class Decoder:
    """Decodes the values of one message; `other` decodes tags that do not stand for plain data.

    `known` returns the container for a number of an earlier message, which this side has sent. Raises ValueError,
    TypeError, LookupError, ArithmeticError or RecursionError for a value that no Encoder has made.
    """

    def __init__(self, other: Callable[[str, list[Any]], Any], known: Callable[[int], Any] | None = None) -> None:
        self._other, self._known = other, known
        self.numbered: dict[int, Any] = {}

    def decode(self, item: Any) -> Any:  # noqa: PLR0911 - one for each kind
        """Return the value for the JSON value `item`."""
        if not isinstance(item, list):
            if isinstance(item, dict):
                raise TypeError("expected a value, found an object")
            return item
        tag, *rest = item
        if tag == "int":
            return int(rest[0], 16)
        if tag == "#":
            return self.numbered[rest[0]]
        if tag == "@" and self._known is not None:
            return self._known(rest[0])
        if tag in _SIMPLE_BY_TAG:
            packed = rest[0]
            return _SIMPLE_BY_TAG[tag]([self.decode(part) for part in packed] if isinstance(packed, list) else packed)
        kind = _BY_TAG.get(tag)
        if kind is None:
            return self._other(tag, rest)
        if kind in _FROZEN:
            return kind(self.decode(part) for part in rest[0])
        # The container is registered before it is filled, because it may contain itself.
        number, contents = rest
        made = self.numbered[number] = self.empty(kind, contents)
        self.fill(made, contents)
        return made

    @staticmethod
    def empty(kind: type, contents: Any) -> Any:
        """Return an empty container that can take `contents`: with their `maxlen` or default factory."""
        if kind is deque:
            return deque(maxlen=contents[0])
        if kind is defaultdict:
            return defaultdict(None if contents[0] is None else _FACTORIES[contents[0]])
        return kind()

    def fill(self, made: Any, contents: Any) -> None:
        """Replace the contents of a container, in place."""
        if isinstance(made, bytearray):
            made[:] = contents.encode("latin-1")
        elif isinstance(made, dict):
            pairs = [(self.decode(key), self.decode(value)) for key, value in contents[1]]
            made.clear()
            # Not `made.update`, which adds up counts in a Counter.
            dict.update(made, pairs)
        else:
            items = [self.decode(part) for part in (contents[1] if isinstance(made, deque) else contents)]
            made.clear()
            (made.update if isinstance(made, set) else made.extend)(items)


class ChannelError(Exception):
    """The connection is closed, or the other side sent something that is not a message."""


class Channel:
    """Messages over a socket, each a length of 4 bytes and a JSON object. All methods block."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises OverflowError if it is too long, ChannelError if the connection is closed."""
        data = json.dumps(message).encode("ascii")
        if len(data) > MAX_BYTES:
            raise OverflowError("the value is too large to be sent")
        try:
            self._socket.sendall(struct.pack("!I", len(data)) + data)
        except OSError as error:
            raise ChannelError(str(error)) from error

    def receive(self) -> dict[str, Any]:
        """Wait for a message. Raises ChannelError if the connection closes first, or if it is not a message."""
        (length,) = struct.unpack("!I", self._exactly(4))
        if length > MAX_BYTES:
            raise ChannelError(f"a message of {length} bytes, at most {MAX_BYTES} are allowed")
        try:
            message = json.loads(self._exactly(length))
        except (ValueError, RecursionError) as error:
            raise ChannelError(f"not a message: {error}") from error
        if not isinstance(message, dict):
            raise ChannelError("not a message: expected a JSON object")
        return message

    def _exactly(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            try:
                part = self._socket.recv(min(length - len(data), 1 << 16))
            except OSError as error:
                raise ChannelError(str(error)) from error
            if not part:
                raise ChannelError("connection closed")
            data += part
        return bytes(data)
