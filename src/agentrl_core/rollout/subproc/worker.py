"""Runs one workflow's episodes in a process of its own, under any Python from 3.8 on.

It needs the standard library, `leftovers.py` beside it and `rollout/tls.py`, and nothing else.

Started as `python worker.py CONTROL_FD LIFELINE_FD`. The process that is started is a guard: it forks the worker,
and however that ends, or once the run is gone, it kills every process below itself and tells how it was. The worker
talks to the run over the control socket in frames: two lengths of 4 bytes, a JSON header, a body.

    run -> worker   what to load, see `Foreign`, once; its body a pickled workflow for our own interpreter
    worker -> run   {op: ready, …}, or {op: refused, kind, message}
    run -> worker   {op: run, id, episode, environ, pickled}, its body the task's data; {op: cancel, id}; {op: stop}
    worker -> run   {op: began, id}, maybe {op: cancelling, id}, then {op: done, id, value} or {op: raised, id, …}
    run -> worker   {op: over, id}
    worker -> run   {op: idle, id}

The ids are random, one for each `run` and each `over`: what the agent's code writes to the socket, before or after
the answer, is never taken for the answer of a later episode. What the worker says has no body.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import faulthandler
import functools
import importlib
import importlib.util
import inspect
import json
import math
import os
import pickle
import queue
import select
import signal
import socket
import struct
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

try:
    import ctypes
except ImportError:  # a Python built without it: a process that an agent detaches is then out of sight
    ctypes = None  # type: ignore[assignment]

DEEPEST_VALUE = 4
"""Dicts inside dicts that are sent as such; a reward for each turn needs one."""
INJECTED = ("base_url", "api_key", "http_client", "record_id", "is_eval")
MAX_ANSWER_BYTES = 16 * 2**20
"""Longest message of a worker, and so the largest return value; a dict with a reward for each turn has kilobytes."""

_LENGTHS = struct.Struct(">II")
_LONGEST_MESSAGE = 400
_LONGEST_TRACE = 20_000
_LONGEST_REPR = 200
_LONGEST_PLACE = 4096
_MOST_ITEMS = MAX_ANSWER_BYTES // 16
"""Of a dict; more are never sent, as every one takes that many bytes at least."""
_LARGEST_INT = 2**53
_SWEEP_S = 2.0
_WATCH_S = 0.1
_TIDY_S = 1.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Refused(Exception):  # noqa: N818  (what happened, not a class of errors)
    """The workflow cannot be loaded; `kind` is the class of error that the run raises."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


# --- frames


