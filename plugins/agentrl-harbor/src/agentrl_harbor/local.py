"""Sandboxes on this machine without containers: Linux namespaces around a temporary folder.

A sandbox has its own processes, its own files, and without `host_network` no network. It sees this machine's programs
read-only in place of the image. `inside.build` makes it, without root rights; where this process is root, a sandbox has
other users than this machine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import shutil
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentrl_core.api.processes import call_on_thread
from agentrl_core.errors import EnvironmentLostError, ToolServerError
from agentrl_harbor.dockerfile import Steps, read_dockerfile
from agentrl_harbor.inside import calls
from agentrl_harbor.local_sandbox import PATH, Ids, Inside, LocalSandbox
from agentrl_harbor.owner import Owner, left_behind, remove_tree
from agentrl_harbor.sandbox import LOGS
from agentrl_harbor.task_config import EnvironmentConfig, resolved

if TYPE_CHECKING:
    from agentrl_harbor.task_dir import Definition, TaskDir

logger = logging.getLogger(__name__)

_PROGRAMS: Final = ("bash", "tar")
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/ssl")
"""Folders of this machine that every sandbox sees; for a link, the sandbox gets a folder that it cannot replace."""
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
_LINKS: Final = {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}
"""Links of /dev into /proc/self/fd."""
_LOCKED: Final = ("/etc/ld.so.cache", "/etc/ld.so.preload")
"""Files by which an agent would have its own code loaded into every program, also those of the verifier."""
_FILES: Final = ("ld.so.cache", "nsswitch.conf", "localtime", "protocols", "services", "mime.types")
"""Files of /etc that are copied; users and passwords are not among them."""
_USERS: Final = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_GROUPS: Final = "root:x:0:\nnogroup:x:65534:\n"
_FIRST_USER, _NUM_USERS = 0x70000000, 65_536
"""Users of the sandboxes of root: numbers that systemd's list of user ids leaves free."""
_NOBODY: Final = 65_534
_MAPS: Final = ("uid_map", "gid_map")
_TRY_S: Final = 30.0


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
        self._ids: Ids | None = None
        self._running: set[Inside] = set()

    async def start(self) -> None:
        """Make a sandbox to see whether the machine allows it; remove what killed runs have left."""
        if sys.platform != "linux":
            raise ToolServerError("provider: 'local' needs Linux; use docker or podman")
        if not calls.supported():
            raise ToolServerError(f"provider: 'local' does not know {platform.machine()}'s calls; use docker or podman")
        if missing := [name for name in _PROGRAMS if shutil.which(name, path=PATH) is None]:
            raise ToolServerError(f"provider: 'local' needs the programs {' and '.join(missing)} in {PATH}")
        for path in self._mounts:
            if not path.startswith("/") or not os.path.isdir(path):  # noqa: PTH112, ASYNC240 - once, at the start
                raise ToolServerError(f"provider: mounts: there is no folder {path}")
        for folder in left_behind(self._parent):
            remove_tree(folder)
        self._ids = _own_ids()
        self._owner = Owner(self._parent)
        try:
            sandbox = await self._made(Steps(), EnvironmentConfig())
            tried = await sandbox.run("true", timeout_s=_TRY_S, limit_bytes=1000)
            await sandbox.close()
            if tried.status != 0:
                raise EnvironmentLostError(tried.text.strip() or f"status {tried.status}")  # noqa: TRY301
        except EnvironmentLostError as error:
            self._owner.close()
            self._owner = None
            raise ToolServerError(
                f"provider: this machine makes no sandboxes of namespaces: {error} (they need user namespaces, seccomp "
                "and Linux 5.12; in a container, one that may make namespaces); use docker or podman"
            ) from error
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

    def has_network(self, definition: Definition) -> bool:  # noqa: ARG002 - of the protocol
        """Return whether sandboxes have the network of this machine."""
        return self._host_network

    async def open(self, definition: Definition) -> LocalSandbox:
        """Make a sandbox with the files that the Dockerfile copies."""
        return await self._made(read_dockerfile(definition.folder / "Dockerfile"), definition.config)

    async def close(self) -> None:
        """End all sandboxes that are left, and remove all folders."""
        for inside in tuple(self._running):
            await self._end(inside)
        if self._owner is not None:
            await call_on_thread(self._owner.close, name="agentrl-harbor")
            self._owner = None

    async def _made(self, steps: Steps, config: EnvironmentConfig) -> LocalSandbox:
        assert self._owner is not None  # noqa: S101 - `start` came before
        root = self._owner.folder / uuid.uuid4().hex[:16]
        try:
            env = {"HOME": "/root", "LANG": "C.UTF-8", "PATH": PATH, **steps.env, **resolved(config.env)}
            inside = await self._started(root, steps)
        except (OSError, ValueError) as error:
            remove_tree(root)
            raise EnvironmentLostError(f"a sandbox could not be made: {error}") from error
        except BaseException:
            remove_tree(root)
            raise
        self._running.add(inside)
        workdir = config.workdir or steps.workdir
        return LocalSandbox(root, inside, workdir, env, end=lambda: self._end(inside))

    async def _end(self, inside: Inside) -> None:
        self._running.discard(inside)
        await call_on_thread(inside.end, name="agentrl-harbor")

    async def _started(self, root: Path, steps: Steps) -> Inside:
        """Fill a sandbox's folder and start its processes."""
        starting = asyncio.create_task(call_on_thread(lambda: self._start(root, steps), name="agentrl-harbor"))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(EnvironmentLostError, OSError, ValueError):
                await call_on_thread((await starting).end, name="agentrl-harbor")
            raise

    def _start(self, root: Path, steps: Steps) -> Inside:
        assert self._ids is not None  # noqa: S101 - `start` came before
        system = [path for path in (*_SYSTEM, *self._mounts) if os.path.isdir(path)]  # noqa: PTH112
        _fill(root, steps, system)
        if self._ids.as_root:
            for folder, folders, files in os.walk(root):
                for name in (".", *folders, *files):
                    os.lchown(os.path.join(folder, name), self._ids.first_user, self._ids.first_group)  # noqa: PTH118
        job = {"root": str(root), "system": system, "locked": _LOCKED, "devices": _DEVICES}
        return Inside({**job, "host_network": self._host_network}, self._ids)


