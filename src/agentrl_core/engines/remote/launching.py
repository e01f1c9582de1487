"""Starts model servers on this machine for the length of a run: `engine: {use: vllm, launch: {…}}`.

A package says what the command line of its server is (`api.remote.ServerProgram`). Processes, ports, GPUs and logs are
the same for all servers, and are handled here.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import attrs

from agentrl_core.api.remote import ServerLaunch
from agentrl_core.concurrency.secrecy import environment
from agentrl_core.engines.remote import server_guard
from agentrl_core.errors import EngineError

if TYPE_CHECKING:
    from agentrl_core.api.remote import ServerCommand, ServerProgram

log = logging.getLogger(__name__)

_HOST = "127.0.0.1"
"""Control routes of model servers have no protection worth the name: launched servers listen to this machine alone."""
_POLL_S = 0.25
"""Interval at which a starting server is asked whether it is ready."""
_END_S = 10.0
"""Time that a server gets to end by itself."""
_LAST_LINES = 12
"""Lines at the end of a server's log that an error quotes."""
_MOST_CHARS = 300
"""Characters of a line that an error quotes."""
_TAIL_BYTES = 1 << 18
_ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception): ")
"""Last line of a Python traceback."""


@attrs.frozen(kw_only=True)
class Launch:
    """Model servers that the run starts on this machine, and ends with itself."""

    python: str | None = None
    """Interpreter of the environment in which the server is installed, such as `/envs/vllm/bin/python`; None: this
    one."""
    replicas: int | None = attrs.field(default=None)
    """Number of servers; None: as many as the GPUs allow, or one on the CPU."""
    tp: int = attrs.field(default=1)
    """Number of GPUs per server, which share the model (tensor parallelism)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    gpus: tuple[int, ...] | None = None
    """Numbers of the GPUs to use, as torch counts them; None: all. Leave out the trainer's."""
    gpu_memory: float | None = attrs.field(default=None)
    """Share of each GPU's memory that a server may take, 0 to 1; None: the server's default, which is nearly all."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type that the server computes in; None: `model.dtype`."""
    context_length: int | None = attrs.field(default=None)
    """Largest number of tokens of one request; None: the model's."""
    args: tuple[str, ...] = ()
    """Further arguments of the server's program."""
    env: Mapping[str, str] = attrs.field(factory=dict)
    """Further environment variables of the server."""
    ready_s: float = attrs.field(default=1800.0)
    """Longest time until a server takes requests; loading a large model takes minutes."""
    restarts: int = attrs.field(default=3)
    """Number of times that a server which ends by itself is started again; one more ends the run."""

    @replicas.validator
    @tp.validator
    @context_length.validator
    def _check_count(self, attribute: attrs.Attribute[Any], value: int | None) -> None:
        if value is not None and value < 1:
            raise ValueError(f"'{attribute.name}' must be at least 1, not {value}")

    @restarts.validator
    def _check_restarts(self, _: attrs.Attribute[Any], value: int) -> None:
        if value < 0:
            raise ValueError(f"'restarts' must be at least 0, not {value}")

    @gpu_memory.validator
    @ready_s.validator
    def _check_size(self, attribute: attrs.Attribute[Any], value: float | None) -> None:
        most = 1.0 if attribute.name == "gpu_memory" else float("inf")
        if value is not None and not 0 < value <= most:
            raise ValueError(f"'{attribute.name}' must be above 0 and at most {most:g}, not {value}")


