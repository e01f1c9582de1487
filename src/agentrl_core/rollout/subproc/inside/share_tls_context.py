"""Patch httpx and httpx2, so that all clients of a process share one TLS context: building one takes about 50 ms.

httpx and httpx2 read the CA certificates anew for every client, and so does every SDK that builds one of their clients.
Only the default is shared: a client that asks for a certificate, a CA bundle or no verification gets its own context.
The public `create_ssl_context` is not patched, because its callers may change the context that they get.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import threading
from typing import Any, Callable, Iterator

_MODULES = ("httpx2._transports.default", "httpx._transports.default")
"""Modules whose function `create_ssl_context` makes the context of a client that was given none."""
_FUNCTION = "create_ssl_context"
_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
"""Environment variables that change the context, and so belong to the key under which it is shared."""

_lock = threading.Lock()
_users = 0
_originals: dict[str, Callable[..., Any]] = {}
_contexts: dict[tuple[Any, ...], Any] = {}


@contextlib.contextmanager
def shared_tls() -> Iterator[None]:
    """Let HTTP clients that are built inside share one context. May be nested, and entered from any thread."""
    global _users  # noqa: PLW0603  (the patch is per process)
    with _lock:
        _users += 1
        if _users == 1:
            sys.meta_path.insert(0, _finder)
            for name in _MODULES:
                if name in sys.modules:
                    _share(sys.modules[name])
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                sys.meta_path.remove(_finder)
                _restore()


def _share(module: Any) -> None:
    if module.__name__ in _originals or not _is_known(module):
        return
    original = _originals[module.__name__] = getattr(module, _FUNCTION)

    def create_ssl_context(
        verify: Any = True,  # noqa: FBT002 - httpx2's signature
        cert: Any = None,
        trust_env: Any = True,  # noqa: FBT002 - httpx2's signature
    ) -> Any:
        # The protocols to negotiate are written into the context before each handshake, so clients with and without
        # HTTP/2 must not share one. `http2` is no parameter of this function, so it is read from the caller's frame;
        # a caller without it is no transport, and gets a context of its own.
        http2 = sys._getframe(1).f_locals.get("http2")  # noqa: SLF001  (documented by Python)
        if verify is not True or cert or http2 is None:
            return original(verify=verify, cert=cert, trust_env=trust_env)
        key = (module.__name__, trust_env, bool(http2), *map(os.environ.get, _VARIABLES))
        # Without a lock: two threads may both build a context, and either one may stay.
        if key not in _contexts:
            _contexts[key] = original(verify=True, trust_env=trust_env)
        return _contexts[key]

    setattr(module, _FUNCTION, create_ssl_context)


def _is_known(module: Any) -> bool:
    """Return whether a module is as in httpx 0.28 and httpx2 2.16; clients of another release share nothing."""
    try:
        takes = tuple(inspect.signature(getattr(module, _FUNCTION)).parameters)
        codes = [getattr(module, name).__init__.__code__ for name in ("HTTPTransport", "AsyncHTTPTransport")]
    except (AttributeError, TypeError, ValueError):
        return False
    return takes == ("verify", "cert", "trust_env") and all("http2" in code.co_varnames for code in codes)


def _restore() -> None:
    for name, original in _originals.items():
        if name in sys.modules:
            setattr(sys.modules[name], _FUNCTION, original)
    _originals.clear()
    _contexts.clear()


class _Finder(importlib.abc.MetaPathFinder):
    """Import hook that patches httpx's modules when they are imported later than `shared_tls` is entered."""

    def __init__(self) -> None:
        self._inside = threading.local()

    def find_spec(self, fullname: str, _path: Any, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Find one of the modules as the other finders would, and patch it once it has run."""
        if fullname not in _MODULES or getattr(self._inside, "busy", False):
            return None
        # `importlib.util.find_spec` asks all finders again, this one included.
        self._inside.busy = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._inside.busy = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        """Leave the creation to the original loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Run the module, and patch it."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        with _lock:
            if _users:
                _share(module)


_finder = _Finder()
