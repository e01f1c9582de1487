"""Agent worker process: run one workflow's episodes for `mode: subproc`, under any Python from 3.8 on.

Imports only the standard library, `leftovers.py` beside it and `http/share_tls_context.py`: the user's interpreter need
not have agentrl installed.

Started as `python worker.py CONTROL_FD LIFELINE_FD`. The started process is the *guard*: it forks the worker and waits.
When the worker ends, or when the run is gone, the guard kills every process below itself and reports over the lifeline
how the worker ended. The worker talks to the run over the control socket in frames: two lengths of 4 bytes, a JSON
header, a body.

    run -> worker   what to load, see `ForeignWorkflow`, once; its body a pickled workflow for our own interpreter
    worker -> run   {op: ready, …}, or {op: refused, kind, message}
    run -> worker   {op: run, id, episode, environ, pickled}, its body the task's data; {op: cancel, id}; {op: stop}
    worker -> run   {op: began, id}, maybe {op: cancelling, id}, then {op: done, id, value} or {op: raised, id, …}
    run -> worker   {op: over, id}
    worker -> run   {op: idle, id}

The ids are random, one for each `run` and each `over`. The agent's code can write to the same socket, but it cannot
guess the id of a later request, so nothing that it writes is taken for the answer of a later episode. Messages of the
worker have no body.
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
except ImportError:
    # A Python built without ctypes: the guard then does not see processes that an agent detaches.
    ctypes = None  # type: ignore[assignment]

DEEPEST_VALUE = 4
"""Levels of nested dicts in a return value that are sent as dicts; per-turn rewards need one."""
INJECTED = ("base_url", "api_key", "http_client", "record_id", "is_eval")
"""Keyword arguments that an episode offers to the workflow; the same as `rollout.calling.INJECTED`."""
MAX_ANSWER_BYTES = 16 * 2**20
"""Longest message of a worker, and so the largest return value. A dict of per-turn rewards takes kilobytes."""

_LENGTHS = struct.Struct(">II")
"""Prefix of a frame: the lengths of header and body."""
_LONGEST_MESSAGE = 400
"""Characters of an exception's message that are sent."""
_LONGEST_TRACE = 20_000
"""Characters of a traceback that are sent."""
_LONGEST_REPR = 200
"""Characters of names and of the `repr` of a value that are sent."""
_LONGEST_PLACE = 4096
"""Characters of a `file:line` that are sent; its end is kept."""
_MOST_ITEMS = MAX_ANSWER_BYTES // 16
"""Items of a dict that are sent. Each takes at least 16 bytes, so a dict of more items would exceed
MAX_ANSWER_BYTES."""
_LARGEST_INT = 2**53
"""Larger integers are sent as floats, which hold every integer up to this one exactly."""
_SWEEP_S = 2.0
"""Longest time that the guard spends on killing the processes below it."""
_WATCH_S = 0.1
"""Interval at which the guard measures memory, if there is a limit."""
_TIDY_S = 1.0
"""Longest wait for the tasks and the processes that an episode left behind to end."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
"""Options of Linux's `prctl`."""


class Refused(Exception):  # noqa: N818  (a refusal, not an error)
    """Raised when the workflow cannot be loaded; `kind` names the error class that the run raises."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


# --- frames


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


# --- the guard


def guard(lifeline: socket.socket, worker: int, wakeup: socket.socket) -> None:
    """Wait until the worker ends or the run is gone, kill all processes below, and report how the worker ended."""
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
        if lifeline.fileno() in events:
            # The run sends the memory limit in bytes, if there is one. End of file means: kill everything, or the run
            # is gone.
            told = lifeline.recv(64)
            if not told:
                break
            limit = int(told)
        if limit:
            used = sum(map(_resident, [worker, *descendants(worker)]))
    _sweep(worker)
    report = {"status": status, "used_bytes": used if status is None and limit and used > limit else None}
    # The run may be gone.
    with contextlib.suppress(OSError):
        lifeline.sendall(json.dumps(report).encode())
    # Never return: the code after this call in `main` is the worker's.
    os._exit(0)


def _reap(worker: int) -> int | None:
    """Collect ended children; return the worker's exit code, or minus its signal, if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        pid, code = os.waitpid(-1, os.WNOHANG)
        while pid:
            if pid == worker:
                status = -os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)
            pid, code = os.waitpid(-1, os.WNOHANG)
    return status