def frame(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Put one message in bytes."""
    text = json.dumps(header).encode()
    return _LENGTHS.pack(len(text), len(body)) + text + body


def answer_frame(header: Mapping[str, Any]) -> bytes:
    """Put what a worker says in bytes: strict JSON, whatever the texts in it are made of."""
    text = json.dumps(header, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    return _LENGTHS.pack(len(text), 0) + text


def receive(sock: socket.socket) -> tuple[dict[str, Any], bytes] | None:
    """Read one message; None at the end."""
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


# --- the guard


def guard(lifeline: socket.socket, worker: int, wakeup: socket.socket) -> None:
    """Wait for the worker's end or the run's, leave no process behind and tell how it was."""
    waiting = select.poll()
    for sock in (lifeline, wakeup):
        waiting.register(sock, select.POLLIN | select.POLLHUP)
    limit = used = 0
    while True:
        status = _reap(worker)
        if status is not None or (limit and used > limit):
            break
        events = [number for number, _ in waiting.poll(_WATCH_S * 1000 if limit else None)]
        if wakeup.fileno() in events and signal.SIGTERM in wakeup.recv(4096):
            break
        if lifeline.fileno() in events:  # the limit of memory, or the end
            told = lifeline.recv(64)
            if not told:
                break
            limit = int(told)
        if limit:
            used = sum(map(_resident, [worker, *descendants(worker)]))
    _sweep(worker)
    report = {"status": status, "used_bytes": used if status is None and limit and used > limit else None}
    with contextlib.suppress(OSError):  # nobody may be there to be told
        lifeline.sendall(json.dumps(report).encode())
    os._exit(0)


def _reap(worker: int) -> int | None:
    """Collect what has ended; return how the worker did, if it was among it: its exit code, or minus the signal."""
    status = None
    with contextlib.suppress(ChildProcessError):
        pid, code = os.waitpid(-1, os.WNOHANG)
        while pid:
            if pid == worker:
                status = -os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)
            pid, code = os.waitpid(-1, os.WNOHANG)
    return status


def _sweep(worker: int) -> None:
    """Kill all that is below: what the worker started, and what detached itself from it."""
    end = time.monotonic() + _SWEEP_S
    with contextlib.suppress(ChildProcessError):  # all are gone
        while time.monotonic() < end:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker, signal.SIGKILL)
            kill_all([worker, *descendants(os.getpid())])
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.002)


def kill_all(pids: Sequence[int]) -> None:
    """Kill processes; those that have ended already do not matter."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Return the children of a process, where the system tells of them (Linux)."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


def descendants(pid: int) -> list[int]:
    """Return the processes below `pid`."""
    return [number for child in children(pid) for number in (child, *descendants(child))]


def _resident(pid: int) -> int:
    """Bytes of memory that a process shares with no file."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            _, resident, shared = map(int, file.read().split()[:3])
    except OSError:
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def _prctl(option: int, value: int) -> None:
    if ctypes is not None and sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


# --- a workflow in another interpreter


class Foreign:
    """The workflow, found and built with the standard library alone.

    `start` holds `use` (`module:attr`, `file.py:attr`, `pkg.mod.Attr`), `options`, `folders` in which to look first,
    `package` (name and place of the run's own copy of the workflow's package, for where this interpreter has none),
    `adapters` ([package, place, `module:attr`], …) and `places` (option -> its place in the config).
    """

    name = ""
    http_client = None

    def __init__(self, start: Mapping[str, Any]) -> None:
        self._use, self._options, self._places = start["use"], dict(start["options"]), start["places"]
        self._folders, self._adapters = start["folders"], start["adapters"]
        for folder in reversed(self._folders):
            _put_on_path(folder)
        sys.meta_path.insert(0, Packages({name: place for name, place, _ in self._adapters}))
        if start["package"]:
            sys.meta_path.append(Packages(dict([start["package"]])))
        for _, _, path in self._adapters:
            self._prepare(path.partition(":")[0])
        found = self._find()
        if _is_function(found) and (is_async(found) or takes_data(found)):
            self.function = functools.partial(found, **self._options) if self._options else found
        else:
            self.function = self._run_of(*self._built(found))
        self.accepted = self._accepted(self.function)

    def enter(self, episode: Mapping[str, Any]) -> None:
        """There is nothing of ours here to be told of an episode."""

    async def close(self) -> None:
        """There is nothing of ours here to be closed."""

    def _refuse(self, message: str, option: str = "") -> Refused:
        place = self._places.get(option) or self._places[""]
        version = ".".join(map(str, sys.version_info[:3]))
        kind = "ConfigError" if option else "PluginError"
        return Refused(kind, f"{place}: {message} (in {sys.executable}, Python {version})")

    def _do(self, action: Callable[[], Any], what: str) -> Any:
        """Do something of the user's; what goes wrong in there is told as theirs."""
        try:
            return action()
        except (Exception, SystemExit) as error:
            advice = ""
            if isinstance(error, ModuleNotFoundError):
                advice = f"; install what it needs there, with {sys.executable} -m pip install"
            place = place_of(error)
            at = f" (at {place})" if place else ""
            raise self._refuse(f"{what} failed: {one_line(error)}{at}{advice}") from error

    def _import(self, name: str) -> Any:
        return self._do(lambda: importlib.import_module(name), f"importing module {name}")

    def _prepare(self, adapter: str) -> None:
        """Let an adapter's module set up this process before the agent's own is imported."""
        try:
            module = importlib.import_module(adapter)
        except ImportError:
            return  # made for other interpreters; told where an agent needs it
        if hasattr(module, "prepare"):
            self._do(module.prepare, f"{adapter}.prepare()")

    def _find(self) -> Any:
        head, colon, attr = self._use.rpartition(":")
        if head.endswith(".py"):
            value, names = self._load_file(head), attr.split(".")
        elif colon:
            value, names = self._import(head), attr.split(".")
        else:
            value, names = self._import_longest(self._use.split("."))
        for name in names:
            if not hasattr(value, name):
                raise self._refuse(f"'{self._use}' names nothing: {_name_of(value)} has no '{name}'")
            value = getattr(value, name)
        return value

    def _import_longest(self, parts: list[str]) -> tuple[Any, list[str]]:
        """Import as many leading parts as are modules; the remaining ones are attributes."""
        module = self._import(parts[0])
        for count in range(2, len(parts)):
            name = ".".join(parts[:count])
            if not hasattr(module, "__path__") or importlib.util.find_spec(name) is None:
                return module, parts[count - 1 :]
            module = self._import(name)
        return module, parts[-1:]

    def _load_file(self, text: str) -> Any:
        paths = [os.path.realpath(os.path.join(folder, os.path.expanduser(text))) for folder in self._folders]
        path = next(filter(os.path.isfile, paths), None)
        if path is None:
            raise self._refuse(f"there is no file {' or '.join(dict.fromkeys(paths))}")
        _put_on_path(os.path.dirname(path))
        name = os.path.splitext(os.path.basename(path))[0]
        if not name.isidentifier() or importlib.util.find_spec(name) is None:
            name = "agentrl_file"
        elif os.path.realpath(getattr(importlib.util.find_spec(name), "origin", None) or "") != path:
            name = f"agentrl_file_{name}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None  # noqa: S101  (of a .py file there is one)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        self._do(lambda: spec.loader.exec_module(module), f"importing {path}")  # type: ignore[union-attr]
        return module

    def _built(self, found: Any) -> tuple[Any, dict[str, Any], Callable[[], Any] | None]:
        """The object that a class or a factory makes, the options that were not its own, and what makes another."""
        if not (inspect.isclass(found) or _is_function(found)):
            return found, self._options, None
        try:
            parameters: Mapping[str, inspect.Parameter] = inspect.signature(found).parameters
        except (TypeError, ValueError):  # a class written in C that does not tell
            parameters = {}
        takes_all = callable(getattr(found, "run", None)) or any(
            item.kind is item.VAR_KEYWORD for item in parameters.values()
        )
        own = {key: value for key, value in self._options.items() if takes_all or key in parameters}
        with contextlib.suppress(ValueError):
            try:
                inspect.signature(found).bind(**own)
            except TypeError as error:
                unknown = [key for key in own if key not in parameters]
                raise self._refuse(f"{self._use}: {error}", (unknown or [""])[0]) from error
        factory = functools.partial(found, **own)
        made = self._do(factory, f"building {self._use}")
        return made, {key: value for key, value in self._options.items() if key not in own}, factory

    def _run_of(self, agent: Any, options: dict[str, Any], factory: Callable[[], Any] | None) -> Callable[..., Any]:
        """The `run` of a workflow, or of what an adapter makes of a framework's agent."""
        if not _runs_on_data(agent):
            for _, _, path in self._adapters:
                adapted = self._do(functools.partial(_adapt, path, agent, options, factory), f"{path}(agent)")
                if adapted is not None:
                    run: Callable[..., Any] = adapted.run
                    return run
        found = getattr(agent, "run", None)
        if not callable(found):
            known = ", ".join(sorted(name for name, _, _ in self._adapters)) or "none"
            raise self._refuse(
                f"'{self._use}' is of type {_name_of(type(agent))}, which has no `run(data)`, and no package adapts "
                f"it in another interpreter (installed: {known}); write a class with `def run(self, data)` that "
                "returns a reward"
            )
        if options:
            raise self._refuse(f"{self._use} takes no such option", next(iter(options)))
        return found  # type: ignore[no-any-return]

    def _accepted(self, function: Callable[..., Any]) -> set[str]:
        """Which of the injected arguments the function takes; one that may be left out is not given a None."""
        if not takes_data(function):
            text = (
                f"{_name_of(function)} has no parameter for the task; expected run(data) or run(data, **extra_kwargs)"
            )
            raise self._refuse(text)
        signature = inspect.signature(function)
        parameters = signature.parameters
        accepted = set(INJECTED)
        if not any(item.kind is item.VAR_KEYWORD for item in parameters.values()):
            by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            accepted &= {item.name for item in parameters.values() if item.kind in by_name}
        client = parameters.get("http_client")
        if client is None or client.default is not client.empty:
            accepted.discard("http_client")
        try:
            signature.bind({}, **dict.fromkeys(accepted))
        except TypeError as error:
            text = f"{_name_of(function)}{signature} cannot be called with (data, {', '.join(INJECTED)}): {error}"
            raise self._refuse(text) from None
        return accepted


class Packages:
    """Imports packages from one place each, and nothing beside them."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002  (the protocol)
        """Find a package by its name."""
        place = self._places.get(fullname)
        if place is None or place.endswith(".py"):
            return None if place is None else importlib.util.spec_from_file_location(fullname, place)
        file = os.path.join(place, "__init__.py")
        return importlib.util.spec_from_file_location(fullname, file, submodule_search_locations=[place])


def _adapt(path: str, agent: Any, options: dict[str, Any], factory: Callable[[], Any] | None) -> Any:
    module, _, attr = path.partition(":")
    adapt = getattr(importlib.import_module(module), attr)
    more = {"factory": factory} if "factory" in inspect.signature(adapt).parameters else {}
    return adapt(agent, options, **more)


def _put_on_path(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _name_of(found: Any) -> str:
    return getattr(found, "__qualname__", None) or getattr(found, "__name__", None) or repr(found)[:_LONGEST_REPR]


def _is_function(found: Any) -> bool:
    return inspect.isroutine(found) or isinstance(found, functools.partial)


def is_async(function: Any) -> bool:
    """Whether a function, or the call of an object, is a coroutine."""
    call = getattr(type(function), "__call__", None)  # noqa: B004  (its call is looked at, not whether it has one)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def takes_data(function: Any) -> bool:
    """Whether the first parameter must be given by position, as a task's data is."""
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):
        return False
    if first is None or first.kind is first.VAR_POSITIONAL:
        return first is not None
    return first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD) and first.default is first.empty


