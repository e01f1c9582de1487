"""Which proxy leads to a server, and calls that go through one: to plain servers, and by CONNECT to secure ones."""

import asyncio
import base64
import contextlib
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agentrl_core.errors import ConfigError
from agentrl_core.http.proxies import Proxy, is_option, proxy_of
from agentrl_core.http.server_client import ExchangeError, ServerClient
from agentrl_core.http.tls_context import ssl_context

CERTIFICATE = Path(__file__).parents[1] / "certificates" / "server.pem"
"""Of server.test, with its key; good for nothing else."""
REMOTE = "http://server.test/v1"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "url", "found"),
    [
        ({}, REMOTE, None),
        ({"HTTP_PROXY": "http://p:1"}, REMOTE, "http://p:1"),
        ({"http_proxy": "http://p:1"}, REMOTE, "http://p:1"),
        ({"HTTP_PROXY": "p:1"}, REMOTE, "http://p:1"),
        ({"HTTP_PROXY": "http://p:1/"}, REMOTE, "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, "https://server.test", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://server.test", "http://p:1"),
        ({"ALL_PROXY": "https://p:1"}, "https://server.test", "https://p:1"),
        ({"ALL_PROXY": "http://p:1", "HTTP_PROXY": "http://q:2"}, REMOTE, "http://q:2"),
        ({"HTTP_PROXY": "http://p:1"}, "http://127.0.0.1:80", None),
        ({"HTTP_PROXY": "http://p:1"}, "http://localhost", None),
        ({"HTTP_PROXY": "http://p:1"}, "http://[::1]:80", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "server.test"}, REMOTE, None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "a, .TEST"}, REMOTE, None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "*.test"}, REMOTE, None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "*"}, REMOTE, None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "er.test,server.test:81"}, REMOTE, "http://p:1"),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "server.test:81"}, "http://server.test:81", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, "http://10.1.2.3", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, "http://11.1.2.3", "http://p:1"),
    ],
)
def test_the_environment_names_the_proxy(environment, variables, url, found):
    for name, value in variables.items():
        environment.setenv(name, value)
    proxy = proxy_of(url, None)
    assert (proxy and proxy.url) == found


def test_the_option_wins_also_for_this_machine(environment):
    environment.setenv("HTTP_PROXY", "http://p:1")
    environment.setenv("NO_PROXY", "*")
    assert proxy_of(REMOTE, "http://q:2") == Proxy(url="http://q:2")
    assert proxy_of("http://127.0.0.1", "http://q:2") == Proxy(url="http://q:2")
    environment.delenv("NO_PROXY")
    assert proxy_of(REMOTE, "direct") is None


@pytest.mark.parametrize(
    "value", ["socks5://p:1", "p:1", "http://", "http://p:x", "http://p/path", "http://me:word@p:1"]
)
def test_an_option_that_is_no_proxy_is_refused_without_its_password(value):
    with pytest.raises(ConfigError, match=r"proxy: expected http") as refused:
        ServerClient(REMOTE, proxy=value)
    assert ":word" not in str(refused.value)
    assert not is_option(value)


@pytest.mark.parametrize("value", ["direct", "http://proxy.corp:3128", "https://[::1]:3128/"])
def test_an_option_may_be_a_proxy_or_none(value):
    assert is_option(value)


def test_a_proxy_of_the_environment_that_cannot_be_used_is_named(environment):
    environment.setenv("HTTP_PROXY", "socks5://me:word@p:1")
    with pytest.raises(ConfigError, match=r"HTTP_PROXY in the environment .*SOCKS") as refused:
        ServerClient(REMOTE)
    assert "word" not in str(refused.value)


def test_user_and_password_are_in_no_text(environment):
    environment.setenv("HTTP_PROXY", "http://me%40corp:s%3Acret@p:1")
    proxy = proxy_of(REMOTE, None)
    assert (proxy.url, proxy.user, proxy.password) == ("http://p:1", "me@corp", "s:cret")
    assert "cret" not in repr(proxy)


