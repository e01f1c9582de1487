"""Import objects that a config names by their location: `module:attr`, `file.py:attr`, `pkg.mod.Attr`.

Modules are searched in the config's folder and in the working directory before the installed packages. Both folders,
and the folder of a named file, go to the front of the import path, as Python does for scripts. Messages distinguish a
module that does not exist from one that cannot be imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import attrs

from agentrl_core.concurrency import FILE_MODULE
from agentrl_core.config.invocation import pip_install
from agentrl_core.config.nearest import did_you_mean
from agentrl_core.errors import PluginError
from agentrl_core.plugins.catalog import of_another_interpreter

_PACKAGES = {
    "agents": "openai-agents",
    "anthropic": "anthropic",
    "claude_agent_sdk": "claude-agent-sdk",
    "httpx": "httpx",
    "langchain": "langchain",
    "langchain_core": "langchain-core",
    "langchain_openai": "langchain-openai",
    "langgraph": "langgraph",
    "openai": "openai",
    "pydantic_ai": "pydantic-ai",
    "smolagents": "smolagents",
}
"""Module -> package to install, for the libraries that agents are written with."""


@attrs.frozen(kw_only=True)
class Reference:
    """An imported object and its location."""

    value: object
    path: str
    """Location as `module:attr`."""
    file: str
    """File of the module; empty if it has none."""


def is_reference(text: str) -> bool:
    """Return whether `text` is an object's location rather than a registered name."""
    return ":" in text or text.endswith(".py") or ("." in text and "/" not in text)


def resolve(text: str, folders: Sequence[Path] = ()) -> Reference:
    """Import the object that `text` names; searches `folders` first, see `user_folders`.

    Raises `PluginError` with the names and places that were searched, or with the error of the module's import.
    """
    # Python caches the listings of folders: without this, a file that was just written may not be found.
    importlib.invalidate_caches()
    head, colon, attr = text.rpartition(":")
    if text.endswith(".py"):
        raise PluginError(f"'{text}' names a file; name the object in it: {text}:NAME")
    if head.endswith(".py"):
        module, rest = _load_file(head, folders), attr.split(".")
    elif colon:
        module, rest = _import_longest(head, folders)
        if rest:
            _refuse_missing(head, module, rest, folders)
        rest = attr.split(".")
    else:
        module, rest = _import_longest(text.rpartition(".")[0], folders)
        rest += [text.rpartition(".")[2]]
    value: object = module
    for name in rest:
        value = _attribute(value, name, module)
    return Reference(value=value, path=f"{module.__name__}:{'.'.join(rest)}", file=_file_of(module))


def import_module(text: str, folders: Sequence[Path] = ()) -> ModuleType:
    """Import a module by its dotted name, or a file. Raises `PluginError` as `resolve` does."""
    importlib.invalidate_caches()
    if text.endswith(".py"):
        return _load_file(text, folders)
    module, rest = _import_longest(text, folders)
    if rest:
        _refuse_missing(text, module, rest, folders)
    return module


def user_folders(base_dir: Path | None) -> list[Path]:
    """Return the folders of a user's own files and modules: the config's folder, then the working directory."""
    cwd = Path.cwd()
    return [cwd] if base_dir is None or base_dir.resolve() == cwd else [base_dir.resolve(), cwd]


def one_line(error: BaseException) -> str:
    """Return an exception as one line: its type and message's first line; for a SyntaxError also the source line."""
    lines = str(error).strip().splitlines()
    told = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    source = (error.text or "").strip() if isinstance(error, SyntaxError) else ""
    return f"{told}: `{source}`" if source else told


def _put_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import_longest(dotted: str, folders: Sequence[Path]) -> tuple[ModuleType, list[str]]:
    """Import as many leading parts of `dotted` as are modules; the remaining parts may be attributes."""
    parts = dotted.split(".")
    if not all(part.isidentifier() for part in parts):
        raise PluginError(f"'{dotted}' is not the dotted name of a module")
    for folder in reversed(folders):
        _put_on_path(folder)
    _refuse_other_copy(parts[0], folders)
    module: ModuleType | None = None
    rest = parts
    while rest and (found := _import_module(".".join(parts[: len(parts) - len(rest) + 1]), module)) is not None:
        module, rest = found, rest[1:]
    if module is None:
        _refuse_missing(dotted, None, parts, folders)
    return module, rest


