"""Sandboxes on this machine without containers: Linux namespaces around a temporary folder.

A sandbox has its own processes, its own files, and without `host_network` no network. It sees this machine's programs
read-only in place of the image. util-linux makes it (`unshare`, `nsenter`, `pivot_root`), without root rights.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentrl_core.api.processes import call_on_thread
from agentrl_core.errors import EnvironmentLostError, ToolServerError
from agentrl_harbor.dockerfile import Steps, read_dockerfile
from agentrl_harbor.owner import Owner, left_behind, remove_tree
from agentrl_harbor.processes import Ended, run
from agentrl_harbor.sandbox import LOGS, parent_and_name
from agentrl_harbor.task_config import EnvironmentConfig, resolved

if TYPE_CHECKING:
    from agentrl_harbor.task_dir import Definition, TaskDir

logger = logging.getLogger(__name__)

_PROGRAMS: Final = ("unshare", "nsenter", "pivot_root", "bash", "tar")
_SCRIPT: Final = str(Path(__file__).with_name("local_root.sh"))
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/ssl")
"""Folders of this machine that every sandbox sees."""
_FILES: Final = ("ld.so.cache", "nsswitch.conf", "localtime", "protocols", "services", "mime.types")
"""Files of /etc that are copied; users and passwords are not among them."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_START_S: Final = 30.0
_USERS: Final = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_GROUPS: Final = "root:x:0:\nnogroup:x:65534:\n"


