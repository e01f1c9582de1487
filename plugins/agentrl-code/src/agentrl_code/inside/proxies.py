"""Proxies of an answer's objects, for the process that runs a test.

Each operation on a proxy is sent to the answer's process, evaluated there, and comes back as data. Two rules keep an
answer from cheating. Only plain data is compared: an object's own `__eq__` could return True for everything, so the
comparison is refused and the test fails. And an operator does not send its other operand to the answer, because that
may be the expected value (`f(x) - 0.5`), unless the test made the object from a class that it names
(`Vector(1, 2) * 3`).
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from agentrl_code.inside.values import Channel, ChannelError, Decoder, Encoder

Exact = TypeVar("Exact")
_VERDICTS = {name for kind in (str, set) for name in dir(kind) if name.startswith("is")} | {"startswith", "endswith"}
"""Methods of plain data that return True or False; they are always evaluated on this side."""
_FINDINGS = {"count", "find", "index", "rfind", "rindex"}
"""Methods of plain data that look for a value; evaluated on this side if the object is plain data.

Objects of the answer's own classes may have methods of these names with another meaning.
"""
_BINARY = "add sub mul matmul truediv floordiv mod pow lshift rshift and or xor"
_UNARY = ("neg", "pos", "abs", "invert")
_BROKEN = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, AttributeError)
"""Errors that decoding raises for a message that no honest program sends."""

ENDED_EARLY = "the program ended before the test did"
_UNKNOWN: Any = object()
"""Marks an object whose plain data is not known, or that has none."""


class RefusedError(BaseException):
    """The test has failed for good: only the answer's own code could decide something, or its process has ended.

    Not an `Exception`, so that `except Exception` in a test does not catch it.
    """


class Answer:
    """The connection to the answer's process: sends requests and decodes the replies.

    `refusal` keeps the reason of the first refused operation, even if the test catches the error.
    """

    def __init__(self, channel: Channel, dunders: frozenset[str]) -> None:
        self._channel = channel
        self.dunders = dunders
        """Attributes with leading double underscores that the test's own code names; all others do not exist.

        Libraries look such attributes up on any object, and would let the answer take part in a comparison:
        `__array_interface__`, for example.
        """
        self.refusal = ""
        self._proxies: dict[int, Proxy] = {}
        self._stubs: dict[int, type[BaseException]] = {}
        self._functions: list[Any] = []
        self._held: list[Callable[[], None]] | None = None
        self._holds = 0
        """Number of nested asserts that are being evaluated."""
        self.asked = 0
        """Number of requests so far; data that was read before the latest one may have changed since."""

    def refuse(self, why: str) -> NoReturn:
        """Fail the test, whatever it makes of the error; the first reason is kept."""
        self.refusal = self.refusal or why
        raise RefusedError(why)

    def hold(self) -> None:
        """Delay changes of arguments until `release`: an assert compares with its arguments as it passed them."""
        self._holds += 1
        if self._held is None:
            self._held = []

    def release(self) -> None:
        """Apply the delayed changes, if this ends the outermost assert."""
        self._holds -= 1
        if self._holds:
            return
        held, self._held = self._held or (), None
        for apply in held:
            apply()

    def ask(self, function: str, *args: Any, **options: Any) -> Any:
        """Evaluate `function(*args, **options)` in the answer's process; return the result or raise its exception."""
        # Reading plain data changes nothing in an honest answer, so the data that is already known stays valid.
        if function != "plain":
            self.asked += 1
        encoder = Encoder(self._encode_other)
        encoded = {"f": function, "a": [], "k": {}}
        encoded["a"] = [encoder.encode(item) for item in args]
        encoded["k"] = {name: encoder.encode(item) for name, item in options.items()}
        sent = encoder.numbered
        try:
            self._channel.send(encoded)
            while "c" in (reply := self._channel.receive()):
                self._channel.send(self._called_back(reply))
            if "x" in reply:
                error = self._error(reply["x"], function)
                self._change(sent, reply.get("m", []))
            else:
                return self._result(sent, reply)
        except ChannelError as broken:
            self.refuse(f"{ENDED_EARLY} ({broken})")
        except _BROKEN as broken:
            self.refuse(f"the process of the program sent an invalid value ({type(broken).__name__})")
        raise error

    def _result(self, sent: list[Any], reply: Mapping[str, Any]) -> Any:
        changes = reply.get("m", [])
        if self._held is None:
            self._change(sent, changes)
            return Decoder(self._decode_other, sent.__getitem__).decode(reply["v"])
        # Within an assert the test's own arguments stay as they were. The result is decoded against copies of the
        # arguments in their state after the call.
        after = dict(enumerate(sent)) | {n: Decoder.empty(type(sent[n]), contents) for n, contents in changes}
        for number, contents in changes:
            Decoder(self._decode_other, after.__getitem__).fill(after[number], contents)
        self._change(sent, changes)
        return Decoder(self._decode_other, after.__getitem__).decode(reply["v"])

    def _change(self, sent: list[Any], changes: list[Any]) -> None:
        def apply() -> None:
            for number, contents in changes:
                Decoder(self._decode_other, sent.__getitem__).fill(sent[number], contents)

        if self._held is None:
            apply()
        elif changes:
            self._held.append(apply)

    def _called_back(self, message: Mapping[str, Any]) -> dict[str, Any]:
        function = self._functions[message["c"]]
        decoder = Decoder(self._decode_other)
        args = [decoder.decode(item) for item in message["a"]]
        try:
            return {"v": Encoder(self._encode_other).encode(function(*args))}
        except Exception as error:  # noqa: BLE001 - an error in the test's function; the answer may handle it
            return {"x": [type(error).__name__, str(error)]}

    def _encode_other(self, value: Any) -> Any:
        if isinstance(value, Proxy):
            return ["object", _handle(value), ""]
        for handle, stub in self._stubs.items():
            if stub is value:
                return ["object", handle, ""]
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if isinstance(module, str) and isinstance(name, str) and _is_pythons(module, name, value):
            return ["name", module, name]
        if callable(value) and not isinstance(value, type):
            self._functions.append(value)
            return ["function", len(self._functions) - 1]
        return self.refuse(
            f"an object of type {type(value).__name__} cannot be passed to the answer; fix: pass plain data, or a "
            "function"
        )

    def _decode_other(self, tag: str, rest: list[Any]) -> Any:
        if tag == "object":
            handle, kind = rest
            if handle not in self._proxies:
                self._proxies[handle] = Proxy(self, int(handle), str(kind))
            return self._proxies[handle]
        if tag == "exception":
            return self._kind(rest[0])
        raise ValueError(f"tag {tag!r}")

    def _kind(self, kinds: list[Any]) -> type[BaseException]:
        """Return the class of an exception: Python's own, or a stand-in class that extends it."""
        made: type[BaseException] = Exception
        for item in reversed(kinds):
            if isinstance(item, str):
                found = _pythons(item)
                made = found if issubclass(found, BaseException) else made
            else:
                handle, name = item
                if handle not in self._stubs:
                    self._stubs[handle] = type(str(name) or "Exception", (made,), {})
                made = self._stubs[handle]
        return made

    def _error(self, sent: list[Any], function: str) -> BaseException:
        kinds, args, text = sent
        kind = self._kind(kinds)
        # Such an exception would silently end a loop or generator of the test, and with it the asserts in there.
        if issubclass(kind, StopIteration | StopAsyncIteration | GeneratorExit) and function != "next":
            return RuntimeError(f"{kind.__name__} in the program")
        decoder = Decoder(self._decode_other)
        values = tuple(decoder.decode(item) for item in args) or ((text,) if text else ())
        try:
            return kind(*values)
        except Exception:  # noqa: BLE001 - constructors may take other arguments than the exception keeps in `args`
            return kind.__new__(kind, *values)


