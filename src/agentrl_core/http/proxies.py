"""Which proxy leads to a server: the one that its option names, else the environment's."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import urllib.request
from urllib.parse import unquote, urlsplit

import attrs

DIRECT = "direct"
"""The option's value for no proxy at all."""


@attrs.frozen(kw_only=True)
class Proxy:
    """A proxy and what it is told about who asks."""

    url: str
    """Without user and password."""
    user: str | None = None
    password: str = attrs.field(default="", repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """Headers for the proxy alone: with CONNECT, or beside the request that it passes on."""
        if self.user is None:
            return {}
        credentials = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Proxy-Authorization": f"Basic {credentials}"}


OPTION = "http(s)://host:port of a proxy, without user or password (HTTPS_PROXY may have them), or direct for none"
"""Values of the option. A config is stored with the run, so it holds no password."""


def is_option(value: str) -> bool:
    """Whether the option is as `OPTION` says."""
    found = _parsed(value)
    return value == DIRECT or (found is not None and found.user is None)


def proxy_of(url: str, option: str | None) -> Proxy | None:
    """Return the proxy to a server; ValueError where its address is none that can be used.

    Without an `option`, `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` decide, in either case, but this
    machine's own servers are asked directly.
    """
    if option is not None:
        if not is_option(option):
            raise ValueError(f"proxy: expected {OPTION}")
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
            f"{variable.upper()}_PROXY in the environment is no address of an HTTP proxy, http(s)://host:port (SOCKS "
            "proxies cannot be used)"
        )
    return found


def is_loopback(host: str) -> bool:
    """Whether a host or address is this machine's own, reached by nobody else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_exempt(host: str, port: int | None, no_proxy: str) -> bool:
    """Whether `NO_PROXY` names a host: by its name, a domain of it, with a port, or by a network of addresses."""
    for entry in filter(None, map(str.strip, no_proxy.lower().split(","))):
        if entry == "*" or (port is not None and entry == f"{host}:{port}"):
            return True
        if "/" in entry:  # the standard library's own reading knows no networks, which clusters exempt
            with contextlib.suppress(ValueError):
                if ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False):
                    return True
            continue
        domain = entry.removeprefix("*").removeprefix(".")
        if domain and (host == domain or host.endswith(f".{domain}")):
            return True
    return False


def _parsed(value: str) -> Proxy | None:
    """Read the address of a proxy; None where it is none."""
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
