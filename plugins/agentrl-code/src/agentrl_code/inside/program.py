"""Execution of an answer's program, in a sandbox without the test.

The program runs as a script, or as a module whose functions a test calls over a socket. The expected values stay in
the other process. What this process sends may be forged by the program, so the test's side (`proxies.py`) takes it as
data and trusts none of it.
"""

from __future__ import annotations

import atexit
import builtins
import operator
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any

from agentrl_code.inside.values import Channel, ChannelError, Decoder, Encoder

_PLAIN: Mapping[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: lambda value: bytes(bytearray.__add__(bytearray(), value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    list: lambda value: list(list.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
}
"""Builtin class -> function that reads the data of an object, also if its class overrides the builtin's methods."""


def run_script(program: str) -> int:
    """Run the program as `python answer.py` would; return its exit code."""
    return _ended(lambda: _execute(program, "__main__"))


def serve(program: str, descriptor: int) -> int:
    """Run the program as a module, then evaluate a test's requests until the connection closes; return an exit code."""
    return _ended(lambda: _Server(Channel(descriptor)).serve(program))


def _execute(program: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module
    sys.argv = ["answer.py"]
    exec(compile(program, "answer.py", "exec"), vars(module))  # noqa: S102 - in the sandbox, which is for this
    return module


def _ended(run: Callable[[], object]) -> int:
    """Run a function, then join threads, call exit functions and flush as Python does at its end; return the exit code.

    The process itself ends with `os._exit`, which does none of these.
    """
    code = 0
    try:
        run()
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException:  # noqa: BLE001 - a program may raise anything
        traceback.print_exc()
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as the interpreter does
        atexit._run_exitfuncs()  # noqa: SLF001
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - closed or replaced by the program
        code = code or 120  # Python's own exit code if flushing fails at its end
    return code


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


class _Callback:
    """A function of the test, in the process of the program: calling it sends the arguments to the test."""

    def __init__(self, server: _Server, number: int) -> None:
        self._server, self._number = server, number

    def __call__(self, *args: Any) -> Any:
        return self._server.call_back(self._number, args)


class _Server:
    """Evaluates the requests of a test: `{"f": FUNCTION, "a": [ARGUMENT, …], "k": {NAME: ARGUMENT, …}}`.

    A reply is `{"v": VALUE}` or `{"x": EXCEPTION}`, with `"m": [[NUMBER, CONTENTS], …]` for arguments that the call
    has changed. In between, `{"c": NUMBER, "a": [ARGUMENT, …]}` asks the test to call one of its own functions.
    Objects that are not plain data stay here; the test gets their handles.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._objects: list[Any] = []
        self._handles: dict[int, int] = {}
        self._functions: Mapping[str, Callable[..., Any]] = {
            "call": lambda function, *args, **options: function(*args, **options),
            "enter": lambda manager: type(manager).__enter__(manager),
            "exit": lambda manager, *args: type(manager).__exit__(manager, *args),
            "plain": _plain,
        }

    def serve(self, program: str) -> None:
        try:
            self._functions = {**self._functions, "module": _constant(_execute(program, "answer"))}
        except BaseException as error:  # noqa: BLE001 - the test gets the error
            # A program that cannot be loaded answers the test's first request with its error.
            self._channel.receive()
            self._channel.send({"x": self._error(error)})
            return
        while True:
            try:
                request = self._channel.receive()
            except ChannelError:
                return
            self._send(self._answer(request))

    def _send(self, reply: Mapping[str, Any]) -> None:
        try:
            self._channel.send(reply)
        except OverflowError as error:
            self._channel.send({"x": self._error(error)})

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        decoder = Decoder(self._received)
        try:
            args = [decoder.decode(item) for item in request["a"]]
            options = {name: decoder.decode(item) for name, item in request["k"].items()}
            given = decoder.numbered
            # The test shares no memory with this process, so changes to its arguments must be found and sent back.
            before = {number: self._encoder(given).contents(value) for number, value in given.items()}
            function = self._function(request["f"])
            try:
                reply = {"v": self._encoder(given).encode(function(*args, **options))}
            except BaseException as error:  # noqa: BLE001 - the test gets the error
                reply = {"x": self._error(error)}
            after = {number: self._encoder(given).contents(value) for number, value in given.items()}
        except BaseException as error:  # noqa: BLE001 - values that cannot be sent
            return {"x": self._error(error)}
        return reply | {"m": [[number, after[number]] for number in after if after[number] != before[number]]}

    def _function(self, name: str) -> Callable[..., Any]:
        own: Callable[..., Any] | None = self._functions.get(name) or getattr(operator, name, None)
        return own or getattr(builtins, name)

    def _encoder(self, given: Mapping[int, Any]) -> Encoder:
        return Encoder(self._opaque, {id(value): number for number, value in given.items()})

    def _opaque(self, value: Any) -> Any:
        """Return the handle by which a test refers to an object of the program's own."""
        if isinstance(value, type) and issubclass(value, BaseException):
            return self._kinds(value)
        # Objects are kept until the end, so that their ids are not used again while the test has their handles.
        if id(value) not in self._handles:
            self._handles[id(value)] = len(self._objects)
            self._objects.append(value)
        return ["object", self._handles[id(value)], type(value).__name__]

    def _kinds(self, kind: type[BaseException]) -> list[Any]:
        """Return an exception class with its bases, as the test rebuilds them: Python's by name, others by handle."""
        kinds: list[Any] = []
        for base in kind.__mro__[:-1]:
            if name := _name_of(base):
                kinds.append(name)
            else:
                if id(base) not in self._handles:
                    self._handles[id(base)] = len(self._objects)
                    self._objects.append(base)
                kinds.append([self._handles[id(base)], base.__name__])
        return ["exception", kinds]

    def _received(self, tag: str, rest: list[Any]) -> Any:
        if tag == "object":
            return self._objects[rest[0]]
        if tag == "function":
            return _Callback(self, rest[0])
        value: Any = __import__(rest[0], fromlist=["_"])  # "name"
        return operator.attrgetter(rest[1])(value)

    def _error(self, error: BaseException) -> list[Any]:
        """Return an exception as its classes, its arguments if all of them can be sent, and its text."""
        try:
            args = [self._encoder({}).encode(item) for item in error.args]
        except BaseException:  # noqa: BLE001 - an exception of the program's own, which may do anything
            args = []
        try:
            text = str(error)
        except BaseException:  # noqa: BLE001
            text = ""
        return [self._kinds(type(error))[1], args, text[:1000]]

    def call_back(self, number: int, args: tuple[Any, ...]) -> Any:
        """Have the test call one of its own functions, and return the result or raise the exception."""
        self._channel.send({"c": number, "a": [self._encoder({}).encode(item) for item in args]})
        reply = self._channel.receive()
        if "x" in reply:
            kind = getattr(builtins, reply["x"][0], Exception)
            raise kind(reply["x"][1])
        return Decoder(self._received).decode(reply["v"])


def _name_of(kind: type) -> str:
    """Return the name by which a test finds Python's classes, such as `json:JSONDecodeError`; empty for others."""
    name = str(kind.__name__)
    if getattr(builtins, name, None) is kind:
        return name
    module = kind.__module__
    if not isinstance(module, str) or module.partition(".")[0] not in sys.stdlib_module_names:
        return ""
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is kind else ""


def _constant(value: Any) -> Callable[..., Any]:
    return lambda: value


def _plain(value: Any) -> Any:
    """Return the plain data in a numpy value, or in an object whose class extends a class of plain data.

    Raises TypeError for other objects.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray):
        return value.tolist()
    for kind, data_of in _PLAIN.items():
        if isinstance(value, kind):
            return data_of(value)
    raise TypeError(f"{type(value).__name__} is not plain data")
