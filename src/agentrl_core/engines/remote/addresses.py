"""Addresses of an engine's servers: a fixed list, a file that a launcher keeps up to date, or a router's workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.errors import EngineError


class Addresses(Protocol):
    """List of servers."""

    name: str
    """Place of the list, for messages."""
    may_change: bool
    """Whether it is read again while the engine runs; servers that do not answer then join later."""

    async def read(self) -> Sequence[str]:
        """Return the addresses, each once, in order; `EngineError` if there are none, or the list cannot be read."""
        ...


class AddressFile:
    """File with one address per line; empty lines and what follows a `#` are ignored."""

    may_change = True

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self.name = f"engine.servers_file {self._path}"

    async def read(self) -> Sequence[str]:
        """Read the file on a thread: it may be on a network file system."""
        try:
            text = await call_on_thread(lambda: self._path.read_text(encoding="utf-8"), name="servers-file")
        except (OSError, UnicodeDecodeError) as error:
            raise EngineError(f"{self.name}: cannot be read: {error}") from error
        lines = ((number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1))
        found: dict[str, None] = {}
        for number, line in lines:
            if not line:
                continue
            if not line.startswith(("http://", "https://")) or len(line.split()) > 1:
                raise EngineError(
                    f"{self.name}:{number}: expected an address such as http://host:port, found {line!r:.80}"
                )
            found[line.rstrip("/")] = None
        if not found:
            raise EngineError(f"{self.name}: names no server; write one address per line")
        return list(found)


class UrlList:
    """Addresses from the config. Routers among them are asked for their workers, again and again."""

    def __init__(self, urls: Sequence[str], workers: Callable[[str], Awaitable[Sequence[str] | None]]) -> None:
        self._urls = tuple(url.rstrip("/") for url in urls)
        self._workers = workers
        self.name = "engine.url"
        self.may_change = False
        """Becomes true when an address is found to be a router's."""
        self._is_router: dict[str, bool] = {}

    async def read(self) -> Sequence[str]:
        """Ask routers for their workers."""
        found: dict[str, None] = {}
        for url in self._urls:
            if self._is_router.get(url, True):
                workers = await self._workers(url)
                if workers is None and self._is_router.get(url):
                    raise EngineError(f"{url}: the router no longer lists its workers")
                self._is_router[url] = workers is not None
                if workers is not None:
                    self.may_change = True
                    if not workers:
                        raise EngineError(f"{url}: the router has no workers; start servers behind it")
                    found |= dict.fromkeys(worker.rstrip("/") for worker in workers)
                    continue
            found[url] = None
        return list(found)