class ForwardProxy:
    """A small forward proxy: absolute addresses and CONNECT, whatever the name, lead to one place on loopback."""

    def __init__(self, port, status=b"200 OK"):
        self._port, self._status = port, status
        self.heads = []

    async def talk(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        method, address, _ = head.split(b"\r\n")[0].split(b" ")
        if method == b"CONNECT":
            writer.write(b"HTTP/1.1 %b\r\n\r\n" % self._status)
            if not self._status.startswith(b"200"):
                return
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            if method != b"CONNECT":
                path = urlsplit(address.decode()).path.encode()
                back.write(head.replace(address, path, 1))
            await asyncio.gather(self._pipe(reader, back), self._pipe(there, writer))
        finally:
            back.transport.abort()

    async def _pipe(self, source, target):
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
            target.write_eof() if target.can_write_eof() else target.close()


@contextlib.asynccontextmanager
async def listening(talk, **options):
    """Serve on a free port of loopback while the context lasts; whatever is still connected then is cut off."""
    writers = []

    async def talk_and_close(reader, writer):
        writers.append(writer)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
                await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(talk_and_close, "127.0.0.1", 0, **options)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for writer in writers:
            writer.transport.abort()


async def say_ok(reader, writer):
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"content-length: 2" in head.lower():
            await reader.readexactly(2)
        writer.write(OK)


@pytest.fixture
def trusted(monkeypatch):
    """`trusted(variable)`: trust the certificate of server.test as the environment's users do."""
    ssl_context.cache_clear()
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    yield lambda variable: monkeypatch.setenv(variable, str(CERTIFICATE))
    ssl_context.cache_clear()


async def read(client):
    try:
        with await client.request("POST", "/chat", b"{}") as reply:
            return await reply.read()
    finally:
        client.close()


def test_a_plain_server_is_asked_by_its_whole_address(environment):
    async def ask():
        async with listening(say_ok) as port:
            proxy = ForwardProxy(port)
            async with listening(proxy.talk) as proxy_port:
                environment.setenv("HTTP_PROXY", f"http://me:word@127.0.0.1:{proxy_port}")
                return await read(ServerClient(REMOTE, retries=0)), proxy.heads

    body, (head,) = asyncio.run(ask())
    assert body == b"ok"
    assert head.startswith(b"POST http://server.test/v1/chat HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:word") in head


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_a_secure_server_is_asked_through_a_tunnel(trusted, variable):
    trusted(variable)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(CERTIFICATE)

    async def ask():
        async with listening(say_ok, ssl=own) as port:
            proxy = ForwardProxy(port)
            async with listening(proxy.talk) as proxy_port:
                client = ServerClient("https://server.test/v1", proxy=f"http://127.0.0.1:{proxy_port}", retries=0)
                return await read(client), proxy.heads

    body, (head,) = asyncio.run(ask())
    assert body == b"ok"
    assert head.startswith(b"CONNECT server.test:443 HTTP/1.1\r\n")
    assert b"/chat" not in head


def test_a_certificate_that_nobody_trusts_is_no_connection(trusted):
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(CERTIFICATE)

    async def ask():
        async with listening(say_ok, ssl=own) as port:
            await read(ServerClient(f"https://127.0.0.1:{port}", retries=0))

    with pytest.raises(ExchangeError, match=r"(?i)certificate") as failed:
        asyncio.run(ask())
    assert failed.value.fault == "connect"


def test_a_proxy_that_refuses_is_named_without_its_password(environment, trusted):
    async def ask():
        proxy = ForwardProxy(0, status=b"407 Proxy Authentication Required")
        async with listening(proxy.talk) as port:
            environment.setenv("HTTPS_PROXY", f"http://me:word@127.0.0.1:{port}")
            await read(ServerClient("https://server.test", retries=0))

    with pytest.raises(ExchangeError, match=r"through the proxy http://127\.0\.0\.1:\d+: .*407") as failed:
        asyncio.run(ask())
    assert failed.value.fault == "connect"
    assert "word" not in str(failed.value)


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"])
def test_certificates_that_are_not_there_are_told_before_anything_is_asked(trusted, monkeypatch, variable, tmp_path):
    monkeypatch.setenv(variable, str(tmp_path / "no.pem"))
    with pytest.raises(ConfigError, match=rf"{variable}: .*no\.pem does not exist"):
        ServerClient("https://server.test")
    ServerClient("http://server.test")
