"""Choose the HTTP proxy for a server: from the config's option `proxy`, else from HTTPS_PROXY and its relatives."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import urllib.request
from urllib.parse import unquote, urlsplit

import attrs

DIRECT = "direct"
"""Value of the option for no proxy at all."""


@attrs.frozen(kw_only=True)
class Proxy:
    """An HTTP proxy and its credentials."""

    url: str
    """Address without user and password."""
    user: str | None = None
    password: str = attrs.field(default="", repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """Headers for the proxy alone: sent with CONNECT, or with the request that the proxy forwards."""
        if self.user is None:
            return {}
        credentials = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Proxy-Authorization": f"Basic {credentials}"}


FORMS = "http(s)://host:port of a proxy, without user or password (HTTPS_PROXY may have them), or direct for none"
"""Accepted values of the option. It has no place for a password, because a config is stored with the run."""


def is_option(value: str) -> bool:
    """Return whether a value of the option has one of the forms in `FORMS`."""
    found = _parsed(value)
    return value == DIRECT or (found is not None and found.user is None)


def proxy_of(url: str, option: str | None) -> Proxy | None:
    """Return the proxy to a server, None for none; ValueError if its address cannot be used.

    Without an `option`, `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` decide, in upper or lower case, but
    servers on this machine never go through a proxy.
    """
    if option is not None:
        if not is_option(option):
            raise ValueError(f"proxy: expected {FORMS}")
        return _parsed(option)
    parts = urlsplit(url)
    host = parts.hostname or ""
    named = urllib.request.getproxies_environment()
    variable = parts.scheme if named.get(parts.scheme) else "all"
    value = named.get(variable)
    if not value or is_loopback(host) or _is_exempt(host, parts.port, named.get("no", "")):
        return None
    found = _parsed(value if "://" in value else f"http://{value}")
    if found is None:
        raise ValueError(
            f"{variable.upper()}_PROXY in the environment is not the address of an HTTP proxy; expected "
            "http(s)://host:port (SOCKS proxies are not supported)"
        )
    return found


def is_loopback(host: str) -> bool:
    """Return whether a host or address is this machine's loopback, which no other machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_exempt(host: str, port: int | None, no_proxy: str) -> bool:
    """Return whether `NO_PROXY` names a host: by name, domain, host and port, or a network of addresses."""
    for entry in filter(None, map(str.strip, no_proxy.lower().split(","))):
        if entry == "*" or (port is not None and entry == f"{host}:{port}"):
            return True
        # Clusters exempt networks, which the standard library's `proxy_bypass` does not understand.
        if "/" in entry:
            with contextlib.suppress(ValueError):
                if ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False):
                    return True
            continue
        domain = entry.removeprefix("*").removeprefix(".")
        if domain and (host == domain or host.endswith(f".{domain}")):
            return True
    return False


def _parsed(value: str) -> Proxy | None:
    """Return the proxy with this address; None if it is not an HTTP proxy's."""
    parts = urlsplit(value)
    try:
        usable = parts.scheme in {"http", "https"} and parts.hostname and (parts.port or True)
    except ValueError:
        usable = False
    if not usable or parts.path.strip("/") or parts.query or parts.fragment:
        return None
    place = parts.netloc.rpartition("@")[2]
    user = None if parts.username is None else unquote(parts.username)
    return Proxy(url=f"{parts.scheme}://{place}", user=user, password=unquote(parts.password or ""))
