"""Address of a MongoDB server: password from the environment, names for messages, the database of a run."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote_plus, unquote_plus

import attrs

_FORM = re.compile(
    r"(?P<scheme>mongodb(?:\+srv)?://)(?:(?P<user>[^:@/]*)(?::(?P<password>[^@/]*))?@)?"
    r"(?P<hosts>[^@/?\s]+)(?:/(?P<database>[^@?/\s]*))?(?P<options>\?\S*)?"
)
_WITH_PASSWORD = {"", "default", "scram-sha-1", "scram-sha-256", "plain"}
"""Mechanisms that need a password."""
_LONGEST_NAME = 63
"""Longest name of a database in bytes, by MongoDB's limits."""


class AddressError(ValueError):
    """The url is not that of a MongoDB server; the message does not quote it, because it may contain a password."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"'url' {fault}")  # so the registry names the option's place in the config


@attrs.frozen(kw_only=True)
class Address:
    """Parts of a MongoDB url."""

    url: str = attrs.field(repr=False)
    """Url for the driver, with the password."""
    hosts: str
    """Host and port of each server, as in the url."""
    database: str
    """Database that the url names; empty for none."""
    options: frozenset[str]
    """Names of the options that the url sets, in lower case."""
    secrets: tuple[str, ...] = attrs.field(repr=False)
    """Texts that no message may contain."""

    @classmethod
    def of(cls, url: str, *, password: str | None, password_env: str) -> Address:
        """Read a url; `password`, from the environment variable `password_env`, completes one that has only a user.

        Raises `AddressError` for any other form, and for a user without a password.
        """
        match = _FORM.fullmatch(url)
        if match is None:
            raise AddressError(
                "is not an address: expected mongodb://USER:PASSWORD@HOST:PORT/DATABASE (only the host is needed); "
                "write special characters of user and password as in any URL, such as %40 for @"
            )
        user, own = match["user"], match["password"]
        secrets = {own, unquote_plus(own)} if own else set()
        pairs = (option.partition("=") for option in re.split("[&;]", (match["options"] or "?")[1:]))
        options = {name.lower(): value for name, _, value in pairs if name}
        if user and own is None and options.get("authmechanism", "").lower() in _WITH_PASSWORD:
            if not password:
                raise AddressError(
                    f"has a user and no password, which a run's folder never keeps; set the environment variable "
                    f"{password_env}, or give the whole url again, as in store.url=mongodb://USER:PASSWORD@HOST"
                )
            own = quote_plus(password)
            secrets = {own, password}
        account = "" if user is None else f"{user}@" if own is None else f"{user}:{own}@"
        path = (
            f"/{match['database'] or ''}" if match["options"] else f"/{match['database']}" if match["database"] else ""
        )
        return cls(
            url=f"{match['scheme']}{account}{match['hosts']}{path}{match['options'] or ''}",
            hosts=match["hosts"],
            database=match["database"] or "",
            options=frozenset(options),
            secrets=tuple(sorted(filter(None, secrets), key=len, reverse=True)),
        )

    def without_secrets(self, text: str) -> str:
        """Return a text of a driver or server without the password."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def database_of(run: str) -> str:
    """Return the name of a run's database: `agentrl-` and the run's name.

    Databases are files on some servers, so their names are short, have no special characters, and may not differ by
    upper and lower case alone. A name that has to change gets a digest, so that two runs never share a database.
    """
    name = "agentrl-" + re.sub(r"[^a-z0-9_-]", "-", run.lower())
    if name == f"agentrl-{run}" and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(run.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - len(digest) - 1]}-{digest}"
