"""Run episodes in a worker, one after another, and restore the process after each."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import json
import os
import pickle
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

from .frames import MAX_ANSWER_BYTES, answer_frame, receive
from .guard import children, kill_all
from .leftovers import Leftovers
from .telling import message_of, place_of
from .tools import Asking
from .values import LONGEST_REPR, plain

LONGEST_TRACE = 20_000
"""Characters of a traceback that are sent."""

_TIDY_S = 1.0
"""Longest wait for the tasks and the processes that an episode left behind to end."""
_EPISODE_ERROR = "agentrl_core.errors.EpisodeError"


class Worker:
    """Runs episodes one after another on the main thread, while another thread reads the control socket."""

    def __init__(self, sock: socket.socket, loaded: Any, skip: Sequence[str]) -> None:
        self._sock, self._loaded, self._skip = sock, loaded, skip
        self._pid, self._guard = os.getpid(), os.getppid()
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._requests: queue.SimpleQueue[tuple[dict[str, Any], bytes] | None] = queue.SimpleQueue()
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._asking: Asking | None = None
        """Requests for tools of the current episode."""
        self._current: tuple[str, asyncio.Task[Any]] | None = None
        self._cancelled = self._stale = False
        """`_cancelled`: the episode was cancelled. `_stale`: one of its threads may still run during the next
        episode."""
        self._environ, self._folder = dict(os.environ), os.getcwd()
        self._leftovers = Leftovers(loaded.function, children, own=self._pid, above=self._guard)

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
                elif header["op"] == "told":
                    asking = self._asking
                    if asking is not None and asking.number == header["id"]:
                        asking.told(header)
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
            episode = dict(header["episode"], **self._with_tools(number, tools=header["tools"]))
            answer = {"op": "done", "value": plain(self._call(number, data, episode))}
        except BaseException as error:  # noqa: BLE001  (any failure of an agent is data)
            answer = dict(self._facts_of(error), op="raised")
        if self._asking is not None:
            self._asking.close()
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
        with self._sending:
            self._sock.sendall(message)

    def _with_tools(self, number: str, *, tools: bool) -> dict[str, Any]:
        """Return what the episode's context has of the run's tools."""
        self._asking = asking = Asking(number, self._ask)
        return self._loaded.tools_of(asking, tools=tools)  # type: ignore[no-any-return]

    def _ask(self, request: dict[str, Any]) -> None:
        """Send a request for tools; on any thread of the agent."""
        if os.getpid() != self._pid:
            raise LookupError("the tools can be called in the agent's own process only, not in one that it started")
        message = answer_frame(request)
        if len(message) > MAX_ANSWER_BYTES:
            raise ValueError(f"a tool call of {len(message)} bytes; expected at most {MAX_ANSWER_BYTES}")
        with self._sending:
            self._sock.sendall(message)

    def _call(self, number: str, data: Any, episode: dict[str, Any]) -> Any:
        """Call the workflow in a context that knows the episode; a sync function runs on the main thread."""
        episode = dict(episode, http_client=self._loaded.http_client)
        arguments = {name: episode[name] for name in self._loaded.accepted if name in episode}
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

    def _facts_of(self, error: BaseException) -> dict[str, Any]:
        """Return the facts about an exception that the run needs."""
        cause: Any = error
        while getattr(cause, "exceptions", None) and isinstance(cause.exceptions, (list, tuple)):
            cause = cause.exceptions[0]
        ours = any(f"{base.__module__}.{base.__name__}" == _EPISODE_ERROR for base in type(cause).__mro__)
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return {
            "type": type(cause).__name__[:LONGEST_REPR],
            "reason": str(cause.reason)[:LONGEST_REPR] if ours else None,
            "message": message_of(cause),
            "place": place_of(cause, self._skip),
            "trace": trace[:LONGEST_TRACE],
        }


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