def _sweep(worker: int) -> None:
    """Kill everything below the guard: all that the worker started, also processes that detached themselves."""
    end = time.monotonic() + _SWEEP_S
    # Repeat until no child is left: a process may fork while the others are being killed.
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker, signal.SIGKILL)
            kill_all([worker, *descendants(os.getpid())])
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.002)


def kill_all(pids: Sequence[int]) -> None:
    """Kill processes; ignore those that have ended already."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Return the children of a process; empty where the system does not list them in /proc (Linux does)."""
    found: list[int] = []
    # The process, or one of its threads, may end between the two reads.
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


def descendants(pid: int) -> list[int]:
    """Return the processes below `pid`."""
    return [number for child in children(pid) for number in (child, *descendants(child))]


def _resident(pid: int) -> int:
    """Return the resident bytes of a process that are not shared with a file; 0 if it has ended."""
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


class ForeignWorkflow:
    """Workflow that is found and built with the standard library alone, in another interpreter than the run's.

    `start` holds `use` (`module:attr`, `file.py:attr`, `pkg.mod.Attr`), `options`, `folders` to search first, `package`
    (name and location of the run's own copy of the workflow's package, for interpreters that have none), `adapters`
    ([package, location, `module:attr`], …) and `places` (option -> its place in the config, for messages).
    """

    name = ""
    http_client = None

    def __init__(self, start: Mapping[str, Any]) -> None:
        self._use, self._options, self._places = start["use"], dict(start["options"]), start["places"]
        self._folders, self._adapters = start["folders"], start["adapters"]
        for folder in reversed(self._folders):
            _put_on_path(folder)
        # Adapters always come from the run's installation, so they go first. The run's copy of the workflow's package
        # goes last: a copy that this interpreter has itself wins.
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
        """Do nothing: `workflow_context` does not exist in another interpreter."""

    async def close(self) -> None:
        """Do nothing: there is no shared HTTP client in another interpreter."""

    def _refuse(self, message: str, option: str = "") -> Refused:
        place = self._places.get(option) or self._places[""]
        version = ".".join(map(str, sys.version_info[:3]))
        kind = "ConfigError" if option else "PluginError"
        return Refused(kind, f"{place}: {message} (in {sys.executable}, Python {version})")

    def _do(self, action: Callable[[], Any], what: str) -> Any:
        """Call code of the user; report whatever it raises as a fault of that code, with its place."""
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
        """Let an adapter's module set up this process before the agent's module is imported."""
        try:
            module = importlib.import_module(adapter)
        except ImportError:
            # An adapter whose framework is missing here serves other agents. If this one needs it, `_run_of` says so.
            return
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
                raise self._refuse(f"'{self._use}' does not exist: {_name_of(value)} has no '{name}'")
            value = getattr(value, name)
        return value

    def _import_longest(self, parts: list[str]) -> tuple[Any, list[str]]:
        """Import as many leading parts as are modules; return the last module and the remaining names."""
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
        # As Python does for a script, so that the file can import its siblings.
        _put_on_path(os.path.dirname(path))
        name = os.path.splitext(os.path.basename(path))[0]
        if not name.isidentifier() or importlib.util.find_spec(name) is None:
            name = "agentrl_file"
        elif os.path.realpath(getattr(importlib.util.find_spec(name), "origin", None) or "") != path:
            # A module of that name exists elsewhere, such as in the standard library: the file must not hide it.
            name = f"agentrl_file_{name}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None  # noqa: S101  (a .py file always has a spec)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        self._do(lambda: spec.loader.exec_module(module), f"importing {path}")  # type: ignore[union-attr]
        return module

    def _built(self, found: Any) -> tuple[Any, dict[str, Any], Callable[[], Any] | None]:
        """Return the built object, the options that it did not take, and its factory (None for a given object)."""
        if not (inspect.isclass(found) or _is_function(found)):
            return found, self._options, None
        try:
            parameters: Mapping[str, inspect.Parameter] = inspect.signature(found).parameters
        except (TypeError, ValueError):
            # A class written in C whose signature cannot be read.
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
        """Return `run` of a workflow, or of the workflow that an adapter makes of a framework's agent."""
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
            raise self._refuse(f"{self._use} has no such option", next(iter(options)))
        return found  # type: ignore[no-any-return]

    def _accepted(self, function: Callable[..., Any]) -> set[str]:
        """Return the injected arguments that the function takes.

        There is no shared HTTP client here: a function that can do without `http_client` is not given a None.
        """
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
    """Finder that imports each named package from one location, and nothing else from there."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002  (the protocol)
        """Return the spec of a named package; None for any other."""
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
    """Return whether a function, or an object's `__call__`, is a coroutine function."""
    call = getattr(type(function), "__call__", None)  # noqa: B004  (reads `__call__`, does not test for it)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def takes_data(function: Any) -> bool:
    """Return whether the first parameter must be given by position, as a task's data is."""
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):
        return False
    if first is None or first.kind is first.VAR_POSITIONAL:
        return first is not None
    return first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD) and first.default is first.empty