class Local:
    """Makes sandboxes of namespaces; tasks whose Dockerfile does more than this module can are refused.

    `assume_installed`: this machine has what the RUN instructions of Dockerfiles install, so they are left out.
    `mounts`: further folders of this machine that sandboxes see, read-only.
    """

    def __init__(
        self,
        *,
        host_network: bool = False,
        assume_installed: bool = False,
        mounts: Sequence[str] = (),
        parent: str | None = None,
    ) -> None:
        self._host_network, self._assume_installed = host_network, assume_installed
        self._mounts, self._parent = tuple(mounts), parent
        self._owner: Owner | None = None

    async def start(self) -> None:
        """Make a sandbox to see whether the machine allows it; remove what killed runs have left."""
        if sys.platform != "linux":
            raise ToolServerError("provider: 'local' needs Linux; use docker or podman")
        if missing := [name for name in _PROGRAMS if shutil.which(name, path=_search_path()) is None]:
            raise ToolServerError(f"provider: 'local' needs the programs {', '.join(missing)} (package util-linux)")
        for path in self._mounts:
            if not path.startswith("/") or not os.path.isdir(path):  # noqa: PTH112, ASYNC240 - once, at the start
                raise ToolServerError(f"provider: mounts: there is no folder {path}")
        for folder in left_behind(self._parent):
            remove_tree(folder)
        self._owner = Owner(self._parent)
        try:
            sandbox = await self._made(Steps(), EnvironmentConfig())
            await sandbox.close()
        except EnvironmentLostError as error:
            self._owner.close()
            self._owner = None
            raise ToolServerError(f"provider: this machine makes no sandboxes of namespaces: {error}") from error
        network = "the network of this machine" if self._host_network else "no network"
        logger.warning(
            "provider 'local': tasks run with this machine's programs instead of their images, with %s, and without "
            "limits on CPU, memory and disk space", network,
        )  # fmt: skip

    def refusal(self, task: TaskDir) -> str:
        """Return why a task cannot run here; empty if it can."""
        definitions = [task.environment, *([task.verifier_environment] if task.verifier_environment else ())]
        for definition in definitions:
            config = definition.config
            if config.docker_image:
                return f"docker_image: provider 'local' has no images ({config.docker_image})"
            if config.network == "no-network" and self._host_network:
                return "network_mode: the task allows no network, and the provider has `host_network: true`"
            steps = read_dockerfile(definition.folder / "Dockerfile")
            refused = [line for line in steps.refused if not (self._assume_installed and line[:4].upper() == "RUN ")]
            if refused:
                return (
                    f"{definition.folder}/Dockerfile: provider 'local' cannot do `{refused[0][:100]}`; use docker or "
                    "podman, or `assume_installed: true` if this machine has what RUN installs"
                )
        for name, user in (("agent", task.config.agent_user), ("verifier", task.config.verifier.user)):
            if user not in {None, "root", "0"}:
                return f"{name}.user: provider 'local' has only the user root, not {user}"
        return ""

    async def open(self, definition: Definition) -> LocalSandbox:
        """Make a sandbox with the files that the Dockerfile copies."""
        return await self._made(read_dockerfile(definition.folder / "Dockerfile"), definition.config)

    async def close(self) -> None:
        """Remove all folders."""
        if self._owner is not None:
            await call_on_thread(self._owner.close, name="agentrl-harbor")
            self._owner = None

    async def _made(self, steps: Steps, config: EnvironmentConfig) -> LocalSandbox:
        assert self._owner is not None  # noqa: S101 - `start` came before
        root = self._owner.folder / uuid.uuid4().hex[:16]
        try:
            env = {"HOME": "/root", "LANG": "C.UTF-8", "PATH": _PATH, **steps.env, **resolved(config.env)}
            await call_on_thread(lambda: _fill(root, steps), name="agentrl-harbor")
            process, inside = await self._process(root)
        except (OSError, ValueError) as error:
            remove_tree(root)
            raise EnvironmentLostError(f"a sandbox could not be made: {error}") from error
        except BaseException:
            remove_tree(root)
            raise
        return LocalSandbox(root, process, inside, config.workdir or steps.workdir, env)

    async def _process(self, root: Path) -> tuple[subprocess.Popen[bytes], int]:
        """Start the first process of a sandbox; return the process that waits for it, and its own number."""
        spaces = ["--user", "--map-root-user", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child=KILL"]
        if not self._host_network:
            spaces.append("--net")
        loopback = "" if self._host_network else sys.executable
        command = ["unshare", *spaces, "sh", _SCRIPT, str(root), loopback, *_SYSTEM, *self._mounts]
        starting = asyncio.create_task(call_on_thread(lambda: _begun(command), name="agentrl-harbor"))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(EnvironmentLostError, OSError):
                process, _ = await starting
                await _end(process)
            raise


class LocalSandbox:
    """A running sandbox of namespaces."""

    def __init__(
        self, root: Path, process: subprocess.Popen[bytes], inside: int, workdir: str, env: Mapping[str, str]
    ) -> None:
        self._root, self._process, self._inside = root, process, inside
        self._workdir, self._env = workdir, dict(env)

    async def run(
        self,
        command: str,
        *,
        timeout_s: float,
        limit_bytes: int,
        env: Mapping[str, str] | None = None,
        user: str | None = None,  # noqa: ARG002 - of the protocol: tasks with other users than root are refused
        workdir: str | None = None,
    ) -> Ended:
        """Run a command by bash; at its deadline its process group is killed."""
        words = ["sh", "-c", 'cd -- "$0" && exec bash -c "$1"', workdir or self._workdir, command]
        return await self._inside_run(words, timeout_s=timeout_s, limit_bytes=limit_bytes, env=env)

    async def put(self, archive: bytes, folder: str) -> None:
        """Unpack a tar archive in a folder, which is made."""
        # By a process of the sandbox: links that the agent made then lead nowhere else.
        words = ["sh", "-c", 'mkdir -p "$0" && tar -xf - -C "$0"', folder]
        ended = await self._inside_run(words, timeout_s=60, limit_bytes=1000, stdin=archive)
        if ended.status != 0:
            raise EnvironmentLostError(f"files could not be copied to {folder}: {ended.text.strip()[:300]}")

    async def get(self, path: str, *, limit_bytes: int) -> bytes | None:
        """Return a file or folder as tar archive."""
        folder, name = parent_and_name(path)
        words = ["tar", "-cf", "-", "-C", folder, "--", name]
        ended = await self._inside_run(words, timeout_s=60, limit_bytes=limit_bytes, with_errors=False)
        return ended.output if ended.status == 0 else None

    async def close(self) -> None:
        """End all processes, and remove the folder."""
        await _end(self._process)
        await call_on_thread(lambda: remove_tree(self._root), name="agentrl-harbor")

    async def _inside_run(
        self, words: Sequence[str], *, timeout_s: float, limit_bytes: int, env: Mapping[str, str] | None = None,
        stdin: bytes = b"", with_errors: bool = True,
    ) -> Ended:  # fmt: skip
        nsenter = shutil.which("nsenter", path=_search_path()) or "nsenter"
        spaces = ["--user", "--mount", "--pid", "--ipc", "--uts", "--net", "--root", "--wd", "--preserve-credentials"]
        ended = await run(
            [nsenter, "--target", str(self._inside), *spaces, "--", *words],
            timeout_s=timeout_s,
            limit_bytes=limit_bytes,
            stdin=stdin,
            env={**self._env, **(env or {})},
            with_errors=with_errors,
        )
        if ended.status != 0 and self._has_ended():
            raise EnvironmentLostError("the sandbox has ended")
        return ended

    def _has_ended(self) -> bool:
        return self._process.poll() is not None or not Path(f"/proc/{self._inside}").exists()


def _fill(root: Path, steps: Steps) -> None:
    """Make the folders of a new root, with the files that the Dockerfile copies."""
    for name in ("dev/shm", "proc", "etc", "root", "home", "tmp", "var/tmp", "run", *LOGS):
        (root / name).mkdir(parents=True)
    for name in ("tmp", "var/tmp", "dev/shm"):
        (root / name).chmod(0o1777)
    (root / "etc/passwd").write_text(_USERS)
    (root / "etc/group").write_text(_GROUPS)
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    for name in _FILES:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(Path("/etc", name), root / "etc" / name)
    for folder in steps.folders:
        _below(root, folder).mkdir(parents=True, exist_ok=True)
    for source, place in steps.copies:
        target = _below(root, place)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)


