"""What the socket's side does before and around the routes."""

import asyncio
import io
import logging
import socket

import httpx2
import pytest


def can_listen_on_ipv6():
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as listener:
            listener.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not can_listen_on_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_host_is_reached_either_way(make_gateway, open_session):
    gateway = make_gateway(host="::1")
    session = open_session(gateway)
    assert gateway.url.startswith("http://[::1]:")

    async def ask():
        async with httpx2.AsyncClient(trust_env=False) as over_socket:
            for client in (over_socket, gateway.http_client):
                reply = await client.get(session.base_url + "/v1/models")
                assert reply.status_code == 200

    asyncio.run(ask())


def answer_to_headers(gateway, path, *headers):
    """Announce a body of 16 MB, send none of it, and return the first line of the answer."""
    host, port = gateway.url.removeprefix("http://").split(":")
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-length: 16000000", *headers, "", ""]
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall("\r\n".join(lines).encode())
        return connection.recv(65536).split(b"\r\n")[0]


def test_no_body_is_read_from_those_who_may_not_call(gateway, session, open_session):
    other = open_session(gateway)
    asyncio.run(gateway.close_session(other))
    path = "/v1/chat/completions"
    mine = session.base_url.removeprefix(gateway.url)
    theirs = other.base_url.removeprefix(gateway.url)
    key = f"authorization: Bearer {other.api_key}"
    assert b" 401 " in answer_to_headers(gateway, path)
    assert b" 401 " in answer_to_headers(gateway, "/s/unknown" + path)
    assert b" 403 " in answer_to_headers(gateway, mine + path, key)
    assert b" 410 " in answer_to_headers(gateway, theirs + path)


@pytest.mark.parametrize("path", ["/rl/start_session", "/v1/rl/set_reward", "/export_trajectories", "/grant_capacity"])
def test_no_body_is_read_from_those_who_may_not_control(gateway, session, path):
    assert b" 401 " in answer_to_headers(gateway, path)
    assert b" 40" in answer_to_headers(gateway, path, f"authorization: Bearer {session.api_key}")


@pytest.mark.parametrize(
    "header",
    [
        "x-forwarded-for: 192.0.2.7",
        "x-forwarded-proto: https",
        "forwarded: for=192.0.2.7",
        "x-real-ip: 192.0.2.7",
        "via: 1.1 proxy",
        "cf-connecting-ip: 192.0.2.7",
        "true-client-ip: 192.0.2.7",
        "x-client-ip: 192.0.2.7",
        "x-cluster-client-ip: 192.0.2.7",
        "fly-client-ip: 192.0.2.7",
        "x-amzn-trace-id: Root=1",
        "ngrok-skip-browser-warning: 1",
    ],
)
def test_a_token_in_a_url_is_good_on_this_machine_only(gateway, session, header):
    path = session.base_url.removeprefix(gateway.url) + "/v1/models"
    ask = ["GET " + path + " HTTP/1.1", "host: 127.0.0.1", "connection: close"]
    for more, status in (
        ([], b" 200 "),
        ([header], b" 401 "),
        ([header, f"x-api-key: {session.api_key}"], b" 200 "),
    ):
        host, port = gateway.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall("\r\n".join([*ask, *more, "", ""]).encode())
            assert status in connection.recv(65536).split(b"\r\n")[0]


def first_line(gateway, *lines):
    """Send a request of these lines and return the first of the answer."""
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall("\r\n".join([*lines, "connection: close", "", ""]).encode())
        return connection.recv(65536).split(b"\r\n")[0]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", b" 200 "),
        ("127.0.0.2:80", b" 200 "),
        ("localhost:8000", b" 200 "),
        ("agent.localhost", b" 200 "),
        ("[::1]:8000", b" 200 "),
        ("0.0.0.0:8000", b" 200 "),
        ("gateway.example.com", b" 401 "),
        ("192.0.2.7:8000", b" 401 "),
        ("localhost.example.com", b" 401 "),
        ("[::1", b" 401 "),
        ("127.0.0.1@example.com", b" 401 "),
        ("", b" 401 "),
    ],
)
def test_a_token_in_a_url_is_good_under_names_of_this_machine_only(gateway, session, host, status):
    path = session.base_url.removeprefix(gateway.url) + "/v1/models"
    assert status in first_line(gateway, f"GET {path} HTTP/1.1", f"host: {host}")
    assert b" 200 " in first_line(
        gateway, f"GET {path} HTTP/1.1", f"host: {host}", f"authorization: Bearer {session.api_key}"
    )


def test_tokens_in_urls_can_be_turned_off(make_gateway, open_session, send_to):
    gateway = make_gateway(url_tokens=False)
    session = open_session(gateway)
    refused = send_to(gateway, session, b"", method="GET", path="/v1/models")
    assert refused.status_code == 401
    assert "send the session's api_key" in refused.json()["error"]["message"]
    headers = {"x-api-key": session.api_key}
    assert send_to(gateway, session, b"", method="GET", path="/v1/models", headers=headers).status_code == 200


def test_a_users_log_gets_no_paths_as_they_hold_tokens(gateway, session, open_session, caplog, monkeypatch):
    log = io.StringIO()
    # Not caplog's own text: pytest listens to loggers, too, that pass nothing on to the user's handlers.
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(log)])
    caplog.set_level("DEBUG")
    path = session.base_url.removeprefix(gateway.url) + "/v1/chat/completions"
    key = f"authorization: Bearer {open_session(gateway).api_key}"
    assert b" 403 " in answer_to_headers(gateway, path, key)
    assert session.token not in log.getvalue()
