"""Find and build a workflow in another interpreter than the run's, with the standard library alone."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .signatures import SignatureError, accepted_arguments, is_function, is_workflow_function, runs_on_data
from .telling import one_line, place_of
from .tools import Asking, WorkerTools
from .values import LONGEST_REPR


class Refused(Exception):  # noqa: N818  (a refusal, not an error)
    """Raised when the workflow cannot be loaded; `kind` names the error class that the run raises."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ForeignWorkflow:
    """Workflow that is found and built with the standard library alone, in another interpreter than the run's.

    `start` holds `use` (`module:attr`, `file.py:attr`, `pkg.mod.Attr`), `options`, `folders` to search first,
    `packages` (name -> location of the run's own copy, for interpreters that have none), `adapters` ([package,
    location, `module:attr`], …) and `places` (option -> its place in the config, for messages).
    """

    name = ""
    http_client = None

    def __init__(self, start: Mapping[str, Any]) -> None:
        self._use, self._options, self._places = start["use"], dict(start["options"]), start["places"]
        self._folders, self._adapters = start["folders"], start["adapters"]
        for folder in reversed(self._folders):
            _put_on_path(folder)
        # Adapters always come from the run's installation, so they go first. The run's copies of other packages go
        # last: a copy that this interpreter has itself wins.
        sys.meta_path.insert(0, Packages({name: place for name, place, _ in self._adapters}))
        sys.meta_path.append(Packages(start["packages"]))
        for _, _, path in self._adapters:
            self._prepare(path.partition(":")[0])
        found = self._find()
        if is_workflow_function(found):
            self.function = functools.partial(found, **self._options) if self._options else found
        else:
            self.function = self._run_of(*self._built(found))
        self.accepted = self._accepted(self.function)

    @staticmethod
    def tools_of(asking: Asking, *, tools: bool) -> dict[str, Any]:
        """Return the argument `tools` of the workflow, if the config lists tools."""
        return {"tools": WorkerTools(asking)} if tools else {}

    def enter(self, episode: Mapping[str, Any]) -> None:
        """Do nothing: `workflow_context` does not exist in another interpreter."""

    async def close(self) -> None:
        """Do nothing: there is no shared HTTP client in another interpreter."""

    def _refuse(self, message: str, option: str = "") -> Refused:
        place = self._places.get(option) or self._places[""]
        version = ".".join(map(str, sys.version_info[:3]))
        kind = "ConfigError" if option else "PluginError"
        return Refused(kind, f"{place}: {message} (in {sys.executable}, Python {version})")

    def _do(self, action: Callable[[], Any], what: str) -> Any:
        """Call code of the user; report whatever it raises as a fault of that code, with its place."""
        try:
            return action()
        except (Exception, SystemExit) as error:
            advice = ""
            if isinstance(error, ModuleNotFoundError):
                advice = f"; install what it needs there, with {sys.executable} -m pip install"
            place = place_of(error)
            at = f" (at {place})" if place else ""
            raise self._refuse(f"{what} failed: {one_line(error)}{at}{advice}") from error

    def _import(self, name: str) -> Any:
        return self._do(lambda: importlib.import_module(name), f"importing module {name}")

    def _prepare(self, adapter: str) -> None:
        """Let an adapter's module set up this process before the agent's module is imported."""
        try:
            module = importlib.import_module(adapter)
        except ImportError:
            # An adapter whose framework is missing here serves other agents. If this one needs it, `_run_of` says so.
            return
        if hasattr(module, "prepare"):
            self._do(module.prepare, f"{adapter}.prepare()")

    def _find(self) -> Any:
        head, colon, attr = self._use.rpartition(":")
        if head.endswith(".py"):
            value, names = self._load_file(head), attr.split(".")
        elif colon:
            value, names = self._import(head), attr.split(".")
        else:
            value, names = self._import_longest(self._use.split("."))
        for name in names:
            if not hasattr(value, name):
                raise self._refuse(f"'{self._use}' does not exist: {_name_of(value)} has no '{name}'")
            value = getattr(value, name)
        return value

    def _import_longest(self, parts: list[str]) -> tuple[Any, list[str]]:
        """Import as many leading parts as are modules; return the last module and the remaining names."""
        module = self._import(parts[0])
        for count in range(2, len(parts)):
            name = ".".join(parts[:count])
            if not hasattr(module, "__path__") or importlib.util.find_spec(name) is None:
                return module, parts[count - 1 :]
            module = self._import(name)
        return module, parts[-1:]

    def _load_file(self, text: str) -> Any:
        paths = [os.path.realpath(os.path.join(folder, os.path.expanduser(text))) for folder in self._folders]
        path = next(filter(os.path.isfile, paths), None)
        if path is None:
            raise self._refuse(f"there is no file {' or '.join(dict.fromkeys(paths))}")
        # As Python does for a script, so that the file can import its siblings.
        _put_on_path(os.path.dirname(path))
        name = os.path.splitext(os.path.basename(path))[0]
        if not name.isidentifier() or importlib.util.find_spec(name) is None:
            name = "agentrl_file"
        elif os.path.realpath(getattr(importlib.util.find_spec(name), "origin", None) or "") != path:
            # A module of that name exists elsewhere, such as in the standard library: the file must not hide it.
            name = f"agentrl_file_{name}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None  # noqa: S101  (a .py file always has a spec)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        self._do(lambda: spec.loader.exec_module(module), f"importing {path}")  # type: ignore[union-attr]
        return module

    def _built(self, found: Any) -> tuple[Any, dict[str, Any], Callable[[], Any] | None]:
        """Return the built object, the options that it did not take, and its factory (None for a given object)."""
        if not (inspect.isclass(found) or is_function(found)):
            return found, self._options, None
        try:
            parameters: Mapping[str, inspect.Parameter] = inspect.signature(found).parameters
        except (TypeError, ValueError):
            # A class written in C whose signature cannot be read.
            parameters = {}
        takes_all = callable(getattr(found, "run", None)) or any(
            item.kind is item.VAR_KEYWORD for item in parameters.values()
        )
        own = {key: value for key, value in self._options.items() if takes_all or key in parameters}
        with contextlib.suppress(ValueError):
            try:
                inspect.signature(found).bind(**own)
            except TypeError as error:
                unknown = [key for key in own if key not in parameters]
                raise self._refuse(f"{self._use}: {error}", (unknown or [""])[0]) from error
        factory = functools.partial(found, **own)
        made = self._do(factory, f"building {self._use}")
        return made, {key: value for key, value in self._options.items() if key not in own}, factory

    def _run_of(self, agent: Any, options: dict[str, Any], factory: Callable[[], Any] | None) -> Callable[..., Any]:
        """Return `run` of a workflow, or of the workflow that an adapter makes of a framework's agent."""
        if not runs_on_data(agent):
            for _, _, path in self._adapters:
                adapted = self._do(functools.partial(_adapt, path, agent, options, factory), f"{path}(agent)")
                if adapted is not None:
                    run: Callable[..., Any] = adapted.run
                    return run
        found = getattr(agent, "run", agent)
        if not callable(found) or inspect.isclass(found):
            known = ", ".join(sorted(name for name, _, _ in self._adapters)) or "none"
            raise self._refuse(
                f"'{self._use}' is of type {_name_of(type(agent))}, which has no `run(data)`, and no package adapts "
                f"it in another interpreter (installed: {known}); write a class with `def run(self, data)` that "
                "returns a reward"
            )
        if options:
            raise self._refuse(f"{self._use} has no such option", next(iter(options)))
        return found  # type: ignore[no-any-return]

    def _accepted(self, function: Callable[..., Any]) -> set[str]:
        """Return the injected arguments that the function takes.

        There is no shared HTTP client here: a function that can do without `http_client` is not given a None.
        """
        try:
            accepted = set(accepted_arguments(function, _name_of(function)))
        except SignatureError as error:
            raise self._refuse(str(error)) from None
        client = inspect.signature(function).parameters.get("http_client")
        if client is None or client.default is not client.empty:
            accepted.discard("http_client")
        return accepted


class Packages:
    """Finder that imports each named package from one location, and nothing else from there."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002  (the protocol)
        """Return the spec of a named package; None for any other."""
        place = self._places.get(fullname)
        if place is None or place.endswith(".py"):
            return None if place is None else importlib.util.spec_from_file_location(fullname, place)
        file = os.path.join(place, "__init__.py")
        return importlib.util.spec_from_file_location(fullname, file, submodule_search_locations=[place])


def _adapt(path: str, agent: Any, options: dict[str, Any], factory: Callable[[], Any] | None) -> Any:
    module, _, attr = path.partition(":")
    adapt = getattr(importlib.import_module(module), attr)
    more = {"factory": factory} if "factory" in inspect.signature(adapt).parameters else {}
    return adapt(agent, options, **more)


def _put_on_path(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _name_of(found: Any) -> str:
    return getattr(found, "__qualname__", None) or getattr(found, "__name__", None) or repr(found)[:LONGEST_REPR]
