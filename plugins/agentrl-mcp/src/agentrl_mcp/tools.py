"""The tool server `mcp`: tools of any MCP server, at a URL, as a process, or as an object of this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import attrs

from agentrl_core.api.tools import Isolation  # noqa: TC001 - options get their types at run time
from agentrl_core.errors import ConfigError, ToolServerError
from agentrl_mcp.backend import FOLDER, Facts, not_sent
from agentrl_mcp.oauth import Login, OAuth
from agentrl_mcp.rpc import LinkLostError, RpcError

if TYPE_CHECKING:
    from agentrl_core.api.tools import ToolEpisode, ToolResult, ToolSpec
    from agentrl_mcp.backend import Backend, Channel

Version = Literal["auto", "2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]


class MCPTools:
    """Tools of an MCP server: one of `url`, `command` and `server` says where it is.

    `url`: address of a server that speaks streamable HTTP. `command`: a program and its arguments, which speaks over
    its standard input and output. `server`: `file.py:name` of a server object of the SDK or FastMCP, or of a function
    that returns one.

    `isolation`: `shared` (default of `url` and `server`), `session`, or `process` (default of `command`), for which
    `warm` processes wait ready; `{folder}` in `command` and `env` is then the episode's own folder. `headers_env`:
    header -> variable of the environment with its value, such as a key; `oauth`: how to get an access token;
    `env_from`: variables that the process gets from the run's environment. `elicitation`: `file.py:name` of a function
    that answers what the server asks the user. `max_message_bytes`: largest message of the server that is read.
    """

    def __init__(
        self,
        *,
        url: str = "",
        command: Sequence[str] = (),
        server: str = "",
        isolation: Isolation | None = None,
        warm: int = 1,
        env: Mapping[str, str] | None = None,
        env_from: Sequence[str] = (),
        headers: Mapping[str, str] | None = None,
        headers_env: Mapping[str, str] | None = None,
        oauth: OAuth | None = None,
        proxy: str | None = None,
        max_connections: int = 64,
        protocol: Version = "auto",
        elicitation: str = "",
        start_timeout_s: float = 30.0,
        max_message_bytes: int = 16 << 20,
        name: str = "mcp",
        config_dir: Path | None = None,
    ) -> None:
        _check_place(url, command, server)
        _check_options(
            "command" if command else "url" if url else "server",
            {
                **dict.fromkeys(("env", "env_from"), ("command", env or env_from)),
                **dict.fromkeys(("headers", "headers_env", "proxy"), ("url", headers or headers_env or proxy)),
                "oauth": ("url", oauth is not None),
            },
        )
        self.isolation: Isolation = isolation or ("process" if command else "shared")
        if self.isolation == "process" and not command:
            raise ValueError("isolation: process needs `command`: agentrl starts the server's processes itself")
        if server and protocol not in {"auto", "2026-07-28"}:
            raise ValueError("protocol: a `server` of this process is called without a handshake")
        if "{episode}" in url and self.isolation != "session":
            raise ValueError("url: {episode} in it needs `isolation: session`")
        if self.isolation != "process" and any(FOLDER in text for text in (*command, *(env or {}).values())):
            raise ValueError(
                f"{FOLDER} in `command` or `env` needs `isolation: process`: it is the episode's own folder"
            )
        for option, value in (
            ("warm", warm + 1),
            ("max_connections", max_connections),
            ("start_timeout_s", start_timeout_s),
        ):
            if value <= 0:
                raise ValueError(f"{option}: expected a positive number")
        self._url, self._command, self._server = url, tuple(command), server
        self._warm, self._env, self._env_from = warm, dict(env or {}), tuple(env_from)
        self._headers, self._headers_env = dict(headers or {}), dict(headers_env or {})
        self._oauth = oauth
        self._proxy, self._max_connections = proxy, max_connections
        self._protocol, self._elicitation = protocol, elicitation
        self._start_timeout_s, self._most_bytes = start_timeout_s, max_message_bytes
        self._name, self._folder = name, config_dir
        self._backend: Backend | None = None

    @staticmethod
    def secret_variables(options: Mapping[str, Any]) -> Sequence[str]:
        """Return the names of the environment variables with keys: those of `headers_env` and of `oauth`."""
        # Options come as the config has them, perhaps not checked yet.
        headers, oauth = (
            value if isinstance(value := options.get(option), Mapping) else {} for option in ("headers_env", "oauth")
        )
        named = [*headers.values(), oauth.get("client_secret_env"), oauth.get("private_key_env")]
        return [name for name in named if name and isinstance(name, str)]

    def check_start(self, *, connect: bool) -> None:
        """Raise `ConfigError` if there is no such program or script; with `connect` also if nothing has the address."""
        from agentrl_mcp.start_checks import check_address, check_command

        if self._command:
            check_command(self._command, self._env, self._folder or Path.cwd())
        if self._url and connect:
            try:
                _from_environment(self._headers_env, self._name)
            except ToolServerError as error:
                raise ConfigError(str(error).removeprefix(f"{self._name}: ")) from None
            check_address(self._url, self._proxy, self._start_timeout_s)

    async def start(self) -> None:
        """Connect, or start the first processes, and list the tools; `ToolServerError` if there is no such server."""
        backend = self._backend = self._make()
        try:
            await backend.start()
        except ToolServerError as error:
            await backend.close()
            raise ToolServerError(_with_place(error, self._place)) from error
        except BaseException:
            await backend.close()
            raise

    @property
    def _place(self) -> str:
        return self._url.partition("?")[0] or self._server or " ".join(self._command[:2])

    def _make(self) -> Backend:
        """Return the way to the server."""
        from agentrl_mcp.elicitation import Elicitation

        facts = Facts(
            name=self._name,
            isolation=self.isolation,
            protocol="" if self._protocol == "auto" else self._protocol,
            start_timeout_s=self._start_timeout_s,
            most_bytes=self._most_bytes,
            elicitation=Elicitation(self._resolve("elicitation", self._elicitation) if self._elicitation else None),
        )
        if self._url:
            from agentrl_mcp.http_server import HttpServer

            login = None
            if self._oauth is not None:
                # The server is the same one for all episodes, whatever the path says.
                url = self._url.partition("?")[0]
                login = Login(self._oauth, url=url, name=self._name, proxy=self._proxy)
            return HttpServer(
                self._url,
                facts,
                headers=self._headers | _from_environment(self._headers_env, self._name),
                proxy=self._proxy,
                max_connections=self._max_connections,
                login=login,
            )
        if self._command:
            from agentrl_mcp.process import launch_of
            from agentrl_mcp.process_pool import ProcessPool
            from agentrl_mcp.shared_process import SharedProcess

            launch = launch_of(
                self._command, env=self._env, env_from=self._env_from, folder=self._folder, name=self._name
            )
            return (
                ProcessPool(launch, facts, warm=self._warm)
                if self.isolation == "process"
                else SharedProcess(launch, facts)
            )
        from agentrl_mcp.in_process import InProcess, is_server

        found = self._resolve("server", self._server)
        if not is_server(found) and callable(found):
            found = found()
        if not is_server(found):
            raise ToolServerError(
                f"{self._name}: {self._server} is of type {type(found).__name__}; expected a server of the MCP SDK "
                "(MCPServer, Server) or of FastMCP, or a function that returns one"
            )
        return InProcess(found, facts)

    def _resolve(self, option: str, text: str) -> Any:
        from agentrl_core.api.options import resolve, user_folders

        found = resolve(text, user_folders(self._folder)).value
        if option == "elicitation" and not callable(found):
            raise ConfigError(f"{self._name}: elicitation: {text} is no function")
        return found

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the server's tools, which are the same in all episodes."""
        return self._started().listing.specs

    async def open(self, episode: ToolEpisode) -> MCPSession:
        """Open the tools of an episode."""
        return MCPSession(await self._started().open(episode), self._name)

    def _started(self) -> Backend:
        if self._backend is None:
            raise ToolServerError(f"{self._name}: the server was not started")
        return self._backend

    async def close(self) -> None:
        """End all sessions and processes."""
        if self._backend is not None:
            await self._backend.close()


