"""OAuth for servers over HTTP: where tokens come from, when they are renewed, and that nobody sees them."""

import asyncio
import contextlib
import socket
import threading
import urllib.request
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from agentrl_core.api.options import resolve
from agentrl_core.api.tools import ToolEpisode
from agentrl_core.errors import ToolNotSentError, ToolServerError
from agentrl_mcp.oauth import OAuth
from agentrl_mcp.tools import MCPTools

OAuthServer = resolve("oauth_server.py:OAuthServer", [Path(__file__).parent]).value
EPISODE = ToolEpisode(record_id="record-1", task_id="t1", data={})


@pytest.fixture
def server():
    with contextlib.closing(OAuthServer()) as server:
        yield server


@pytest.fixture
def own(server, monkeypatch):
    """Options of a client that the authorization server knows."""
    monkeypatch.setenv("OWN_SECRET", "hush-1")
    return OAuth(grant="client_credentials", issuer=server.base, client_id="agent", client_secret_env="OWN_SECRET")


@pytest.fixture
def person(monkeypatch, tmp_path):
    """A person at the terminal, whose browser follows redirects at once; returns options for a login."""
    monkeypatch.setattr("agentrl_mcp.oauth._is_terminal", lambda: True)

    def browse(address):
        threading.Thread(target=lambda: urllib.request.urlopen(address, timeout=20).read(), daemon=True).start()

    monkeypatch.setattr("webbrowser.open", browse)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return OAuth(callback_port=port, token_file=str(tmp_path / "state" / "tokens.json"))


def used(server, oauth, scenario=None, **options):
    """Return what `scenario(call)` returns between start and close; without one, the token of a call."""

    async def drive():
        tools = MCPTools(url=server.url, oauth=oauth, name="locked", **options)
        try:
            async with asyncio.timeout(40):
                await tools.start()
                session = await tools.open(EPISODE)

                async def call():
                    return (await session.call("who", {}, timeout_s=20)).text

                return await (scenario(call) if scenario else call())
        finally:
            await tools.close()

    return asyncio.run(drive())


def test_a_client_of_its_own_gets_a_token_with_its_secret(server, own):
    assert used(server, own) == "Bearer token-1"
    assert server.grants == [("client_credentials", "agent:hush-1", False)]


def test_a_client_with_a_key_signs_instead(server, monkeypatch):
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    monkeypatch.setenv("OWN_KEY", key.decode())
    options = {"issuer": server.base, "client_id": "agent", "private_key_env": "OWN_KEY", "algorithm": "ES256"}
    assert used(server, OAuth(grant="client_credentials", **options)) == "Bearer token-1"
    assert server.grants == [("client_credentials", "", True)]


def test_calls_whose_token_is_revoked_share_one_new_token(server, own):
    async def scenario(call):
        server.valid.clear()
        return await asyncio.gather(*(call() for _ in range(20)))

    assert set(used(server, own, scenario)) == {"Bearer token-2"}
    assert len(server.grants) == 2


def test_a_person_logs_in_once_and_later_runs_use_what_was_kept(server, person, capsys, monkeypatch):
    assert used(server, person) == "Bearer token-1"
    assert f"locked: log in at {server.base}/authorize?" in capsys.readouterr().err
    monkeypatch.setattr("agentrl_mcp.oauth._is_terminal", lambda: False)
    assert used(server, person) == "Bearer token-1"
    assert server.grants == [("authorization_code", "registered", False)]


def test_a_kept_login_is_renewed_without_the_person(server, person, monkeypatch):
    server.expires_in = -1
    used(server, person)
    server.expires_in = 3600
    monkeypatch.setattr("agentrl_mcp.oauth._is_terminal", lambda: False)
    assert used(server, person) == "Bearer token-2"
    assert [grant for grant, *_ in server.grants] == ["authorization_code", "refresh_token"]


def test_tokens_are_kept_where_their_owner_alone_can_read_them(server, person, tmp_path):
    used(server, person)
    (file,) = (tmp_path / "state").iterdir()
    assert "token-1" in file.read_text()
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent)] == [0o600, 0o700]


@pytest.mark.parametrize("text", ["{", "[]", '{"tokens": {"access_token": "token-8"}}'])
def test_a_damaged_file_of_tokens_is_named_and_not_quoted(server, person, tmp_path, text):
    used(server, person)
    (tmp_path / "state" / "tokens.json").write_text(text)
    with pytest.raises(ToolServerError, match=r"tokens\.json has no tokens that can be read; remove it") as caught:
        used(server, person)
    assert "token-8" not in str(caught.value)


def test_tokens_that_another_process_renewed_are_taken_over(server, person):
    async def scenario(call):
        await asyncio.to_thread(used, server, person, revoke)
        return await call()

    async def revoke(call):
        server.valid.clear()
        return await call()

    assert used(server, person, scenario) == "Bearer token-2"
    assert [grant for grant, *_ in server.grants] == ["authorization_code", "refresh_token"]


def test_a_run_without_a_person_says_how_to_log_in(server, person, monkeypatch):
    monkeypatch.setattr("agentrl_mcp.oauth._is_terminal", lambda: False)
    with pytest.raises(ToolServerError, match=r"^locked: oauth: a person has to log in: call `agentrl tools list"):
        used(server, person)


def test_a_login_that_ends_during_the_run_costs_its_calls_and_asks_nobody(server, person):
    async def scenario(call):
        server.valid.clear()
        server.refreshes.clear()
        with pytest.raises(ToolNotSentError, match="a person has to log in"):
            await call()

    used(server, person, scenario)


@pytest.mark.parametrize("fault", ["refused", "secret", "environment", "issuer"])
def test_what_goes_wrong_at_the_start_is_named_in_one_line(server, own, person, monkeypatch, fault):
    options, says = own, ""
    match fault:
        case "refused":
            server.refuses, options, says = "yes", person, "the login was refused: access_denied"
        case "secret":
            monkeypatch.setenv("OWN_SECRET", "wrong")
            says = r"Token exchange failed \(401\).*invalid_client"
        case "environment":
            monkeypatch.delenv("OWN_SECRET")
            says = "client_secret_env: the environment has no OWN_SECRET"
        case "issuer":
            options = OAuth(
                grant="client_credentials", issuer="https://a", client_id="a", client_secret_env="OWN_SECRET"
            )
            says = "mismatch: .* != https://a"
    with pytest.raises(ToolServerError, match=f"^locked: oauth.*{says}") as caught:
        used(server, options)
    assert "\n" not in str(caught.value)


def test_a_server_that_wants_a_login_says_so(server):
    with pytest.raises(ToolServerError, match=r"HTTP status 401; it wants a login: set `oauth: {}`"):
        used(server, None, start_timeout_s=0.1)


def test_tokens_and_secrets_are_in_no_log_and_no_message(server, own, caplog):
    caplog.set_level(0)

    async def scenario(call):
        server.valid.clear()
        # A reply that is no token, although it has one in it: the SDK quotes it.
        server.token = lambda form, basic: (200, {"access_token": "token-9", "expires_in": "soon"})
        with pytest.raises(ToolNotSentError) as caught:
            await call()
        return str(caught.value)

    told = used(server, own, scenario) + caplog.text + repr(own)
    assert "locked: oauth: " in told
    assert not [word for word in ("hush-1", "token-1", "token-9") if word in told]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"grant": "client_credentials", "client_id": "a"}, "client_credentials needs `issuer`, `client_id`"),
        ({"private_key_env": "A"}, "private_key_env: only with"),
        ({"client_secret_env": "A"}, "needs the `client_id`"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        OAuth(**options)