def _pythons(name: str) -> Any:
    """Return Python's object for a name such as `ValueError` or `json:JSONDecodeError`.

    Only modules that the test has imported are searched; `Exception` stands for a class of any other module.
    """
    module, _, name = name.rpartition(":")
    if module and (module.partition(".")[0] not in sys.stdlib_module_names or module not in sys.modules):
        return Exception
    return getattr(sys.modules[module] if module else builtins, name)


def _is_pythons(module: str, name: str, value: Any) -> bool:
    """Return whether a value is the object that a standard module has under that name, such as `int` or `math.sqrt`."""
    if module.partition(".")[0] not in sys.stdlib_module_names or module not in sys.modules or "." in name:
        return False
    return vars(sys.modules[module]).get(name) is value


class Proxy:
    """An object in the answer's process, as the test uses it.

    `_named` is the name under which the test knows it, `_own` whether the test made it by calling a named class.
    `_plain` caches its plain data with the number of requests at that time.
    """

    # All of it is read through `object.__getattribute__`, because attribute access on a proxy asks the answer.
    __slots__ = ("_answer", "_handle", "_kind", "_named", "_own", "_plain")

    def __init__(self, answer: Answer, handle: int, kind: str) -> None:
        values = (answer, handle, kind, "", False, (_UNKNOWN, 0))
        for name, value in zip(Proxy.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **options: Any) -> Any:  # noqa: D102
        result = _answer(self).ask("call", self, *args, **options)
        # By convention the name of a class begins with a capital letter; calling one makes an object of the test's.
        if isinstance(result, Proxy) and _get(self, "_named")[:1].isupper():
            object.__setattr__(result, "_own", True)
        return result

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _answer(self).dunders:
            raise AttributeError(name)
        if name in _VERDICTS and not _get(self, "_own"):
            return getattr(plain(self, f"its method {name}"), name)
        if name in _FINDINGS and not _get(self, "_own") and (data := _data(self)) is not _UNKNOWN:
            return getattr(data, name)
        return _answer(self).ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _answer(self).ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        _answer(self).ask("delattr", self, name)

    def __getitem__(self, key: Any) -> Any:
        return _answer(self).ask("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _answer(self).ask("setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        _answer(self).ask("delitem", self, key)

    def __iter__(self) -> Iterator[Any]:
        return iter(found) if not isinstance(found := _answer(self).ask("iter", self), Proxy) else found

    def __next__(self) -> Any:
        return _answer(self).ask("next", self)

    def __enter__(self) -> Any:
        return _answer(self).ask("enter", self)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _answer(self).ask("exit", self, None, None, None)

    def __bool__(self) -> bool:
        return self._exact("bool", bool)

    def __len__(self) -> int:
        return self._exact("len", int)

    def __int__(self) -> int:
        return self._exact("int", int)

    def __index__(self) -> int:
        return self._exact("index", int)

    def __float__(self) -> float:
        return self._exact("float", float)

    def __complex__(self) -> complex:
        return self._exact("complex", complex)

    def __str__(self) -> str:
        return self._exact("str", str)

    def __repr__(self) -> str:
        return self._exact("repr", str)

    def __format__(self, form: str) -> str:
        return self._exact("format", str, form)

    def __hash__(self) -> int:
        return self._exact("hash", int)

    def __round__(self, *places: int) -> Any:
        return _answer(self).ask("round", self, *places)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Proxy) and self._exact("isinstance", bool, first=value)

    def __subclasscheck__(self, value: object) -> bool:
        return isinstance(value, Proxy) and self._exact("issubclass", bool, first=value)

    def __eq__(self, other: object) -> bool:
        # None is plain data and arrives as such, so a proxy never stands for it.
        if other is None:
            return False
        return bool(plain(self, "==") == plain(other, "=="))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> Any:
        return plain(self, "<") < plain(other, "<")

    def __le__(self, other: Any) -> Any:
        return plain(self, "<=") <= plain(other, "<=")

    def __gt__(self, other: Any) -> Any:
        return plain(self, ">") > plain(other, ">")

    def __ge__(self, other: Any) -> Any:
        return plain(self, ">=") >= plain(other, ">=")

    def __contains__(self, item: object) -> bool:
        if (data := _data(self)) is not _UNKNOWN:
            return plain(item, "in") in data
        return any(item is found or item == found for found in self)

    def _exact(self, function: str, kind: type[Exact], *args: Any, first: Any = None) -> Exact:
        """Return the result of a function that must return exactly `kind`. Raises TypeError for any other class.

        A subclass could override comparisons.
        """
        args = (self, *args) if first is None else (first, self)
        if type(value := _answer(self).ask(function, *args)) is not kind:
            raise TypeError(f"{function} of the answer's {_get(self, '_kind')} did not return {kind.__name__}")
        return value


