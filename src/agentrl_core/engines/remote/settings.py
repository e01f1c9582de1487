"""Read what options of a remote engine refer to: the key, the list of servers, and the policy's vocabulary."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from agentrl_core.engines.remote.addresses import AddressFile, UrlList
from agentrl_core.engines.remote.state import MOST_TOKEN_IDS
from agentrl_core.errors import EngineError

if TYPE_CHECKING:
    from agentrl_core.engines.remote.addresses import Addresses
    from agentrl_core.engines.remote.server import RemoteServer


def vocab_size_of(model_dir: Path) -> int:
    """Return the number of token ids that the model's configuration states."""
    path = model_dir / "config.json"
    if not path.is_file():
        return MOST_TOKEN_IDS
    config = orjson.loads(path.read_bytes())
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return size if type(size) is int else MOST_TOKEN_IDS


def addresses_of(
    url: str | tuple[str, ...] | None, servers_file: Path | None, connect: Callable[[str], RemoteServer]
) -> Addresses:
    """Return the list of servers that one of the options names; raises ValueError for a wrong address."""
    urls = (url,) if isinstance(url, str) else tuple(url or ())
    if len(set(urls)) < len(urls):
        raise ValueError(f"'url' names a server twice: {', '.join(urls)}")
    if servers_file is not None:
        return AddressFile(servers_file)
    for address in urls:
        connect(address).close()  # a wrong address is told before anything starts

    async def workers(address: str) -> Sequence[str] | None:
        server = connect(address)
        try:
            return await server.control.workers()
        finally:
            server.close()

    return UrlList(urls, workers)


def authorization(variable: str | None) -> dict[str, str]:
    """Return the header with the server's key; the key never appears in messages."""
    if variable is None:
        return {}
    key = os.environ.get(variable, "").strip()
    if not key:
        raise EngineError(f"engine.api_key_env: the environment variable {variable} is empty or not set")
    if not key.isascii() or not key.isprintable():
        raise EngineError(f"engine.api_key_env: the value of {variable} has characters that an HTTP header cannot hold")
    return {"authorization": f"Bearer {key}"}