@attrs.frozen
class MCPSession:
    """Tools of an MCP server during one episode."""

    channel: Channel
    name: str
    """Name of the server, for messages."""

    @property
    def changes(self) -> int:
        """Number of times that the server has said that its tools changed."""
        return self.channel.listing.changes

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the server's tools; the server is asked only if it has said that they changed."""
        if self.channel.listing.is_stale:
            try:
                await self.channel.relist()
            except (RpcError, LinkLostError) as error:
                raise not_sent(self.name, error) from error
        return self.channel.listing.specs

    async def call(self, name: str, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Call a tool."""
        return await self.channel.call(name, arguments, timeout_s=timeout_s)

    async def close(self) -> None:
        """Give up what the episode has on the server."""
        await self.channel.close()


def _check_place(url: str, command: Sequence[str], server: str) -> None:
    if (bool(url), bool(command), bool(server)).count(True) != 1:
        raise ValueError("expected exactly one of `url`, `command` and `server`, which say where the server is")
    if url:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"url: expected http(s)://host[:port]/path, found {url!r}")
        if parts.username or parts.password:
            raise ValueError("url: must not contain a user name or password; name a variable in headers_env instead")


def _check_options(place: str, options: Mapping[str, tuple[str, object]]) -> None:
    for option, (owner, value) in options.items():
        if value and owner != place:
            raise ValueError(f"{option}: only for servers with `{owner}`")


def _from_environment(headers: Mapping[str, str], name: str) -> dict[str, str]:
    missing = [variable for variable in headers.values() if not os.environ.get(variable)]
    if missing:
        raise ToolServerError(f"{name}: headers_env: the environment has no {', '.join(missing)}")
    return {header: os.environ[variable] for header, variable in headers.items()}


def _with_place(error: Exception, place: str) -> str:
    text = str(error)
    return text if place in text else f"{text} ({place})"
