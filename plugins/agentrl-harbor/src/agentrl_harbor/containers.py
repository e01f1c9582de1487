"""Sandboxes in containers of Docker or Podman, by their command line."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from agentrl_core.errors import EnvironmentLostError, ToolServerError
from agentrl_harbor.owner import Owner, is_alive
from agentrl_harbor.processes import Ended, run
from agentrl_harbor.sandbox import FOLDERS, LOGS, UnusableError
from agentrl_harbor.task_config import resolved

if TYPE_CHECKING:
    from agentrl_harbor.task_dir import Definition, TaskDir

_HOST: Final = "agentrl.harbor.host"
_OWNER: Final = "agentrl.harbor.owner"
"""Labels of our containers: the machine, and the folder whose lock says that their process lives."""
_QUICK_S: Final = 60.0
"""Deadline of commands that only ask or remove."""
_TEXT_BYTES: Final = 20_000
_GONE: Final = ("no such container", "is not running", "cannot connect", "no container with name")


class Containers:
    """Makes sandboxes by `docker` or `podman`; images are built once for each content of a task's environment."""

    def __init__(self, program: str, *, start_timeout_s: float = 120.0) -> None:
        self._program, self._start_timeout_s = program, start_timeout_s
        self._owner: Owner | None = None
        self._building: dict[str, asyncio.Lock] = {}

    async def start(self) -> None:
        """Check that the engine answers, and remove containers of runs that were killed."""
        try:
            ended = await self.command("ps", "--quiet")
        except FileNotFoundError as error:
            raise ToolServerError(f"provider: there is no program '{self._program}' on PATH") from error
        if ended.status != 0:
            raise ToolServerError(f"provider: {self._program} does not answer: {_last_line(ended)}")
        await self._remove_left_behind()
        self._owner = Owner()

    def refusal(self, task: TaskDir) -> str:  # noqa: ARG002 - of the protocol
        """Return nothing: containers run every task that can be read; `storage_mb` is not enforced, as in Harbor."""
        return ""

    def has_network(self, definition: Definition) -> bool:
        """Return whether the environment's containers have a network."""
        return definition.config.network != "no-network"

    async def open(self, definition: Definition) -> Container:
        """Run a container of the environment's image, which is built or loaded first."""
        assert self._owner is not None  # noqa: S101 - `start` came before
        config = definition.config
        image = config.docker_image or await self._built(definition)
        name = f"agentrl-harbor-{uuid.uuid4().hex[:16]}"
        container = Container(self, name, config.workdir)
        options = ["--detach", "--init", "--name", name]
        options += ["--label", f"{_HOST}={socket.gethostname()}", "--label", f"{_OWNER}={self._owner.folder}"]
        if config.network == "no-network":
            options += ["--network", "none"]
        if config.cpus is not None:
            options += ["--cpus", f"{config.cpus:g}"]
        if config.memory_mb is not None:
            options += ["--memory", f"{config.memory_mb}m", "--memory-swap", f"{config.memory_mb}m"]
        try:
            with _env_file(resolved(config.env)) as given:
                # As in Harbor, the image keeps its entry point and gets a command that only waits.
                ended = await self.command(
                    "run", *options, *given, image, "sh", "-c", "sleep infinity", timeout_s=self._start_timeout_s
                )
        except BaseException as error:
            await asyncio.shield(container.close())
            if isinstance(error, ValueError):
                raise EnvironmentLostError(str(error)) from error
            raise
        if ended.status == 0:
            folders = " ".join(f"/{name}" for name in LOGS)
            make = f"mkdir -p {folders} && chmod 777 {folders}"
            ended = await self.command("exec", "--user", "root", name, "sh", "-c", make)
        if ended.status != 0:
            await container.close()
            raise EnvironmentLostError(f"{self._program} run failed for {image}: {_last_line(ended)}")
        return container

    async def close(self) -> None:
        """Remove this process's containers that are left."""
        if self._owner is not None:
            await self._remove([f"label={_OWNER}={self._owner.folder}"], lambda _: True)
            self._owner.close()

    async def command(
        self, *arguments: str, timeout_s: float = _QUICK_S, limit_bytes: int = _TEXT_BYTES, stdin: bytes = b"",
        with_errors: bool = True,
    ) -> Ended:  # fmt: skip
        """Run the program with arguments."""
        return await run(
            [self._program, *arguments],
            timeout_s=timeout_s,
            limit_bytes=limit_bytes,
            stdin=stdin,
            with_errors=with_errors,
        )

    async def _built(self, definition: Definition) -> str:
        """Return the image of a folder with a Dockerfile; equal content is built once, even by episodes at once."""
        image = f"agentrl-harbor:{_digest(definition.folder)}"
        async with self._building.setdefault(image, asyncio.Lock()):
            found = await self.command("image", "inspect", "--format", "{{.Id}}", image)
            if found.status != 0:
                timeout_s = definition.config.build_timeout_s
                folder = str(definition.folder)
                ended = await self.command("build", "--quiet", "--tag", image, folder, timeout_s=timeout_s)
                if ended.status is None:
                    raise EnvironmentLostError(f"{folder}: the image was not built within {timeout_s:g} s")
                if ended.status != 0:
                    raise EnvironmentLostError(f"{folder}: the image could not be built: {_last_line(ended)}")
        return image

    async def _remove_left_behind(self) -> None:
        await self._remove([f"label={_HOST}={socket.gethostname()}"], lambda owner: not is_alive(Path(owner)))

    async def _remove(self, filters: list[str], is_ours: Callable[[str], bool]) -> None:
        given = [part for item in filters for part in ("--filter", item)]
        listed = await self.command("ps", "--all", "--quiet", *given)
        for container in listed.text.split() if listed.status == 0 else ():
            label = '{{index .Config.Labels "' + _OWNER + '"}}'
            owner = await self.command("inspect", "--format", label, container)
            if owner.status == 0 and is_ours(owner.text.strip()):
                await self.command("rm", "--force", "--volumes", container)


