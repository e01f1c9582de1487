"""The TLS context of the process, which all clients of its own share."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_core.errors import ConfigError

if TYPE_CHECKING:
    import ssl

_OF_REQUESTS = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables of requests and curl, which people set for all of their programs: a file, or a directory."""


@functools.cache
def ssl_context() -> ssl.SSLContext:
    """Return the context; reading the CA certificates takes about 45 ms.

    `SSL_CERT_FILE` and `SSL_CERT_DIR` name other certificates than the system's, without them `REQUESTS_CA_BUNDLE` and
    `CURL_CA_BUNDLE`. `ConfigError` where the one that is set names nothing that can be read.
    """
    import ssl

    import httpx2

    variable = next((name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", *_OF_REQUESTS) if os.environ.get(name)), None)
    if variable is None:
        return httpx2.create_ssl_context()
    path = Path(os.environ[variable])
    if not path.exists():  # OpenSSL takes a missing directory for an empty one
        raise ConfigError(f"{variable}: there is no {path}; name a file or a directory of CA certificates")
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise ConfigError(f"{variable}: {path} holds no CA certificates that can be read: {error}") from error
