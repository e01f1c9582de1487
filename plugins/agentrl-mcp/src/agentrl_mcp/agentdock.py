"""The tool server `agentdock`: tools of an AgentDock node by its REST API, as AgentRL's `mcp_manager_url` names it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlsplit

import attrs
import orjson

from agentrl_core.api.http import Backoff, ExchangeError, ServerClient
from agentrl_core.errors import DeliveryUnknownError, InvalidResultError, ToolNotSentError, ToolServerError
from agentrl_mcp.connection import EPISODE_HEADER
from agentrl_mcp.start_checks import check_address

if TYPE_CHECKING:
    from agentrl_core.api.tools import ToolEpisode, ToolResult, ToolSpec

_BACKOFF = Backoff(first_s=0.2, longest_s=2.0)
_MOST_SHOWN_CHARS = 300
_OK, _CLIENT_ERROR, _SERVER_ERROR = 200, 400, 500
_BUSY = frozenset({429, 503})
"""Statuses of a node, or of the master before it, that has not given the call to a tool."""
_UNANSWERED = frozenset({502, 504})
"""Statuses of a proxy that has got no answer from the node, which may have run the tool."""


class AgentDockTools:
    """Tools of the node whose REST API has the address `url`, such as `http://127.0.0.1:8000/mcpapi`.

    `servers`: ids of the node's servers whose tools are offered, none for all of them. `names`: `full` calls a tool
    `server.tool`, as the node's list does; `bare` leaves out the server, where no two of them have a tool of that name.
    A node has one process per server for everybody, so the isolation is `shared`; `{episode}` in the URL, for a
    container per episode, makes it `session`.
    """

    def __init__(
        self,
        *,
        url: str,
        servers: Sequence[str] = (),
        names: Literal["full", "bare"] = "bare",
        proxy: str | None = None,
        max_connections: int = 64,
        start_timeout_s: float = 30.0,
        max_message_bytes: int = 16 << 20,
        name: str = "agentdock",
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query:
            raise ValueError(f"url: expected http(s)://host[:port]/…/mcpapi, found {url!r}")
        self.isolation: Literal["shared", "session"] = "session" if "{episode}" in url else "shared"
        self._base, self._path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        self._servers, self._names, self._name = tuple(servers), names, name
        self._proxy, self._max_connections = proxy, max_connections
        self._start_timeout_s, self._most_bytes = start_timeout_s, max_message_bytes
        self._node: Node | None = None

    def check_start(self, *, connect: bool) -> None:
        """Raise `ConfigError` if nothing has the address."""
        if connect:
            check_address(self._base, self._proxy, self._start_timeout_s)

    async def start(self) -> None:
        """List the tools; tries again for as long as a node may need to start."""
        client = ServerClient(
            self._base, proxy=self._proxy, max_connections=self._max_connections, connect_timeout_s=5.0, resends=False
        )
        node = self._node = Node(client=client, path=self._path, name=self._name, most_bytes=self._most_bytes)
        loop = asyncio.get_running_loop()
        end = loop.time() + self._start_timeout_s
        tries = 0
        while True:
            try:
                async with asyncio.timeout_at(end):
                    await node.list_all(self._servers, bare=self._names == "bare")
            except (ToolNotSentError, DeliveryUnknownError, InvalidResultError, TimeoutError) as error:
                wait_s = _BACKOFF.wait_s(tries)
                if loop.time() + wait_s > end:
                    await self.close()
                    text = str(error) or f"{self._name}: no answer within {self._start_timeout_s:g} s"
                    raise ToolServerError(f"{text} ({self._base}{self._path})") from error
                tries += 1
                await asyncio.sleep(wait_s)
            except BaseException:
                await self.close()
                raise
            else:
                return

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the tools, which are the same in all episodes."""
        return self._started().specs

    async def open(self, episode: ToolEpisode) -> AgentDockSession:
        """Open the tools of an episode."""
        return AgentDockSession(self._started(), episode)

    def _started(self) -> Node:
        if self._node is None:
            raise ToolServerError(f"{self._name}: the server was not started")
        return self._node

    async def close(self) -> None:
        """Close the connections."""
        if self._node is not None:
            self._node.client.close()