def _runs_on_data(agent: Any) -> bool:
    """Whether `agent.run` takes `data`: frameworks have a `run` too, with a prompt in its place."""
    try:
        return next(iter(inspect.signature(agent.run).parameters), None) == "data"
    except (AttributeError, TypeError, ValueError):
        return False


# --- episodes


class Worker:
    """Runs episodes one after another on the main thread, while another thread listens to the run."""

    def __init__(self, sock: socket.socket, loaded: Any, skip: Sequence[str]) -> None:
        self._sock, self._loaded, self._skip = sock, loaded, skip
        self._pid, self._guard = os.getpid(), os.getppid()
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._requests: queue.SimpleQueue[tuple[dict[str, Any], bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._current: tuple[str, asyncio.Task[Any]] | None = None
        self._cancelled = self._stale = False
        """Whether the episode was cancelled, and whether one of its threads may run on in the next."""
        self._environ, self._folder = dict(os.environ), os.getcwd()
        leftovers = _beside("leftovers").Leftovers
        self._leftovers = leftovers(loaded.function, children, own=self._pid, above=self._guard)

    def serve(self) -> None:
        """Run what is asked for until the run says stop, or is gone."""
        threading.Thread(target=self._listen, name="agentrl-control", daemon=True).start()
        self._threads = set(threading.enumerate())
        for header, body in iter(self._requests.get, None):
            if header["op"] == "over":
                if self._stale:
                    return
                self._send({"op": "idle", "id": header["id"]})
            else:
                self._episode(header, body)
        self._loop.run_until_complete(self._loaded.close())

    def _listen(self) -> None:
        try:
            message = receive(self._sock)
            while message is not None and message[0]["op"] != "stop":
                header = message[0]
                if header["op"] == "cancel":
                    with self._lock:
                        if self._current is not None and self._current[0] == header["id"]:
                            self._loop.call_soon_threadsafe(self._cancel, *self._current)
                else:
                    self._requests.put(message)
                message = receive(self._sock)
        finally:  # also where the agent has read from the socket, and what comes makes no sense any more
            self._requests.put(None)

    def _cancel(self, number: str, task: asyncio.Task[Any]) -> None:
        """Cancel an episode, and say so: of an agent that blocks the loop the run never hears that."""
        if not task.done():
            self._send({"op": "cancelling", "id": number})
            self._cancelled = True
            task.cancel()

    def _episode(self, header: dict[str, Any], body: bytes) -> None:
        number = header["id"]
        self._send({"op": "began", "id": number})
        self._cancelled = False
        answer: dict[str, Any]
        try:
            data = pickle.loads(body) if header["pickled"] else json.loads(body.decode())  # noqa: S301  (the run's)
            os.environ.update(header["environ"])
            answer = {"op": "done", "value": plain(self._call(number, data, header["episode"]))}
        except BaseException as error:  # noqa: BLE001  (whatever an agent raises is data)
            answer = dict(self._told(error), op="raised")
        self._tidy()
        # what a cancelled agent awaited of a thread goes on there, and would find the next episode's key
        self._stale = self._cancelled and not self._threads.issuperset(threading.enumerate())
        self._send(dict(answer, id=number))

    def _send(self, answer: dict[str, Any]) -> None:
        if os.getpid() != self._pid:  # the agent forked, and this is the copy
            os._exit(0)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # closed or replaced by the agent
                stream.flush()
        message = answer_frame(answer)
        if len(message) > MAX_ANSWER_BYTES:
            message = answer_frame({"op": "done", "id": answer["id"], "value": {"large": len(message)}})
        self._sock.sendall(message)

    def _call(self, number: str, data: Any, episode: dict[str, Any]) -> Any:
        """Call the workflow in a context that knows the episode; a sync function has the thread to itself."""
        episode = dict(episode, http_client=self._loaded.http_client)
        arguments = {name: episode[name] for name in self._loaded.accepted}
        context = contextvars.copy_context()
        context.run(self._loaded.enter, episode)
        returned = context.run(self._loaded.function, data, **arguments)
        if not inspect.isawaitable(returned):
            return returned
        task = context.run(self._loop.create_task, _awaited(returned))
        with self._lock:
            self._current = (number, task)
        try:
            value, error = self._loop.run_until_complete(task)
        finally:
            with self._lock:
                self._current = None
        if error is not None:
            raise error
        return value

    def _tidy(self) -> None:
        """Leave nothing of an episode to the next: no tasks, processes, variables, no other folder."""
        if os.getpid() != self._pid:
            return
        left = [task for task in asyncio.all_tasks(self._loop) if not task.done()]
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=_TIDY_S))
        processes = self._leftovers.find()
        if processes:
            self._end(processes)
        for name in [name for name in os.environ if name not in self._environ]:
            del os.environ[name]
        for name, text in self._environ.items():
            if os.environ.get(name) != text:
                os.environ[name] = text
        with contextlib.suppress(FileNotFoundError):  # the agent has removed the folder that it is in
            if os.getcwd() == self._folder:
                return
        try:
            os.chdir(self._folder)
        except OSError:  # it is gone, and the agent's answer must not go with it
            os.chdir(os.sep)

    @staticmethod
    def _end(processes: Sequence[int]) -> None:
        names = ", ".join(filter(None, map(_command, processes)))
        kill_all(processes)
        end = time.monotonic() + _TIDY_S
        for pid in processes:
            with contextlib.suppress(ChildProcessError):  # a child's child, which the guard collects
                while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
                    time.sleep(0.001)
        if names:
            print(f"the agent left processes running, which were ended: {names}", file=sys.stderr, flush=True)  # noqa: T201 - to the log

    def _told(self, error: BaseException) -> dict[str, Any]:
        """What the run needs to know of an exception."""
        cause: Any = error
        while getattr(cause, "exceptions", None) and isinstance(cause.exceptions, (list, tuple)):
            cause = cause.exceptions[0]
        ours = any(f"{base.__module__}.{base.__name__}" == _EPISODE_ERROR for base in type(cause).__mro__)
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return {
            "type": type(cause).__name__[:_LONGEST_REPR],
            "reason": str(cause.reason)[:_LONGEST_REPR] if ours else None,
            "message": text_of(cause),
            "place": place_of(cause, self._skip),
            "trace": trace[:_LONGEST_TRACE],
        }


