"""Read, create and check the admin key, which is needed to open and reward online sessions."""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from typing import TYPE_CHECKING

from agentrl_core.concurrency.secrecy import withhold
from agentrl_core.errors import ConfigError, RequestError, RunError
from agentrl_core.gateway.sessions import digest_of, key_of
from agentrl_core.http.proxies import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LEAST_KEY = 16
"""Least number of characters of a key that a user or an agent chooses."""


class Admin:
    """Checks requests for the admin key, of which only the digest is kept; without a key, refuses all."""

    def __init__(self, key: str | None) -> None:
        self._digest = None if key is None else digest_of(key)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise `RequestError` (401 or 403) if a request lacks the admin key."""
        key = key_of(headers)
        if key is None:
            raise RequestError(401, "invalid_api_key", "this URL needs the admin key; send it as Bearer or x-api-key")
        if not self.has(key):
            raise RequestError(403, "not_admin", "this URL needs the admin key; see gateway.admin_key_env")

    def has(self, key: str) -> bool:
        """Whether `key` is the admin key."""
        return self._digest is not None and hmac.compare_digest(digest_of(key), self._digest)


def key_from_environment(variable: str) -> str | None:
    """Return the admin key that the user set in `variable`, None without one, and hide the variable from agents.

    `ConfigError` if the key is short enough to be guessed.
    """
    # Agents run as child processes and would inherit the variable.
    withhold(variable)
    key = os.environ.get(variable)
    if key is not None and len(key) < LEAST_KEY:
        raise ConfigError(
            f"the environment variable {variable} holds an admin key of {len(key)} characters; expected at least "
            f"{LEAST_KEY}; create one with `openssl rand -hex 32`, or unset the variable and the run creates one"
        )
    return key


def make_key(path: Path) -> str:
    """Create a key for this run and write it to `path`, readable by its user only; `RunError` if it cannot."""
    key = secrets.token_urlsafe(32)
    try:
        # O_EXCL below refuses an existing file: one with wider permissions, or a link, would expose the key.
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(key)
    except OSError as error:
        raise RunError(f"cannot write the admin key to {path}: {error.strerror}; make the folder writable") from error
    return key


def shared_key(path: Path) -> str:
    """Return the key in `path`, which another process of the run has made, or make one; `RunError` if neither works.

    Servers of one run on one machine share the key, and a server that starts again keeps it, so that samplers need not
    read it anew.
    """
    if (found := read_key(path)) is not None:
        return found
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    key = make_key(draft)
    try:
        # A link appears with its whole content, and fails if another server was faster.
        path.hardlink_to(draft)
    except FileExistsError:
        return read_key(path) or key
    except OSError as error:
        raise RunError(f"cannot write the admin key to {path}: {error.strerror}; make the folder writable") from error
    finally:
        draft.unlink(missing_ok=True)
    return key


def read_key(path: Path) -> str | None:
    """Return the key in `path`; None if there is none, or other users could have read or written it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            return None
        key = file.read().strip()
    return key if len(key) >= LEAST_KEY else None


def exposed(host: str, variable: str) -> str | None:
    """Return an error message if other machines can reach `host` and the user chose no admin key; else None."""
    if is_loopback(host) or os.environ.get(variable):
        return None
    return (
        f"{host} can be reached from other machines: choose an admin key for it in the environment variable {variable} "
        f"(`export {variable}=$(openssl rand -hex 32)`), or listen on 127.0.0.1"
    )