@attrs.define(kw_only=True, eq=False)
class Node:
    """A node of AgentDock: requests, and the tools that it offers."""

    client: ServerClient
    path: str
    name: str
    most_bytes: int
    specs: Sequence[ToolSpec] = ()
    ids: dict[str, str] = attrs.field(factory=dict)
    """Name of a tool -> its id on the node, `server.tool`."""

    async def list_all(self, servers: Sequence[str], *, bare: bool) -> None:
        """Read the list of tools, for all episodes."""
        try:
            listed = await self.exchange("GET", "/tools", episode_id="start")
        except NodeError as error:
            raise ToolServerError(f"{self.name}: the list of tools: {error}") from error
        items = listed.get("tools")
        if not isinstance(items, list):
            raise ToolServerError(f"{self.name}: its answer to /tools has no list `tools`")
        found = [self._function(item) for item in items]
        known = {server for server, _, _ in found}
        if missing := [server for server in servers if server not in known]:
            raise ToolServerError(f"{self.name}: servers: the node has no {', '.join(missing)}")
        wanted = [item for item in found if not servers or item[0] in servers]
        self.specs = tuple(self._named(tool if bare else full["name"], full) for _, tool, full in wanted)

    def _function(self, item: object) -> tuple[str, str, Mapping[str, Any]]:
        """Return server, name and description of a tool."""
        match item:
            case {"function": {"name": str(full)} as function}:
                server, dot, tool = full.partition(".")
                return (server, tool, function) if dot else ("", full, function)
        raise ToolServerError(f"{self.name}: its list of tools has an item that is no function")

    def _named(self, shown: str, function: Mapping[str, Any]) -> ToolSpec:
        from agentrl_mcp.results import spec_of

        full = function["name"]
        if self.ids.setdefault(shown, full) != full:
            raise ToolServerError(
                f"{self.name}: two of its servers have a tool '{shown}' ({self.ids[shown]}, {full}): set names: full, "
                "or name the servers in `servers`"
            )
        schema = function.get("parameters") or {"type": "object"}
        return spec_of({**function, "name": shown, "inputSchema": schema}, server=self.name)

    async def exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, episode_id: str
    ) -> Mapping[str, Any]:
        """Return the JSON object of a reply; raises as `ToolSession.call`, and `NodeError`."""
        place = self.path.replace("{episode}", quote(episode_id, safe="")) + path
        data = b"" if body is None else orjson.dumps(body)
        try:
            with await self.client.request(method, place, data, headers={EPISODE_HEADER: episode_id}) as reply:
                status, text = reply.status, await reply.read(self.most_bytes)
        except ExchangeError as error:
            if error.fault == "connect":
                raise ToolNotSentError(f"{self.name}: {error}") from None
            if error.fault in {"garbled", "too large"}:
                raise InvalidResultError(f"{self.name}: {error}") from None
            raise DeliveryUnknownError(f"{self.name}: {error}") from None
        if status in _BUSY:
            raise ToolNotSentError(f"{self.name}: HTTP status {status}")
        if status in _UNANSWERED:
            raise DeliveryUnknownError(f"{self.name}: HTTP status {status}")
        try:
            answer = orjson.loads(text)
        except orjson.JSONDecodeError:
            answer = None
        if status >= _CLIENT_ERROR or not isinstance(answer, dict):
            if status < _CLIENT_ERROR:
                raise InvalidResultError(f"{self.name}: its answer is no JSON object")
            detail = (
                answer.get("detail") if isinstance(answer, dict) else text[:_MOST_SHOWN_CHARS].decode(errors="replace")
            )
            raise NodeError(status, _text(detail))
        # A node returns its errors instead of raising them, so they come with the HTTP status 200.
        if isinstance(inner := answer.get("status_code"), int) and inner >= _CLIENT_ERROR and "content" not in answer:
            raise NodeError(inner, _text(answer.get("detail")))
        return answer


class NodeError(Exception):
    """The node, or the tool, reports an error."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"status {status}: {detail}" if detail else f"status {status}")
        self.status = status


@attrs.frozen
class AgentDockSession:
    """Tools of a node during one episode."""

    node: Node
    episode: ToolEpisode

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the node's tools."""
        return self.node.specs

    async def call(self, name: str, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Call a tool."""
        from agentrl_core.api.tools import ToolResult

        node = self.node
        path = "/tool/" + quote(node.ids.get(name, name), safe="")
        try:
            async with asyncio.timeout(timeout_s):
                answer = await node.exchange("POST", path, arguments, episode_id=self.episode.record_id)
        except TimeoutError:
            raise DeliveryUnknownError(f"{node.name}: no answer within {timeout_s:.3g} s") from None
        except NodeError as error:
            return ToolResult.of_text(str(error), is_error=True)
        return result_of_content(answer, tool=f"{node.name}: {name}")

    async def close(self) -> None:
        """Do nothing: a node knows no episodes."""


def result_of_content(answer: Mapping[str, Any], *, tool: str) -> ToolResult:
    """Return the result in an answer of a node, whose `content` is content parts, a text, or any JSON value."""
    from agentrl_core.api.tools import ToolResult

    if "content" not in answer:
        raise InvalidResultError(f"{tool}: its answer has no `content`")
    content = answer["content"]
    is_error = answer.get("status") == "error"
    parts: list[Mapping[str, Any]] = []
    if isinstance(content, list) and content and all(map(_is_part, content)):
        parts = [{"type": part["type"], part["type"]: part[part["type"]]} for part in content]
    elif content not in (None, "", [], {}):
        return attrs.evolve(
            ToolResult.of_text(_text(content), is_error=is_error),
            structured=None if isinstance(content, str) else content,
        )
    # A tool that succeeds says something: AgentRL takes an empty result for an error, too.
    return (
        ToolResult(content=tuple(parts), is_error=is_error)
        if parts
        else ToolResult.of_text("the tool returned nothing", is_error=True)
    )


def _is_part(value: object) -> bool:
    match value:
        case {"type": "text", "text": str()} | {"type": "image_url", "image_url": {"url": str()}}:
            return True
    return False


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else orjson.dumps(value).decode()