_EPISODE_ERROR = "agentrl_core.errors.EpisodeError"


async def _awaited(returned: Any) -> tuple[Any, BaseException | None]:
    """Return what was raised, too: `sys.exit` in a task would go through the event loop."""
    try:
        return await returned, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  (whatever an agent raises is data)
        return None, error


def _command(pid: int) -> str:
    """How a process was started, and its number; empty for one that has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read(80).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return f"{text} ({pid})" if text else ""


def plain(value: Any, depth: int = 0) -> dict[str, Any]:
    """Put a return value in JSON: a number, pairs of a dict, an `Answer`; of anything else its type and its looks."""
    if not isinstance(value, (bool, int, float)) and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()  # numpy's and torch's
    if isinstance(value, int) and abs(value) > _LARGEST_INT:
        try:
            value = float(value)
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(float(value))}  # JSON has no number for it
    if value is None or isinstance(value, (bool, int, float)):
        return {"number": value}
    is_long = isinstance(value, (str, bytes, bytearray, dict, list, tuple)) and len(value) > _MOST_ITEMS
    if not is_long and hasattr(value, "keys") and hasattr(value, "__getitem__") and depth < DEEPEST_VALUE:
        return {"pairs": [[_key(key), plain(value[key], depth + 1)] for key in value]}
    if type(value).__name__ == "Answer" and isinstance(getattr(value, "text", None), str):
        return {"answer": value.text}
    if hasattr(value, "as_integer_ratio") or hasattr(value, "numerator"):  # a Decimal, a Fraction
        with contextlib.suppress(ArithmeticError, TypeError, ValueError):
            return plain(float(value))
    looks = f"of length {len(value)}" if is_long else repr(value)[:_LONGEST_REPR]
    return {"odd": [type(value).__name__, looks]}


def _key(key: Any) -> Any:
    if isinstance(key, str):
        return str(key)
    if hasattr(key, "__index__") and not isinstance(key, bool) and abs(key.__index__()) <= _LARGEST_INT:
        return key.__index__()
    return repr(key)[:_LONGEST_REPR]


# --- telling what went wrong


def one_line(error: BaseException) -> str:
    """Put an exception in one line: its type and what it says, of a SyntaxError its source line."""
    text = text_of(error)
    told = f"{type(error).__name__}: {text}" if text else type(error).__name__
    source = (error.text or "").strip() if isinstance(error, SyntaxError) else ""
    return f"{told}: `{source}`" if source else told


def text_of(error: BaseException) -> str:
    """Return what an exception says as one line of a bounded length."""
    try:
        text = str(error)
    except Exception as own:  # noqa: BLE001  (an exception's __str__ is a user's code too)
        return f"(its text cannot be shown: str() of it raises {type(own).__name__})"
    line = " ".join(text[: 2 * _LONGEST_MESSAGE].split())
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)
    return line if len(line) <= _LONGEST_MESSAGE else line[:_LONGEST_MESSAGE] + "…"


def place_of(error: BaseException, skip: Sequence[str] = ()) -> str:
    """Return `file:line` of the innermost frame in the user's own code."""
    frames = [item for item in traceback.extract_tb(error.__traceback__) if item.filename != __file__]
    if not frames:
        return ""
    installed = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    foreign = tuple(os.path.join(folder, "") for folder in [*installed, *skip])
    own: Iterator[traceback.FrameSummary] = (
        item for item in reversed(frames) if os.path.isabs(item.filename) and not item.filename.startswith(foreign)
    )
    chosen = next(own, frames[-1])
    path, here = chosen.filename, os.path.join(os.getcwd(), "")
    return f"{path[len(here) :] if path.startswith(here) else path}:{chosen.lineno}"[-_LONGEST_PLACE:]


