"""The key of those who may open sessions: from the environment, or made for one run."""

from __future__ import annotations

import hmac
import os
import secrets
from typing import TYPE_CHECKING

from agentrl_core.concurrency.secrecy import withhold
from agentrl_core.errors import ConfigError, RequestError, RunError
from agentrl_core.gateway.sessions import digest_of, key_of
from agentrl_core.http.proxies import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LEAST_KEY = 16
"""Characters of a key that a person may choose."""


class Admin:
    """Knows the admin key by its digest; without one, nobody is admin."""

    def __init__(self, key: str | None) -> None:
        self._digest = None if key is None else digest_of(key)

    def check(self, headers: Mapping[str, str]) -> None:
        """Refuse a request without the key."""
        key = key_of(headers)
        if key is None:
            raise RequestError(401, "invalid_api_key", "send the admin key, as Bearer or x-api-key")
        if not self.has(key):
            raise RequestError(403, "not_admin", "this takes the admin key; see gateway.admin_key_env")

    def has(self, key: str) -> bool:
        """Whether `key` is the admin key."""
        return self._digest is not None and hmac.compare_digest(digest_of(key), self._digest)


def key_from_environment(variable: str) -> str | None:
    """Return the admin key that the user chose, which goes to no agent; `ConfigError` for one that can be guessed."""
    withhold(variable)
    key = os.environ.get(variable)
    if key is not None and len(key) < LEAST_KEY:
        raise ConfigError(
            f"the environment variable {variable} holds an admin key of {len(key)} characters; expected at least "
            f"{LEAST_KEY}, `openssl rand -hex 32` for one; unset it to have one made"
        )
    return key


def make_key(path: Path) -> str:
    """Make a key for this run, and write it where only its user can read it."""
    key = secrets.token_urlsafe(32)
    try:
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(key)
    except OSError as error:
        raise RunError(f"cannot write the admin key to {path}: {error.strerror}; make the folder writable") from error
    return key


def exposed(host: str, variable: str) -> str | None:
    """Say what is wrong with listening on `host` without a chosen admin key; None where nothing is."""
    if is_loopback(host) or os.environ.get(variable):
        return None
    return (
        f"{host} can be reached from other machines: choose an admin key for it in the environment variable {variable} "
        f"(`export {variable}=$(openssl rand -hex 32)`), or listen on 127.0.0.1"
    )
