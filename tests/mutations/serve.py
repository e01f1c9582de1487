"""Import hook that serves a mutated module in this process and in those that it spawns, without writing a file."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

import attrs

_VARIABLE = "SERVED_MUTATION"
"""Environment variable by which processes that are spawned know of it."""


@attrs.define(kw_only=True)
class Server:
    """Finds one module, whose text is another than its file's."""

    module: str
    path: str
    text: str
    loaded: int = 0
    """How often the text was run as the module."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Follow the protocol of `sys.meta_path`."""
        if name != self.module:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=_Loader(name, self.path, self))

    def serves(self) -> bool:
        """Whether the module that is in use is the mutated one."""
        loader = getattr(sys.modules.get(self.module), "__loader__", None)
        return self.loaded > 0 and isinstance(loader, _Loader)


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, server: Server) -> None:
        super().__init__(name, path)
        self._server = server

    def get_source(self, _fullname: str) -> str:
        return self._server.text  # tracebacks show it, too

    def get_code(self, _fullname: str) -> CodeType:
        """Past what is cached of the file, and without caching this."""
        return compile(self._server.text, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        self._server.loaded += 1


def serve(module: str, path: str, text: str) -> Server:
    """Serve `text` as `module` from now on; it must not have been imported."""
    if module in sys.modules:
        raise RuntimeError(f"{module} was imported before its mutation could be served")
    server = Server(module=module, path=path, text=text)
    sys.meta_path.insert(0, server)
    os.environ[_VARIABLE] = json.dumps([module, path, text])
    return server


def serve_from_environment() -> None:
    """Serve what the process that has spawned this one serves, if anything."""
    if _VARIABLE in os.environ:
        serve(*json.loads(os.environ[_VARIABLE]))
