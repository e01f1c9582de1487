"""A connection to an MCP server: which era of the protocol it speaks, its tools, and calls of them.

Since the version of 2026-07-28 there is no handshake and no session: each request says in `_meta` who sends it. Before,
a connection begins with `initialize`, and a server may keep state for its session. A server that does not know
`server/discover` is taken for one of the earlier era.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.errors import DeliveryUnknownError, ToolServerError
from agentrl_mcp.results import needs_task, result_of, spec_of, text_of_error
from agentrl_mcp.rpc import HEADER_MISMATCH, METHOD_NOT_FOUND, UNSUPPORTED_VERSION, Link, RpcError

if TYPE_CHECKING:
    from agentrl_core.api.tools import ToolEpisode, ToolResult, ToolSpec
    from agentrl_mcp.elicitation import Elicitation
    from agentrl_mcp.rpc import Answer, Inquire

logger = logging.getLogger(__name__)

STATELESS = "2026-07-28"
HANDSHAKE = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Versions with a handshake, newest first."""
EPISODE_META = "agentrl/episode"
"""Key of the episode's id in `_meta`."""
EPISODE_HEADER = "x-agentrl-episode"

_META = "io.modelcontextprotocol/"
_DISCOVER_S = 10.0
"""Longest wait for the answer to `server/discover`; a server of the earlier era may ignore it."""
_MOST_PAGES = 100
_MOST_ROUNDS = 10
"""Largest number of times that a server may ask for input during one call."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.25
"""Waits before a call is repeated for a server that needs no input, only to be asked again."""


@attrs.frozen(kw_only=True)
class Protocol:
    """Outcome of the negotiation with a server; valid for all connections to it."""

    version: str

    @property
    def is_stateless(self) -> bool:
        """Whether requests need no handshake before them."""
        return self.version == STATELESS


@attrs.define(kw_only=True, eq=False)
class Connection:
    """Requests over a link, once `begin` has made the server ready."""

    link: Link
    name: str
    """Name of the server, for messages."""
    elicitation: Elicitation
    protocol: Protocol | None = None
    param_headers: dict[str, Mapping[tuple[str, ...], str]] = attrs.field(factory=dict)
    """Tool -> arguments that HTTP requests repeat in headers, for proxies; shared by the connections of a server."""
    listen: Callable[[], Awaitable[None]] | None = None
    """Opens the stream on which a server asks besides its answers; None if all questions arrive anyway."""

    async def begin(self, *, timeout_s: float, wanted: str = "", known: Protocol | None = None) -> Protocol:
        """Make the server ready for requests, and return the protocol that it speaks.

        `wanted` is the version to use; empty to find out. `known` is the outcome of an earlier connection to the same
        server, which spares the question. Raises as `Link.request`, and `ToolServerError` for a server with which no
        version is shared.
        """
        if known is not None:
            wanted = known.version
        if wanted in HANDSHAKE:
            self.protocol = await self._initialize(wanted, timeout_s)
        elif known is not None:
            self.link.version, self.protocol = known.version, known
        elif wanted == STATELESS:
            self.protocol = await self._discover(timeout_s)
        else:
            self.protocol = await self._negotiate(timeout_s)
        return self.protocol

    async def _negotiate(self, timeout_s: float) -> Protocol:
        for is_last in (False, True):
            try:
                return await self._discover(min(timeout_s, _DISCOVER_S))
            except RpcError as error:
                supported = error.data.get("supported") if isinstance(error.data, Mapping) else None
                if error.code != UNSUPPORTED_VERSION or not isinstance(supported, list):
                    break
                if STATELESS in supported and not is_last:
                    # It refused a version that it speaks, as it says itself: the specification wants a second try.
                    continue
                if not {*supported} & {*HANDSHAKE}:
                    raise ToolServerError(
                        f"{self.name}: speaks the versions {supported} of MCP; agentrl speaks {STATELESS}, "
                        f"{', '.join(HANDSHAKE)}"
                    ) from None
                break
            except DeliveryUnknownError:
                # No answer in time: the server ignores the question, or was still starting, and answered too late.
                try:
                    return await self._initialize(HANDSHAKE[0], timeout_s)
                except RpcError:
                    return await self._discover(timeout_s)
        return await self._initialize(HANDSHAKE[0], timeout_s)

    async def _discover(self, timeout_s: float) -> Protocol:
        headers = {"mcp-protocol-version": STATELESS, "mcp-method": "server/discover"}
        answer = await self.link.request(
            "server/discover", {"_meta": self._envelope()}, headers=headers, timeout_s=timeout_s
        )
        versions = answer.get("supportedVersions")
        if not isinstance(versions, list) or STATELESS not in versions:
            raise RpcError(METHOD_NOT_FOUND, f"the server supports {versions}")
        self.link.version = STATELESS
        return Protocol(version=STATELESS)

    async def _initialize(self, version: str, timeout_s: float) -> Protocol:
        params = {
            "protocolVersion": version,
            "capabilities": self.elicitation.capabilities if self._can_be_asked else {},
            "clientInfo": _client_info(),
        }
        answer = await self.link.request("initialize", params, timeout_s=timeout_s)
        found = answer.get("protocolVersion")
        if found not in HANDSHAKE:
            raise ToolServerError(
                f"{self.name}: answered initialize with version {found!r} of MCP; agentrl speaks "
                f"{', '.join(HANDSHAKE)} with a handshake"
            )
        self.link.version = found
        await self.link.notify("notifications/initialized")
        if self.listen is not None and self._can_be_asked:
            await self.listen()
        return Protocol(version=found)

    @property
    def _can_be_asked(self) -> bool:
        """Whether questions in a session arrive; nothing listens for those that would only be declined."""
        return self.listen is None or self.elicitation.hook is not None

    def _envelope(self) -> dict[str, Any]:
        """Return the keys of `_meta` that every request without a session has."""
        return {
            _META + "protocolVersion": STATELESS,
            _META + "clientInfo": _client_info(),
            _META + "clientCapabilities": self.elicitation.capabilities,
        }

    async def _request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        inquire: Inquire | None = None,
    ) -> Answer:
        if self.protocol is not None and self.protocol.is_stateless:
            params = {**params, "_meta": self._envelope() | params.get("_meta", {})}
            headers = {"mcp-method": method} | dict(headers or {})
        return await self.link.request(method, params, headers=headers, timeout_s=timeout_s, inquire=inquire)

    async def ping(self, *, timeout_s: float) -> None:
        """Return once the server says anything to a `ping`, also that it knows none, as since 2026-07-28.

        Raises as `Link.request`.
        """
        with contextlib.suppress(RpcError):
            await self._request("ping", {}, timeout_s=timeout_s)

    async def list_tools(self, *, timeout_s: float, headers: Mapping[str, str] | None = None) -> Sequence[ToolSpec]:
        """Return the server's tools, of all pages; raises as `Link.request`, and `ToolServerError`."""
        from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map

        specs: dict[str, ToolSpec] = {}
        cursor = None
        for _ in range(_MOST_PAGES):
            params: dict[str, Any] = {"cursor": cursor} if cursor else {}
            answer = await self._request("tools/list", params, timeout_s=timeout_s, headers=headers)
            tools = answer.get("tools")
            if not isinstance(tools, list):
                raise ToolServerError(f"{self.name}: its answer to tools/list has no list `tools`")
            for item in tools:
                spec = spec_of(item, server=self.name)
                if spec.name in specs:
                    raise ToolServerError(f"{self.name}: lists two tools with the name '{spec.name}'")
                schema = dict(spec.parameters)
                if needs_task(item):
                    logger.warning("%s: leaves out the tool '%s', which runs only as a task", self.name, spec.name)
                    continue
                if self.protocol is not None and self.protocol.is_stateless:
                    if find_invalid_x_mcp_header(schema) is not None:
                        # The specification wants clients to leave out such a tool.
                        logger.warning("%s: leaves out the tool '%s': its x-mcp-header is wrong", self.name, spec.name)
                        continue
                    self.param_headers[spec.name] = x_mcp_header_map(schema)
                specs[spec.name] = spec
            cursor = answer.get("nextCursor")
            if not cursor:
                return tuple(specs.values())
        raise ToolServerError(f"{self.name}: tools/list has more than {_MOST_PAGES} pages")

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        episode: ToolEpisode | None = None,
        tell: bool = False,
    ) -> ToolResult:
        """Call a tool and return its result; an error of JSON-RPC is a result with `is_error`, for the model to see.

        `tell`: tell the server the episode's id. Raises as `Link.request`.
        """
        from agentrl_core.api.tools import ToolResult

        try:
            answer = await self._call(tool, arguments, timeout_s, episode, tell=tell)
        except RpcError as error:
            return ToolResult.of_text("\n".join(text_of_error(str(error), error.data)), is_error=True)
        return result_of(answer, tool=f"{self.name}: {tool}")

    async def _call(
        self, tool: str, arguments: Mapping[str, Any], timeout_s: float, episode: ToolEpisode | None, *, tell: bool
    ) -> Answer:
        """Send the call, again for each input that the server asks for (since 2026-07-28, each round is a request)."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        told = episode if tell else None
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if told is not None:
            params["_meta"] = {EPISODE_META: told.record_id}

        async def inquire(method: str, question: Mapping[str, Any]) -> Mapping[str, Any]:
            return await self.elicitation.answer(method, question, episode)

        pause_s = _FIRST_PAUSE_S
        relisted = False
        for _ in range(_MOST_ROUNDS):
            headers = self._call_headers(tool, arguments, told)
            left_s = max(end - loop.time(), 0.001)
            try:
                answer = await self._request("tools/call", params, timeout_s=left_s, headers=headers, inquire=inquire)
            except RpcError as error:
                if error.code != HEADER_MISMATCH or relisted:
                    raise
                # The server's schemas have changed, and with them the arguments that belong into headers.
                relisted = True
                await self.list_tools(timeout_s=left_s)
                continue
            if answer.get("resultType") != "input_required":
                return answer
            questions = answer.get("inputRequests") or {}
            params = {**params, "requestState": answer["requestState"]} if "requestState" in answer else dict(params)
            if questions:
                params["inputResponses"] = await self.elicitation.answer_all(questions, episode)
            else:
                params.pop("inputResponses", None)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise RpcError(0, f"the server asked for input more than {_MOST_ROUNDS} times")

    def _call_headers(self, tool: str, arguments: Mapping[str, Any], episode: ToolEpisode | None) -> Mapping[str, str]:
        headers = {} if episode is None else {EPISODE_HEADER: episode.record_id}
        if self.protocol is not None and self.protocol.is_stateless:
            from mcp.shared.inbound import encode_header_value, mcp_param_headers

            headers["mcp-name"] = encode_header_value(tool)
            if wanted := self.param_headers.get(tool):
                headers |= mcp_param_headers(wanted, arguments)
        return headers


def _client_info() -> dict[str, str]:
    return {"name": "agentrl", "version": _VERSION}


_VERSION = version_of("agentrl-core")