def _own_ids() -> Ids:
    """Return the users and groups that sandboxes get; raise `ToolServerError` if they would be this machine's root."""
    if os.geteuid() != 0:
        return Ids(first_user=os.geteuid(), first_group=os.getegid(), count=1, as_root=False)
    for first, count in ((_FIRST_USER, _NUM_USERS), (_NOBODY, 1)):
        if all(_has_ids(Path("/proc/self", name).read_text(encoding="ascii"), first, count) for name in _MAPS):
            return Ids(first_user=first, first_group=first, count=count, as_root=True)
    raise ToolServerError(
        "provider: 'local' does not run tasks as root, and this process is root of a user namespace that has no user "
        f"{_NOBODY}; start the run as an ordinary user, or use docker or podman"
    )


def _has_ids(mapped: str, first: int, count: int) -> bool:
    """Return whether a uid_map has a range of ids."""
    ranges = [[int(word) for word in line.split()] for line in mapped.splitlines()]
    return any(start <= first and first + count <= start + length for start, _, length in ranges)


def _fill(root: Path, steps: Steps, system: Sequence[str]) -> None:
    """Make a new root: its folders, places for what is mounted in it, and the files that the Dockerfile copies."""
    for name in ("dev/shm", "proc", "etc", "root", "home", "tmp", "var/tmp", "run", *LOGS):
        (root / name).mkdir(parents=True)
    for name in ("tmp", "var/tmp", "dev/shm"):
        (root / name).chmod(0o1777)
    (root / "etc/passwd").write_text(_USERS)
    (root / "etc/group").write_text(_GROUPS)
    (root / "etc/hosts").write_text("127.0.0.1 localhost sandbox\n")
    for name in _FILES:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(Path("/etc", name), root / "etc" / name)
    for place in system:
        (root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for place in (*_DEVICES, *_LOCKED):
        (root / place.lstrip("/")).touch()
    for name, end in _LINKS.items():
        (root / "dev" / name).symlink_to(f"/proc/self/fd{end}")
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