def plain(value: Any, what: str) -> Any:
    """Return the plain data in one of the answer's objects, for example of a class that extends list; else refuse.

    `what` names the operation of the test, for the message. Other values are returned as they are.
    """
    if not isinstance(value, Proxy):
        return value
    if (data := _data(value)) is _UNKNOWN:
        _answer(value).refuse(
            f"the test uses {what} on an object of the answer's class {_get(value, '_kind')!r:.60}, whose own code "
            "would decide the result; fix: compare plain data, such as an attribute, list(x) or str(x)"
        )
    return data


def _data(proxy: Proxy) -> Any:
    """Return the data in an object whose class extends a class of plain data; else _UNKNOWN.

    Immutable data is read once, so that an answer cannot send another value for each comparison. Mutable data is read
    again after any other request, which may have changed it.
    """
    answer = _answer(proxy)
    known, asked = _get(proxy, "_plain")
    if known is not _UNKNOWN and (asked == answer.asked or not isinstance(known, list | set | dict)):
        return known
    try:
        data = answer.ask("plain", proxy)
    except Exception:  # noqa: BLE001 - the object has no plain data
        return _UNKNOWN
    if isinstance(data, Proxy):
        return _UNKNOWN
    object.__setattr__(proxy, "_plain", (data, answer.asked))
    return data


