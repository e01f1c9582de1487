"""One TLS context for all HTTP clients of a process that ask for nothing special.

Reading the CA certificates takes httpx and httpx2, and every SDK that builds a client of theirs, about 50 ms each
time. What asks for a certificate, a bundle or no verification of its own is left alone, and so is the public
`create_ssl_context`: whoever calls that may change what it returns.

Needs nothing but the standard library and runs on Python 3.8: workers in other interpreters load this file alone.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
from typing import Any, Callable, Iterator

_MODULES = ("httpx2._transports.default", "httpx._transports.default")
"""Where a client that was given no context has one made, by a function of this name."""
_FUNCTION = "create_ssl_context"
_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")

_lock = threading.Lock()
_users = 0
_originals: dict[str, Callable[..., Any]] = {}
_contexts: dict[tuple[Any, ...], Any] = {}


@contextlib.contextmanager
def shared_tls() -> Iterator[None]:
    """Let HTTP clients that are built inside share one context; may be nested, and entered from any thread."""
    global _users  # noqa: PLW0603  (what is patched belongs to the process)
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
    original = getattr(module, _FUNCTION, None)
    if original is None or module.__name__ in _originals:
        return
    _originals[module.__name__] = original

    def create_ssl_context(
        verify: Any = True,  # noqa: FBT002 - httpx2's signature  (as the original's)
        cert: Any = None,
        trust_env: Any = True,  # noqa: FBT002 - httpx2's signature
        **others: Any,
    ) -> Any:
        if verify is not True or cert or others:
            return original(verify=verify, cert=cert, trust_env=trust_env, **others)
        # The protocols to negotiate are written into the context before each handshake.
        http2 = sys._getframe(1).f_locals.get("http2", False)  # noqa: SLF001  (the documented way)
        key = (module.__name__, trust_env, bool(http2), *map(os.environ.get, _VARIABLES))
        if key not in _contexts:  # two threads may both make one: either is good
            _contexts[key] = original(verify=True, trust_env=trust_env)
        return _contexts[key]

    setattr(module, _FUNCTION, create_ssl_context)


def _restore() -> None:
    for name, original in _originals.items():
        if name in sys.modules:
            setattr(sys.modules[name], _FUNCTION, original)
    _originals.clear()
    _contexts.clear()


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for the modules that are not imported yet."""

    def __init__(self) -> None:
        self._inside = threading.local()

    def find_spec(self, fullname: str, _path: Any, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Find one of the modules as the others would, and see to it once it has run."""
        if fullname not in _MODULES or getattr(self._inside, "busy", False):
            return None
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
        """Leave it to the loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Run the module, and let it share."""
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        with _lock:
            if _users:
                _share(module)


_finder = _Finder()