class LaunchedServers:
    """Servers of one engine; `urls` are known at once, `start` starts them and blocks until they take requests.

    A server that ends by itself after that is started again, `launch.restarts` times; then `on_end(message)` is called,
    from another thread.
    """

    def __init__(
        self,
        program: ServerProgram | None,
        launch: Launch,
        *,
        name: str,
        model_dir: Path | None,
        dtype: Literal["float32", "bfloat16"],
        log_dir: Path | None,
        on_end: Callable[[str], None],
    ) -> None:
        if program is None:
            raise ValueError(f"'launch': {name} servers cannot be started from here; set 'url'")
        if model_dir is None:
            raise ValueError("'launch' needs 'model_dir', the directory of a model")
        self._ready_path, self._ready_s = program.ready_path, launch.ready_s
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        if log_dir is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="agentrl-servers-")
            log_dir = Path(self._scratch.name)
        device, shares = _placement(launch)
        self._program, self._model_dir, self._more = program, model_dir, launch.args
        self._servers: list[_Server] = []
        for index, gpus in enumerate(shares):
            port = _Port()
            plan = ServerLaunch(
                python=launch.python or sys.executable,
                model_dir=model_dir,
                host=_HOST,
                port=port.number,
                device=device,
                tp=launch.tp,
                dtype=launch.dtype or dtype,
                context_length=launch.context_length,
                gpu_memory=launch.gpu_memory,
            )
            environ = _environ(program.command(plan), launch, gpus)
            where = f"{name} server {index}"
            self._servers.append(
                _Server(
                    name=where,
                    argv=functools.partial(self._argv, plan),
                    environ=environ,
                    port=port,
                    log_path=log_dir / f"server-{index}.log",
                    restarts=launch.restarts,
                    on_end=on_end,
                )
            )
        self.urls = tuple(f"http://{_HOST}:{server.port.number}" for server in self._servers)

    def start(self) -> None:
        """Start all servers at once, and wait until they take requests.

        Raises `EngineError`, which quotes the end of the server's log, if one ends or takes too long.
        """
        for server in self._servers:
            server.start()
            log.info("%s is starting at port %d; its log: %s", server.name, server.port.number, server.log_path)
        end = time.monotonic() + self._ready_s
        for server in self._servers:
            server.wait_until_ready(self._ready_path, end, self._ready_s)

    def restart_from(self, directory: Path) -> None:
        """Have servers that are started again read `directory`; the one that they were started with may be gone."""
        self._model_dir = directory

    def _argv(self, plan: ServerLaunch) -> Sequence[str]:
        return (*self._program.command(attrs.evolve(plan, model_dir=self._model_dir)).argv, *self._more)

    def close(self) -> None:
        """End all servers, and what they have started; idempotent."""
        for server in self._servers:
            server.ask_to_end()
        for server in self._servers:
            server.close()
        if self._scratch is not None:
            self._scratch.cleanup()


class _Port:
    """Free port, kept from other programs until the server listens at it.

    The socket is bound but does not listen, so a server that sets SO_REUSEADDR, as all do, can bind it, too.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((_HOST, 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()


@attrs.define(kw_only=True, eq=False)
class _Server:
    """Process of one server, below a guard that ends it with this process."""

    name: str
    argv: Callable[[], Sequence[str]]
    """Returns the command line for a start."""
    environ: Mapping[str, str]
    port: _Port
    log_path: Path
    restarts: int
    on_end: Callable[[str], None]
    _guard: subprocess.Popen[bytes] | None = None
    _lifeline: IO[bytes] | None = None
    _watch: threading.Thread | None = None
    _is_ending: bool = False
    _lock: threading.Lock = attrs.field(factory=threading.Lock)
    """Guards the start of a process against `ask_to_end`, which would miss one that is just being started."""

    def start(self) -> None:
        with self._lock:
            if not self._is_ending:
                self._spawn()

    def _spawn(self) -> None:
        lifeline, own = os.pipe()
        self._lifeline = open(own, "wb", buffering=0)  # noqa: SIM115, PTH123 - closed by `ask_to_end`
        guard = [sys.executable, "-I", str(server_guard.__file__), str(lifeline), str(_END_S), *self.argv()]
        try:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.log_path, "ab", opener=_private) as file:
                self._guard = subprocess.Popen(  # noqa: S603 (what the config names)
                    guard,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=dict(self.environ),
                    pass_fds=(lifeline,),
                    start_new_session=True,
                )
        finally:
            os.close(lifeline)

    def wait_until_ready(self, path: str, end: float, limit_s: float) -> None:
        """Ask the server until it answers with status 200; then watch for its end."""
        assert self._guard is not None  # noqa: S101 (started)
        while not self._is_ready(path):
            if self._guard.poll() is not None:
                raise EngineError(self._ended())
            if time.monotonic() >= end:
                raise EngineError(
                    f"{self.name} does not take requests after launch.ready_s = {limit_s:g} s; {self._tail()}"
                )
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(_POLL_S)
        self._watch = threading.Thread(target=self._keep_up, name=f"watch {self.name}", daemon=True)
        self._watch.start()

    def ask_to_end(self) -> None:
        with self._lock:
            self._is_ending = True
            self.port.release()
            if self._lifeline is not None:
                self._lifeline.close()

    def close(self) -> None:
        """Wait until the guard has ended everything; kill the guard should it hang."""
        if self._guard is not None:
            try:
                self._guard.wait(2 * _END_S)
            except subprocess.TimeoutExpired:
                self._guard.kill()
                self._guard.wait()
        if self._watch is not None:
            self._watch.join()

    def _keep_up(self) -> None:
        """Start the server again when it ends by itself; the engine notices by itself when it is back."""
        for left in range(self.restarts, -1, -1):
            assert self._guard is not None  # noqa: S101 (started)
            self._guard.wait()
            if self._is_ending:
                return
            if left:
                log.warning("it is started again: %s", self._ended())
                assert self._lifeline is not None  # noqa: S101 (started)
                self._lifeline.close()
                try:
                    self.start()
                except OSError as error:
                    self.on_end(f"{self.name} cannot be started again: {error}")
                    return
        self.on_end(self._ended())

    def _is_ready(self, path: str) -> bool:
        connection = http.client.HTTPConnection(_HOST, self.port.number, timeout=60)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _ended(self) -> str:
        assert self._guard is not None  # noqa: S101 (started)
        code = self._guard.returncode
        how = f"signal {code - 128}" if code > 128 else f"exit code {code}"  # noqa: PLR2004 (as shells tell a signal)
        return f"{self.name} has ended with {how}; {self._tail()}"

    def _tail(self) -> str:
        """Return the end of the server's log, and its first error, for a message."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(max(0, self.log_path.stat().st_size - _TAIL_BYTES))
                lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        except OSError as error:
            return f"its log cannot be read: {error}"
        if not lines:
            return f"its log {self.log_path} is empty"
        last = lines[-_LAST_LINES:]
        # The cause is often far above the end: other processes of the server stop in turn, and say so at length.
        first = next(filter(_ERROR.search, lines), last[0])
        shown = last if first in last else [first, "…", *last]
        said = "\n".join(f"    {line[:_MOST_CHARS]}" for line in shown)
        return f"from its log {self.log_path}:\n{said}"