def _import_module(name: str, parent: ModuleType | None) -> ModuleType | None:
    """Import one more level of a dotted name; None if `parent` has no such module."""
    if name not in sys.modules:
        if (parent is not None and not hasattr(parent, "__path__")) or importlib.util.find_spec(name) is None:
            return None
        _run(lambda: importlib.import_module(name), f"module {name}")
    return sys.modules[name]


def _refuse_missing(dotted: str, module: ModuleType | None, rest: list[str], folders: Sequence[Path]) -> NoReturn:
    if module is None:
        places = "".join(f"{folder}, " for folder in folders)
        raise PluginError(f"there is no module '{dotted}': no '{rest[0]}' in {places}nor among the installed packages")
    raise PluginError(f"there is no module '{dotted}': {module.__name__} ({_file_of(module)}) has no '{rest[0]}'")


def _refuse_other_copy(top: str, folders: Sequence[Path]) -> None:
    """Raise if another folder's module of that name is loaded: a process holds one module per name."""
    places = (folder / name for folder in folders for name in (Path(top, "__init__.py"), f"{top}.py"))
    wanted = next((path for path in places if path.is_file()), None)
    loaded = sys.modules.get(top)
    if wanted and loaded and _file_of(loaded) and Path(_file_of(loaded)).resolve() != wanted.resolve():
        raise PluginError(
            f"module '{top}' is already imported from {_file_of(loaded)}, so {wanted} cannot be imported under "
            f"that name too; refer to it as a file ({wanted.name}:NAME) or rename it"
        )


def _load_file(text: str, folders: Sequence[Path]) -> ModuleType:
    """Return the module of a file; it runs once, even if it is named several times or imported by its siblings."""
    paths = [(folder / Path(text).expanduser()).resolve() for folder in folders]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise PluginError(f"there is no file {' or '.join(str(path) for path in dict.fromkeys(paths))}")
    # A sibling may have imported the file already, under another name. A second copy would have its own state and
    # classes.
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and vars(module).get("__file__") == str(path):
            return module
    _put_on_path(path.parent)
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} is not a Python source file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader = spec.loader
    try:
        _run(lambda: loader.exec_module(module), str(path))
    except BaseException:
        # As Python's own import does: the next try must not find a module that ran only in part.
        del sys.modules[name]
        raise
    return module


def _module_name(path: Path) -> str:
    """Return the name by which sibling files would import this file, unless another module has that name."""
    stem = path.stem
    if stem.isidentifier() and stem not in sys.modules and stem not in sys.stdlib_module_names:
        spec = importlib.util.find_spec(stem)
        if spec is not None and spec.origin == str(path):
            return stem
    # crc32, because `hashlib` would load OpenSSL. The name only has to differ between paths.
    return f"{FILE_MODULE}{zlib.crc32(str(path).encode()):08x}"


def _run(load: Callable[[], object], what: str) -> None:
    """Import something; report what it raises as a fault of the imported module."""
    try:
        load()
    except (Exception, SystemExit) as error:
        raise PluginError(f"importing {what} failed: {one_line(error)}{_origin(error)}{_remedy(error)}") from error


def _remedy(error: BaseException) -> str:
    """Return advice on a missing module. An unknown name may be misspelt, so only known ones get an install command."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    top = (name or "").partition(".")[0]
    if not top or top in of_another_interpreter() or top in sys.modules or importlib.util.find_spec(top) is not None:
        return ""
    if top in _PACKAGES:
        return f"; {pip_install(_PACKAGES[top])}"
    return f"; install the package that has '{top}' beside agentrl, in {sys.prefix}"


def _origin(error: BaseException) -> str:
    """Return ` (at file:line)` of the innermost frame outside the import machinery."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    ours = [frame for frame in frames if frame.filename not in (__file__, importlib.__file__)]
    return f" (at {ours[-1].filename}:{ours[-1].lineno})" if ours else ""


def _attribute(owner: object, name: str, module: ModuleType) -> object:
    try:
        return getattr(owner, name)
    except AttributeError as error:
        what = (
            f"module {module.__name__}"
            if owner is module
            else f"{module.__name__}:{getattr(owner, '__qualname__', owner)}"
        )
        raise PluginError(f"{what} ({_file_of(module)}) has no '{name}'{did_you_mean(name, dir(owner))}") from error
    except ImportError as error:
        raise PluginError(
            f"importing '{name}' of module {module.__name__} failed: {one_line(error)}{_origin(error)}"
        ) from error


def _file_of(module: ModuleType) -> str:
    return vars(module).get("__file__") or ""
