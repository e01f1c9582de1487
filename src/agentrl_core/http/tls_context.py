"""The TLS context that agentrl's own HTTP clients share, with the CA certificates that the environment names."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_core.errors import ConfigError

if TYPE_CHECKING:
    import ssl

_OF_REQUESTS = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""CA variables of requests and curl (a file or a directory), which people set for all their programs."""


@functools.cache
def ssl_context() -> ssl.SSLContext:
    """Return the shared context; the first call takes about 45 ms to read the CA certificates.

    `SSL_CERT_FILE` and `SSL_CERT_DIR` name other certificates than the system's; if neither is set,
    `REQUESTS_CA_BUNDLE` and `CURL_CA_BUNDLE` do. Raises `ConfigError` if the one that is set names nothing readable.
    """
    import ssl

    import httpx2

    # The order decides: OpenSSL's own variables before those of other programs.
    variable = next((name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", *_OF_REQUESTS) if os.environ.get(name)), None)
    if variable is None:
        return httpx2.create_ssl_context()
    path = Path(os.environ[variable])
    # OpenSSL treats a missing directory like an empty one.
    if not path.exists():
        raise ConfigError(f"{variable}: {path} does not exist; name a file or a directory of CA certificates")
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise ConfigError(f"{variable}: {path} holds no CA certificates that can be read: {error}") from error