def _private(path: str, flags: int) -> int:
    """Open a log for its owner alone, like everything in a run's folder."""
    return os.open(path, flags, 0o600)


def _placement(launch: Launch) -> tuple[Literal["cpu", "cuda"], list[tuple[str, ...]]]:
    """Return the device, and for each server the GPUs that it sees, as `CUDA_VISIBLE_DEVICES` names them.

    Raises `ValueError` if there are too few GPUs.
    """
    visible = [] if launch.device == "cpu" else _visible_gpus()
    if launch.device == "cpu" or (launch.device == "auto" and not visible):
        if launch.gpus is not None or launch.tp > 1:
            raise ValueError("'gpus' and 'tp' are about GPUs, and this machine has none that torch can use")
        return "cpu", [()] * (launch.replicas or 1)
    chosen = range(len(visible)) if launch.gpus is None else launch.gpus
    if wrong := [number for number in chosen if not 0 <= number < len(visible)]:
        raise ValueError(f"'gpus': this machine has no GPU {wrong[0]}; torch can use {len(visible)}, counted from 0")
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"'gpus' names a GPU twice: {list(chosen)}")
    replicas = launch.replicas or max(1, len(chosen) // launch.tp)
    if replicas * launch.tp > len(chosen):
        raise ValueError(
            f"'replicas' {replicas} with 'tp' {launch.tp} needs {replicas * launch.tp} GPUs, found {len(chosen)}"
        )
    names = [visible[number] for number in chosen]
    return "cuda", [tuple(names[index * launch.tp : (index + 1) * launch.tp]) for index in range(replicas)]


def _visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, by the names that `CUDA_VISIBLE_DEVICES` gives them."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(number) for number in range(count)] if named is None else [text.strip() for text in named.split(",")]
    return names[:count]


def _environ(command: ServerCommand, launch: Launch, gpus: Sequence[str]) -> dict[str, str]:
    """Return the environment of a server: ours without secrets, what the command needs, and what the user sets."""
    environ = {**command.environ, **environment(), **launch.env}
    if command.python_path:
        folders = [*map(str, command.python_path), environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    if gpus:
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return environ