def _below(root: Path, place: str) -> Path:
    """Return the path below a new root; ValueError if one of this machine's folders lies there, or a link leads out."""
    target = root / place.lstrip("/")
    if any(f"{place}/".startswith(f"{path}/") for path in _SYSTEM):
        raise ValueError(f"the Dockerfile writes to {place}, which is this machine's own and read-only")
    if not target.parent.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"the Dockerfile's {place} leads out of the sandbox")
    return target


def _begun(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start a sandbox and wait until it is ready; return its outer process, and the number of its first one."""
    process = subprocess.Popen(  # noqa: S603 - unshare
        command,
        # The sandbox ends when its standard input does: even if this process is killed.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": _search_path()},
        start_new_session=True,
    )
    timer = threading.Timer(_START_S, process.kill)
    timer.start()
    try:
        assert process.stdout is not None  # noqa: S101 - a pipe
        said = process.stdout.readline().decode("utf-8", "replace").strip()
        if said != "ready":
            raise EnvironmentLostError(said or f"no word from unshare within {_START_S:g} s")  # noqa: TRY301
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii")
        return process, int(children.split()[0])
    except BaseException:
        _kill(process)
        raise
    finally:
        timer.cancel()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a sandbox: `--kill-child` ends its first process, and the kernel all others with that."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


async def _end(process: subprocess.Popen[bytes]) -> None:
    await call_on_thread(lambda: _kill(process), name="agentrl-harbor")


def _search_path() -> str:
    """Return where to look for util-linux's programs; `pivot_root` is in /sbin, which users' PATH often lacks."""
    return f"{os.environ.get('PATH', os.defpath)}:{_PATH}"
