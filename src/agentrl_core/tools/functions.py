"""Tool server `functions`: plain Python functions of the user, or the methods of an object per episode, as tools."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import orjson

from agentrl_core.api.tools import Isolation, ToolEpisode, ToolResult, ToolSpec
from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.errors import AgentRLError, ConfigError, PluginError
from agentrl_core.plugins.references import resolve, user_folders
from agentrl_core.tools.function_schema import convert_arguments, describe_function
from agentrl_core.tools.schemas import described, to_json

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class FunctionTool:
    """A function with its description."""

    spec: ToolSpec
    function: Callable[..., Any]

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Call the function; a sync one runs on a thread of its own. What it raises is a result with `is_error`."""
        try:
            values = convert_arguments(self.function, arguments)
            return _result(await _called(self.function, values))
        except AgentRLError:
            raise
        except (Exception, SystemExit) as error:
            logger.info("the tool function '%s' raised", self.spec.name, exc_info=error)
            return ToolResult.of_text(f"Error: {described(error)}", is_error=True)


class FunctionTools:
    """Tools of Python functions, by their name, signature and docstring.

    `functions` are places such as `my_tools.py:search`; all episodes share what the functions keep. `factory` is a
    class, or a function without arguments; each episode gets an object of its own, whose public methods are its tools.
    An object that has `close` is closed with the episode. `read_only`: no call changes anything.
    """

    def __init__(
        self,
        *,
        functions: tuple[str, ...] = (),
        factory: str = "",
        read_only: bool = False,
        config_dir: Path | None = None,
    ) -> None:
        if bool(functions) == bool(factory):
            raise ValueError(
                "expected either `functions`, a list such as [my_tools.py:search], or `factory`, such as "
                "my_tools.py:Sandbox"
            )
        self._folders, self._read_only = user_folders(config_dir), read_only
        self.isolation: Isolation = "session" if factory else "shared"
        self._factory: Callable[[], Any] | None = None
        self._shared: Mapping[str, FunctionTool] = {}
        if factory:
            self._factory = self._load(factory, "'factory'")
        else:
            found = [self._load(place, "'functions'") for place in functions]
            self._shared = {tool.spec.name: tool for tool in self._tools(found)}
            if len(self._shared) < len(functions):
                raise ValueError("'functions': two of the functions have one name")

    def _load(self, place: str, option: str) -> Callable[..., Any]:
        try:
            found = resolve(place, self._folders).value
        except PluginError as error:
            raise ValueError(f"{option}: {error}") from error
        if not callable(found):
            found_type = type(found).__name__
            raise TypeError(f"{option}: '{place}' is {found_type}, which cannot be called")
        return found

    def _tools(self, functions: Sequence[Callable[..., Any]]) -> Iterator[FunctionTool]:
        for function in functions:
            spec = attrs.evolve(describe_function(function), read_only=self._read_only)
            yield FunctionTool(spec=spec, function=function)

    async def start(self) -> None:
        """Do nothing: the functions are imported by the constructor."""

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the tools; of a factory's objects only an episode knows them."""
        return [tool.spec for tool in self._shared.values()]

    async def open(self, episode: ToolEpisode) -> FunctionSession:  # noqa: ARG002 - an object needs no task
        """Return the functions, or the methods of a new object."""
        if self._factory is None:
            return FunctionSession(self._shared)
        made = await _called(self._factory, {})
        try:
            tools = {tool.spec.name: tool for tool in self._tools(_methods(made))}
        except ValueError as error:
            raise ConfigError(f"tools.servers: {error}") from error
        if not tools:
            raise ConfigError(
                f"tools.servers: the factory made a {type(made).__name__} without public methods; expected at least one"
            )
        return FunctionSession(tools, made)

    async def close(self) -> None:
        """Do nothing: objects of episodes are closed with them."""


class FunctionSession:
    """Functions in one episode."""

    def __init__(self, tools: Mapping[str, FunctionTool], made: Any = None) -> None:
        self._tools, self._made = tools, made

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the functions in their order."""
        return [tool.spec for tool in self._tools.values()]

    async def call(self, name: str, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:  # noqa: ARG002
        """Call a function; a thread that takes too long cannot be ended, and goes on."""
        return await self._tools[name].call(arguments)

    async def close(self) -> None:
        """Call `close` of the episode's object, if it has one."""
        close = getattr(self._made, "close", None)
        if callable(close):
            await _called(close, {})


async def _called(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Return what a function returns; one that is not async runs on a thread of its own, because it may block."""
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    returned = await call_on_thread(functools.partial(function, **arguments), name="agentrl-tool")
    return await returned if inspect.isawaitable(returned) else returned


def _methods(made: Any) -> list[Callable[..., Any]]:
    """Return the public methods of an object, in the order of their definition, base classes last."""
    names = [name for cls in type(made).__mro__[:-1] for name in vars(cls)]
    return [
        getattr(made, name)
        for name in dict.fromkeys(names)
        if not name.startswith("_") and name != "close" and inspect.isroutine(getattr(made, name))
    ]


def _result(returned: Any) -> ToolResult:
    """Return what a function returned as a result: a text as it is, nothing as an empty one, other values as JSON."""
    if isinstance(returned, ToolResult):
        return returned
    if returned is None or isinstance(returned, str):
        return ToolResult.of_text(returned or "")
    text = to_json(returned)
    return attrs.evolve(ToolResult.of_text(text.decode()), structured=orjson.loads(text))
