"""OAuth for servers over HTTP: access tokens, which the MCP SDK's own client gets, renews and asks people for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import webbrowser
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qs, urlsplit

import attrs

from agentrl_core.errors import ToolNotSentError, ToolServerError
from agentrl_mcp.backend import one_line
from agentrl_mcp.connection import STATELESS

if TYPE_CHECKING:
    import httpx2
    from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider

    from agentrl_mcp.tokens import TokenFile

LOGIN_S = 240.0
"""Time that a person has to log in; all tool servers of a run have 300 s to start."""
_EXCHANGE_S = 30.0
_MOST_SHOWN_CHARS = 300
_UNAUTHORIZED = 401
_LONG_AGO = 1.0
_DONE = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\nDone; this page can be closed.\n"


@attrs.frozen(kw_only=True)
class OAuth:
    """Options in the section `oauth` of a server."""

    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    """`authorization_code`: a person logs in once, in a browser. `client_credentials`: the run has a client of its own
    at the authorization server."""
    issuer: str = ""
    """Address of the authorization server that knows the client, the only one that gets its secret."""
    client_id: str = ""
    """Name of the client at the authorization server; without one, a client registers itself."""
    client_secret_env: str = ""
    """Variable of the environment with the client's secret."""
    private_key_env: str = ""
    """Variable with the client's private key (PEM), with which it signs instead of sending a secret."""
    algorithm: str = "RS256"
    """Algorithm of that signature."""
    client_metadata_url: str = ""
    """Address of a document about the client, which authorization servers take in place of a registration."""
    scope: str = ""
    """What to ask for, words with spaces between them; without it, what the server says that it needs."""
    callback_port: int = 8974
    """Port of this machine to which the browser comes back after the login."""
    token_file: str = ""
    """File in which the tokens of a login are kept; without it, one in `~/.local/state/agentrl`."""

    def __attrs_post_init__(self) -> None:
        """Refuse options that do not fit together."""
        if self.grant == "client_credentials":
            if not (self.issuer and self.client_id) or bool(self.client_secret_env) == bool(self.private_key_env):
                raise ValueError(
                    "client_credentials needs `issuer`, `client_id`, and one of `client_secret_env` and "
                    "`private_key_env`"
                )
        elif self.private_key_env:
            raise ValueError("private_key_env: only with `grant: client_credentials`")
        elif self.client_secret_env and not self.client_id:
            raise ValueError("client_secret_env: needs the `client_id` that the secret belongs to")