def named(value: Any, name: str) -> Any:
    """Record the name under which the test knows an object, and return the object."""
    if isinstance(value, Proxy):
        object.__setattr__(value, "_named", name)
    return value


def _get(proxy: Proxy, name: str) -> Any:
    return object.__getattribute__(proxy, name)


def _answer(proxy: Proxy) -> Answer:
    return object.__getattribute__(proxy, "_answer")  # type: ignore[no-any-return]


def _handle(proxy: Proxy) -> int:
    return object.__getattribute__(proxy, "_handle")  # type: ignore[no-any-return]


def _computed(function: str, proxy: Proxy, other: Any, *, swapped: bool) -> Any:
    """Apply a binary operator to a proxy and another operand.

    The answer's process computes it if the other operand is a proxy too, or if the test made the object from a class
    that it names. Otherwise it is computed here on plain data, so that the answer does not see the operand.
    """
    import operator

    if isinstance(other, Proxy) or _get(proxy, "_own"):
        result = _answer(proxy).ask(function, *((other, proxy) if swapped else (proxy, other)))
        if isinstance(result, Proxy):
            object.__setattr__(result, "_own", _get(proxy, "_own"))
        return result
    data = plain(proxy, function)
    compute = getattr(operator, function)
    return compute(other, data) if swapped else compute(data, other)


def _operator(function: str, *, swapped: bool) -> Callable[[Proxy, Any], Any]:
    return lambda self, other: _computed(function, self, other, swapped=swapped)


def _unary(function: str) -> Callable[[Proxy], Any]:
    return lambda self: _answer(self).ask(function, self)


for _name in _BINARY.split():
    _function = f"{_name}_" if _name in ("and", "or") else _name
    setattr(Proxy, f"__{_name}__", _operator(_function, swapped=False))
    setattr(Proxy, f"__r{_name}__", _operator(_function, swapped=True))
for _name in _UNARY:
    setattr(Proxy, f"__{_name}__", _unary(_name))