# --- start


def main() -> None:
    """Fork the worker and guard it."""
    control, lifeline = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    control.set_inheritable(False)
    lifeline.set_inheritable(False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wakeup, alarm = socket.socketpair()
    alarm.setblocking(False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGCHLD, signal.SIGTERM)}
    signal.set_wakeup_fd(alarm.fileno(), warn_on_full_buffer=False)
    guarding = os.getpid()
    worker = os.fork()
    if worker:
        control.close()
        guard(lifeline, worker, wakeup)
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for sock in (lifeline, wakeup, alarm):
        sock.close()
    os.setpgid(0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == guarding:
        _work(control)


def _work(control: socket.socket) -> None:
    faulthandler.enable(all_threads=False)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    del sys.argv[1:]
    message = receive(control)
    if message is None:
        return
    start, payload = message
    sys.path[:] = start["sys_path"] or sys.path[1:]  # this file's folder holds nothing for an agent
    with _module("agentrl_core.http.tls", start["tls"]).shared_tls():  # for all clients that agents build
        try:
            loaded = _load(start, payload)
        except BaseException as error:  # noqa: BLE001  (whatever it is, the run must be told)
            kind = getattr(error, "kind", type(error).__name__)
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            answer = {"op": "refused", "kind": kind, "message": str(error)[:_LONGEST_TRACE]}
            answer["place"] = place_of(error, start["skip"])
            control.sendall(answer_frame(dict(answer, trace=trace[:_LONGEST_TRACE])))
            return
        worker = Worker(control, loaded, start["skip"])
        ready = {"op": "ready", "name": loaded.name, "is_async": is_async(loaded.function)}
        control.sendall(answer_frame(ready))
        try:
            worker.serve()
        except BaseException:  # noqa: BLE001  (the agent has broken what this process needs, or its connection)
            with contextlib.suppress(OSError, ValueError):  # stderr, too
                traceback.print_exc()
            os._exit(1)  # an interpreter that ends by itself may wait for threads and pools for ever


def _load(start: dict[str, Any], payload: bytes) -> Any:
    if not start["own"]:
        return Foreign(start)
    from agentrl_core.rollout.subproc.own import Own

    return Own(start, payload)


def _beside(name: str) -> Any:
    """Return the module in the file next to this one."""
    return _module(f"agentrl_core.rollout.subproc.{name}", os.path.join(os.path.dirname(__file__), f"{name}.py"))


def _module(name: str, path: str) -> Any:
    """Return a module of ours, whose package this interpreter need not have."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # noqa: S101  (of a .py file there is one)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


if __name__ == "__main__":
    main()