class Container:
    """A running container."""

    def __init__(self, engine: Containers, name: str, workdir: str | None) -> None:
        self._engine, self._name, self._workdir = engine, name, workdir

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        limit_bytes: int,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        workdir: str | None = None,
    ) -> Ended:
        """Run a command by bash; at its deadline its process group is killed in the container."""
        marker = f"/tmp/.agentrl-{uuid.uuid4().hex}"  # noqa: S108 - in the container
        options = [] if user is None else ["--user", user]
        if directory := workdir or self._workdir:
            options += ["--workdir", directory]
        with _env_file(env or {}) as given:
            # The shell that `exec` starts leads a process group of its own; its number is the way to end it.
            ended = await self._engine.command(
                "exec", *options, *given, self._name,
                "sh", "-c", 'echo $$ > "$0" && exec bash -c "$1"', marker, command,
                timeout_s=timeout_s, limit_bytes=limit_bytes,
            )  # fmt: skip
        if ended.status is None:
            kill = 'kill -9 -"$(cat "$0")"; rm -f "$0"'
            await self._engine.command("exec", "--user", "root", self._name, "sh", "-c", kill, marker)
        if ended.status != 0 and await self._was_started_again(ended):
            note = b"[all processes of the environment had ended; it was started again]\n"
            return attrs.evolve(ended, output=ended.output + note)
        return ended

    async def put(self, archive: bytes, folder: str) -> None:
        """Unpack a tar archive in a folder, which is made."""
        ended = await self._engine.command("exec", "--user", "root", self._name, "mkdir", "-p", folder)
        if ended.status == 0:
            ended = await self._engine.command("cp", "-", f"{self._name}:{folder}", stdin=archive)
        if ended.status != 0:
            await self._start_again()
            raise UnusableError(f"files could not be copied to {folder}: {_last_line(ended)}")

    async def get(self, path: str, *, limit_bytes: int) -> bytes | None:
        """Return a file or folder as tar archive."""
        ended = await self._engine.command(
            "cp", f"{self._name}:{path}", "-", limit_bytes=limit_bytes, with_errors=False
        )
        if ended.status != 0:
            await self._start_again()
            return None
        return ended.output

    async def renew(self, folders: Sequence[str], *, keep_processes: bool) -> None:
        """Restart the container, which ends all processes but those of its entry point, and empty folders."""
        if keep_processes:
            await self._start_again()
        else:
            ended = await self._engine.command("restart", "-t", "0", self._name)
            if ended.status != 0:
                raise EnvironmentLostError(f"the container {self._name} is gone: {_last_line(ended)}")
        make = [f"rm -rf {name} && mkdir -p {name} && chmod {FOLDERS[name]} {name}" for name in folders]
        if make:
            ended = await self._engine.command("exec", "--user", "root", self._name, "sh", "-c", " && ".join(make))
            if ended.status != 0:
                await self._start_again()
                raise UnusableError(f"folders could not be made anew: {_last_line(ended)}")

    async def close(self) -> None:
        """Remove the container."""
        await self._engine.command("rm", "--force", "--volumes", self._name)

    async def _was_started_again(self, ended: Ended) -> bool:
        """Return whether a command failed because the container had stopped; its own output may say the same."""
        seems_gone = ended.status is None or any(words in ended.text.lower() for words in _GONE)
        return seems_gone and await self._start_again()

    async def _start_again(self) -> bool:
        """Start the container if it has stopped, as an agent's `kill` can do; return whether it had.

        Raises `EnvironmentLostError` if it is gone.
        """
        state = await self._engine.command("inspect", "--format", "{{.State.Running}}", self._name)
        if state.status == 0 and state.text.strip() == "true":
            return False
        started = state if state.status != 0 else await self._engine.command("start", self._name)
        if started.status != 0:
            raise EnvironmentLostError(f"the container {self._name} is gone: {_last_line(started)}")
        return True


@contextlib.contextmanager
def _env_file(env: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the options that set variables from a file: the command line would show their values to all users."""
    if not env:
        yield []
        return
    for name, value in env.items():
        if "\n" in value or "\r" in value:
            raise ValueError(f"the variable {name} has several lines, which a container's env-file cannot hold")
    with tempfile.NamedTemporaryFile("w", prefix="agentrl-env-", encoding="utf-8") as file:
        file.write("".join(f"{name}={value}\n" for name, value in env.items()))
        file.flush()
        yield ["--env-file", file.name]


def _digest(folder: Path) -> str:
    """Return a digest of all files of a folder, with their names and modes."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            head = f"{path.relative_to(folder).as_posix()}\0{path.stat().st_mode & 0o777:o}\0{path.stat().st_size}\0"
            digest.update(head.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def _last_line(ended: Ended) -> str:
    if ended.status is None:
        return "no answer in time"
    lines = ended.text.strip().splitlines()
    return lines[-1][:500] if lines else f"exit code {ended.status}"