def _runs_on_data(agent: Any) -> bool:
    """Return whether `agent.run` takes `data`: frameworks have a `run` too, with a prompt in its place."""
    try:
        return next(iter(inspect.signature(agent.run).parameters), None) == "data"
    except (AttributeError, TypeError, ValueError):
        return False


# --- episodes


class Worker:
    """Runs episodes one after another on the main thread, while another thread reads the control socket."""

    def __init__(self, sock: socket.socket, loaded: Any, skip: Sequence[str]) -> None:
        self._sock, self._loaded, self._skip = sock, loaded, skip
        self._pid, self._guard = os.getpid(), os.getppid()
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._requests: queue.SimpleQueue[tuple[dict[str, Any], bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._current: tuple[str, asyncio.Task[Any]] | None = None
        self._cancelled = self._stale = False
        """`_cancelled`: the episode was cancelled. `_stale`: one of its threads may still run during the next
        episode."""
        self._environ, self._folder = dict(os.environ), os.getcwd()
        leftovers = _beside("leftovers").Leftovers
        self._leftovers = leftovers(loaded.function, children, own=self._pid, above=self._guard)

    def serve(self) -> None:
        """Run the requested episodes until the run says stop, or is gone."""
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
        finally:
            # Also after an error: an agent that read from the socket leaves bytes that are no frame. The worker then
            # ends.
            self._requests.put(None)

    def _cancel(self, number: str, task: asyncio.Task[Any]) -> None:
        """Cancel an episode and tell the run so.

        While an agent blocks the event loop this does not run, and the run gets no `cancelling`.
        """
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
            data = pickle.loads(body) if header["pickled"] else json.loads(body.decode())  # noqa: S301  (written by the run)
            os.environ.update(header["environ"])
            answer = {"op": "done", "value": plain(self._call(number, data, header["episode"]))}
        except BaseException as error:  # noqa: BLE001  (any failure of an agent is data)
            answer = dict(self._told(error), op="raised")
        self._tidy()
        # Work that a cancelled agent had put on a thread goes on there. It would read the next episode's key from the
        # environment, so this process serves no other episode.
        self._stale = self._cancelled and not self._threads.issuperset(threading.enumerate())
        self._send(dict(answer, id=number))

    def _send(self, answer: dict[str, Any]) -> None:
        # The agent forked and returned in the child as well: only the original process may answer.
        if os.getpid() != self._pid:
            os._exit(0)
        for stream in (sys.stdout, sys.stderr):
            # The agent may have closed or replaced the stream.
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        message = answer_frame(answer)
        if len(message) > MAX_ANSWER_BYTES:
            message = answer_frame({"op": "done", "id": answer["id"], "value": {"large": len(message)}})
        self._sock.sendall(message)

    def _call(self, number: str, data: Any, episode: dict[str, Any]) -> Any:
        """Call the workflow in a context that knows the episode; a sync function runs on the main thread."""
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
        """Restore the process for the next episode: end tasks and processes, reset environment and folder."""
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
        # `getcwd` fails if the agent has removed the folder that it is in.
        with contextlib.suppress(FileNotFoundError):
            if os.getcwd() == self._folder:
                return
        try:
            os.chdir(self._folder)
        except OSError:
            # The folder is gone. That must not cost the agent its answer.
            os.chdir(os.sep)

    @staticmethod
    def _end(processes: Sequence[int]) -> None:
        names = ", ".join(filter(None, map(_command, processes)))
        kill_all(processes)
        end = time.monotonic() + _TIDY_S
        for pid in processes:
            # Only a parent can wait for a process: the guard collects those whose parent was not the worker.
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
                    time.sleep(0.001)
        if names:
            print(f"the agent left processes running; they were ended: {names}", file=sys.stderr, flush=True)  # noqa: T201 - to the log

    def _told(self, error: BaseException) -> dict[str, Any]:
        """Return the facts about an exception that the run needs."""
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
    """Return a raised exception instead of raising it: `sys.exit` raised in a task would stop the event loop."""
    try:
        return await returned, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  (any failure of an agent is data)
        return None, error


def _command(pid: int) -> str:
    """Return the command line and id of a process; empty for one that has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read(80).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return f"{text} ({pid})" if text else ""


def plain(value: Any, depth: int = 0) -> dict[str, Any]:
    """Encode a return value as JSON: a number, a dict's pairs, an `Answer`; of anything else its type and `repr`."""
    if not isinstance(value, (bool, int, float)) and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        # A scalar of numpy or torch.
        value = value.item()
    if isinstance(value, int) and abs(value) > _LARGEST_INT:
        try:
            value = float(value)
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no NaN and no infinities.
        return {"number": str(float(value))}
    if value is None or isinstance(value, (bool, int, float)):
        return {"number": value}
    is_long = isinstance(value, (str, bytes, bytearray, dict, list, tuple)) and len(value) > _MOST_ITEMS
    if not is_long and hasattr(value, "keys") and hasattr(value, "__getitem__") and depth < DEEPEST_VALUE:
        return {"pairs": [[_key(key), plain(value[key], depth + 1)] for key in value]}
    if type(value).__name__ == "Answer" and isinstance(getattr(value, "text", None), str):
        return {"answer": value.text}
    # A Decimal or a Fraction.
    if hasattr(value, "as_integer_ratio") or hasattr(value, "numerator"):
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
    """Return an exception in one line: its type and message; for a SyntaxError also the source line."""
    text = text_of(error)
    told = f"{type(error).__name__}: {text}" if text else type(error).__name__
    source = (error.text or "").strip() if isinstance(error, SyntaxError) else ""
    return f"{told}: `{source}`" if source else told


def text_of(error: BaseException) -> str:
    """Return an exception's message as one line of a bounded length."""
    try:
        text = str(error)
    except Exception as own:  # noqa: BLE001  (an exception's __str__ is user code too)
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
    # Orphans below this process become its children, so that a process that detaches itself from the worker is killed
    # too.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wakeup, alarm = socket.socketpair()
    alarm.setblocking(False)
    # Python retries `poll` after a signal (PEP 475), so handlers alone would not wake the guard: each signal also
    # writes a byte to `alarm`.
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
    # If the guard ended before the line above, that signal never comes: do not start at all.
    if os.getppid() == guarding:
        _work(control)


def _work(control: socket.socket) -> None:
    # After a crash of the interpreter, "Fatal Python error" and the place stand in the output, see `Output.last_lines`.
    faulthandler.enable(all_threads=False)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    del sys.argv[1:]
    message = receive(control)
    if message is None:
        return
    start, payload = message
    # Another interpreter keeps its own path, without the first entry, which is this file's folder: an agent must not be
    # able to import these modules by their bare names.
    sys.path[:] = start["sys_path"] or sys.path[1:]
    with _module("agentrl_core.http.share_tls_context", start["tls"]).shared_tls():
        try:
            loaded = _load(start, payload)
        except BaseException as error:  # noqa: BLE001  (any failure is reported to the run)
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
        except BaseException:  # noqa: BLE001  (the agent broke the process or its connection)
            with contextlib.suppress(OSError, ValueError):
                traceback.print_exc()
            # An interpreter that ends by itself may wait for ever for the agent's threads and pools.
            os._exit(1)


def _load(start: dict[str, Any], payload: bytes) -> Any:
    if not start["own"]:
        return ForeignWorkflow(start)
    from agentrl_core.rollout.subproc.own_interpreter import OwnWorkflow

    return OwnWorkflow(start, payload)


def _beside(name: str) -> Any:
    """Return the module in the file next to this one."""
    return _module(f"agentrl_core.rollout.subproc.{name}", os.path.join(os.path.dirname(__file__), f"{name}.py"))


def _module(name: str, path: str) -> Any:
    """Load one of our modules from its file: this interpreter need not have its package."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # noqa: S101  (a .py file always has a spec)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


if __name__ == "__main__":
    main()