class Login:
    """The access token for one server, for all its connections."""

    def __init__(self, options: OAuth, *, url: str, name: str, proxy: str | None) -> None:
        self._options, self._url, self._name, self._proxy = options, url, name, proxy
        self._lock = asyncio.Lock()
        logging.getLogger("mcp.client.auth.oauth2").addFilter(_is_harmless)
        self._provider, self._file = self._make()
        self.is_starting = True
        """The run has not begun: a person may be asked to log in, and a refusal ends the start."""
        self._returned: tuple[asyncio.Future[Mapping[str, str]], asyncio.Server]

    @property
    def header(self) -> str:
        """Value of the header `Authorization`; empty without a token."""
        tokens = self._provider.context.current_tokens
        return f"Bearer {tokens.access_token}" if tokens is not None else ""

    async def renew(self, status: int, headers: Mapping[str, str], used: str) -> bool:
        """Get a token after a refusal of a request with the header `used`; return whether there is another one.

        Raises `ToolServerError` during the start and `ToolNotSentError` during the run; no message has a token.
        """
        import httpx2
        from mcp.client.auth import OAuthFlowError

        async with self._lock:
            if self.header == used:
                sent = {"mcp-protocol-version": STATELESS, **({"authorization": used} if used else {})}
                request = httpx2.Request("POST", self._url, headers=sent)
                refused = httpx2.Response(status, headers=dict(headers), request=request)
                context = self._provider.context
                if used and status == _UNAUTHORIZED:
                    # Whatever its time is: only of an expired token does the SDK use the refresh token.
                    context.token_expiry_time = _LONG_AGO
                try:
                    if self._file is not None:
                        self._file.restore(context)
                    await self._follow(request, refused, used)
                except httpx2.HTTPError as error:
                    raise ToolNotSentError(f"{self._name}: oauth: {one_line(error)}") from None
                except (OAuthFlowError, ValueError, OSError) as error:
                    kind = ToolServerError if self.is_starting else ToolNotSentError
                    raise kind(f"{self._name}: oauth: {_shown(error)}") from None
            return self.header not in {"", used}

    async def _follow(self, request: httpx2.Request, refused: httpx2.Response, used: str) -> None:
        """Send what the SDK's flow wants sent, until it has a token for `request`, or none."""
        flow = self._provider.async_auth_flow(request)
        async with contextlib.aclosing(flow), self._client() as client:
            with contextlib.suppress(StopAsyncIteration):
                wanted = await anext(flow)
                while wanted is not request or request.headers.get("authorization", "") in {"", used}:
                    wanted = await flow.asend(refused if wanted is request else await client.send(wanted))

    def _client(self) -> httpx2.AsyncClient:
        import httpx2

        from agentrl_core.api.http import ssl_context

        proxy = None if self._proxy == "direct" else self._proxy
        return httpx2.AsyncClient(verify=ssl_context(), proxy=proxy, trust_env=self._proxy is None, timeout=_EXCHANGE_S)

    def _make(self) -> tuple[OAuthClientProvider, TokenFile | None]:
        from mcp.client.auth import OAuthClientProvider
        from mcp.client.auth.extensions.client_credentials import (
            ClientCredentialsOAuthProvider,
            PrivateKeyJWTOAuthProvider,
            SignedJWTParameters,
        )
        from mcp.shared.auth import OAuthClientMetadata
        from pydantic import AnyUrl

        from agentrl_mcp.tokens import TokenFile, TokenMemory, default_path

        own, scope = self._options, self._options.scope or None
        if own.private_key_env:
            key = self._variable("private_key_env", own.private_key_env)
            signed = SignedJWTParameters(
                issuer=own.client_id, subject=own.client_id, signing_key=key, signing_algorithm=own.algorithm
            )
            assertions = signed.create_assertion_provider()
            return PrivateKeyJWTOAuthProvider(
                self._url, TokenMemory(), own.client_id, assertions, scope=scope, issuer=own.issuer
            ), None
        secret = self._variable("client_secret_env", own.client_secret_env) if own.client_secret_env else None
        if own.grant == "client_credentials":
            return ClientCredentialsOAuthProvider(
                self._url, TokenMemory(), own.client_id, str(secret), scope=scope, issuer=own.issuer
            ), None
        metadata = OAuthClientMetadata(
            client_name="agentrl",
            redirect_uris=[AnyUrl(f"http://127.0.0.1:{own.callback_port}/callback")],
            scope=scope,
        )
        file = TokenFile(own.token_file or default_path(self._url), own, secret)
        provider = OAuthClientProvider(
            self._url, metadata, file, self._show, self._came_back, own.client_metadata_url or None
        )
        file.context = provider.context
        return provider, file

    def _variable(self, option: str, name: str) -> str:
        if not (value := os.environ.get(name)):
            raise ToolServerError(f"{self._name}: oauth.{option}: the environment has no {name}")
        return value

    async def _show(self, address: str) -> None:
        """Send a person to the page where they log in."""
        if not (self.is_starting and _is_terminal()):
            raise ValueError(
                "a person has to log in: call `agentrl tools list CONFIG` in a terminal, which keeps the login for "
                "later runs"
            )
        # The browser may be back at once.
        came: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self._returned = came, await _await_browser(came, self._options.callback_port)
        sys.stderr.write(f"{self._name}: log in at {address}\n")
        await asyncio.to_thread(webbrowser.open, address)

    async def _came_back(self) -> AuthorizationCodeResult:
        """Wait for the browser to come back from the login, and return what it brings."""
        from mcp.shared.auth import AuthorizationCodeResult

        came, server = self._returned
        try:
            async with server, asyncio.timeout(LOGIN_S):
                query = await came
        except TimeoutError:
            raise ValueError(f"nobody logged in within {LOGIN_S:g} s") from None
        if "code" not in query:
            raise ValueError(f"the login was refused: {query['error']} {query.get('error_description', '')}".strip())
        return AuthorizationCodeResult(code=query["code"], state=query.get("state"), iss=query.get("iss"))


def _is_terminal() -> bool:
    """Return whether a person is there to log in."""
    return sys.stderr.isatty()


async def _await_browser(came: asyncio.Future[Mapping[str, str]], port: int) -> asyncio.Server:
    """Serve the page to which a browser comes back from a login; `came` gets what it brings."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readline()).decode(errors="replace").split(" ")[1:2]
        writer.write(_DONE)
        await writer.drain()
        writer.close()
        query = {key: values[0] for key, values in parse_qs(urlsplit("".join(target)).query).items()}
        if query.keys() & {"code", "error"} and not came.done():
            came.set_result(query)

    return await asyncio.start_server(answer, "127.0.0.1", port)


def _shown(error: Exception) -> str:
    """Return the first line of an error: further ones of a wrong reply quote it, with the token."""
    return (str(error).splitlines() or [type(error).__name__])[0][:_MOST_SHOWN_CHARS]


def _is_harmless(record: logging.LogRecord) -> bool:
    # The SDK logs errors with a traceback that may quote a token; the same errors are raised.
    return record.levelno < logging.ERROR
