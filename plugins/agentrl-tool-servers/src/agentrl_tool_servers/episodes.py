"""State of episodes: which episode a call belongs to, and a folder for each, removed when it is over."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
from mcp.server.mcpserver.exceptions import ToolError

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

META: Final = "agentrl/episode"
"""Key of the episode's id in a call's `_meta`."""
HEADER: Final = "x-agentrl-episode"
_PREFIX: Final = "agentrl-tool-servers-"
_LOCK: Final = "lock"


def episode_of(context: Context[Any, Any]) -> str:
    """Return the id of the episode that a call belongs to: from `_meta`, the header, or `?episode=` of the URL.

    Empty if the call names none, as from a client that knows nothing of episodes.
    """
    request = context.request_context
    found = (request.meta or {}).get(META)
    if not found and request.request is not None:  # over HTTP
        found = request.request.headers.get(HEADER) or request.request.query_params.get("episode")
    return found if isinstance(found, str) else ""


@attrs.define
class _Episode:
    path: Path
    used_at: float
    lock: threading.Lock = attrs.field(factory=threading.Lock)
    removed: bool = False


class EpisodeFolders:
    """A folder per episode, filled when it is first used and removed `idle_s` after its last use, or at the end.

    `fill` gets the path of the new, empty folder. MCP does not tell a server that an episode is over, so idleness has
    to; folders of servers that were killed are removed when the next one starts.
    """

    def __init__(
        self,
        fill: Callable[[Path], None],
        *,
        idle_s: float,
        parent: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fill, self._idle_s, self._clock = fill, idle_s, clock
        parent = parent or tempfile.gettempdir()
        _remove_left_behind(Path(parent))
        # The lock says that this process is alive: the kernel releases it even if the process is killed. The folder
        # gets its name once the lock is taken, else a server that starts meanwhile could remove it as left behind.
        begun = Path(tempfile.mkdtemp(prefix=f"begun-{_PREFIX}", dir=parent))
        descriptor = os.open(begun / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._root = begun.rename(begun.with_name(begun.name.removeprefix("begun-")))
        self._lock = threading.Lock()
        self._episodes: dict[str, _Episode] = {}
        self.close: Callable[[], Any] = weakref.finalize(self, _remove, self._root, descriptor, os.getpid())
        """Remove everything; also runs when the object or the process ends."""

    @contextlib.contextmanager
    def use(self, episode_id: str) -> Iterator[Path]:
        """Yield the folder of an episode, for one call at a time.

        Raises ToolError if it was removed, because an empty folder in its place would be a wrong state.
        """
        self._remove_idle()
        key = hashlib.sha256(episode_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        with self._lock:
            episode = self._episodes.setdefault(key, _Episode(self._root / key, self._clock()))
            episode.used_at = self._clock()
        with episode.lock:
            if episode.removed:
                raise ToolError(f"the files of this episode were removed after {self._idle_s:.0f} s without a call")
            if not episode.path.exists():
                self._new(episode.path)
            yield episode.path
            episode.used_at = self._clock()

    def _new(self, path: Path) -> None:
        """Fill a folder under another name first, so that a copy that fails half-way is not taken for whole."""
        begun = path.with_suffix(".begun")
        shutil.rmtree(begun, ignore_errors=True)
        begun.mkdir(mode=0o700)
        self._fill(begun)
        begun.rename(path)

    def _remove_idle(self) -> None:
        before = self._clock() - self._idle_s
        with self._lock:
            idle = [episode for episode in self._episodes.values() if not episode.removed and episode.used_at < before]
        for episode in idle:
            # A lock that is taken belongs to a running call: the episode is not idle.
            if episode.lock.acquire(blocking=False):
                try:
                    if episode.used_at < before:
                        episode.removed = True
                        shutil.rmtree(episode.path, ignore_errors=True)
                finally:
                    episode.lock.release()


def _remove(root: Path, descriptor: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a fork, which inherits the finalizer
        shutil.rmtree(root, ignore_errors=True)
        os.close(descriptor)


def _remove_left_behind(parent: Path) -> None:
    """Remove the folders of servers that ended without doing so."""
    for root in parent.glob(f"{_PREFIX}*"):
        try:
            descriptor = os.open(root / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # another user's, or one that is just being made or removed
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(root, ignore_errors=True)
        except BlockingIOError:
            pass  # its server runs
        finally:
            os.close(descriptor)
