"""Who may call on whose behalf, and what nobody gets to see."""

import asyncio

import pytest

from agentrl_core.gateway.serving.web import HttpRequest
from agentrl_core.gateway.sessions import without_secrets

BODY = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def other(gateway, open_session):
    return open_session(gateway)


def status(reply):
    return reply.status_code, reply.json().get("error", {}).get("code")


def bearer(key):
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer EMPTY"}, {"x-api-key": "dummy"}])
def test_a_path_with_a_token_needs_no_key(session, send, store, headers):
    assert send(session, BODY, headers=headers).status_code == 200
    assert store.interactions[0].record_id == session.record_id


@pytest.mark.parametrize("form", ["Bearer", "bearer", "x-api-key"])
def test_a_key_alone_finds_its_session(session, other, send, store, form):
    headers = {"x-api-key": other.api_key} if form == "x-api-key" else {"authorization": f"{form} {other.api_key}"}
    assert send(session, BODY, headers=headers, token=False).status_code == 200
    assert store.interactions[0].record_id == other.record_id


def test_another_sessions_key_is_refused_even_after_its_end(gateway, session, other, send, store):
    refusal = send(session, BODY, headers=bearer(other.api_key))
    assert status(refusal) == (403, "wrong_session")
    assert "use the base_url and the api_key of the same episode" in refusal.text
    asyncio.run(gateway.close_session(other))
    assert status(send(session, BODY, headers=bearer(other.api_key))) == (403, "wrong_session")
    assert store.interactions == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/s/unknown/v1/chat/completions"])
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer sk-agentrl-guess"}, {"authorization": "Basic x"}])
def test_no_or_an_unknown_session_is_401(session, send, path, headers):
    assert status(send(session, BODY, path=path, headers=headers, token=False)) == (401, "invalid_api_key")


def test_an_ended_session_is_gone(gateway, session, send):
    send(session, BODY)
    assert len(asyncio.run(gateway.close_session(session))) == 1
    assert status(send(session, BODY)) == (410, "session_ended")
    assert status(send(session, BODY, headers=bearer(session.api_key), token=False)) == (410, "session_ended")


def test_who_calls_from_another_machine_needs_the_key(gateway, session, other):
    path = session.base_url.removeprefix(gateway.url) + "/v1/models"

    def ask(headers):
        request = HttpRequest(method="GET", path=path, headers=headers, body=b"", local=False)
        return asyncio.run(gateway.router.handle(request)).status

    assert ask({}) == 401
    assert ask({"x-api-key": "dummy"}) == 401
    assert ask({"x-api-key": other.api_key}) == 403
    assert ask({"x-api-key": session.api_key}) == 200


def test_models_are_shown_to_sessions_only(session, send):
    assert send(session, b"", method="GET", path="/v1/models", token=False).status_code == 401
    assert send(session, b"", method="GET", path="/v1/models").status_code == 200


def test_secrets_are_in_no_error_log_or_repr(gateway, session, other, send, store, engine, caplog):
    caplog.set_level("DEBUG", logger="agentrl_core")
    engine.replies = [ValueError("boom")]
    replies = [
        send(session, BODY, headers=bearer(session.api_key)),
        send(session, BODY, headers=bearer(other.api_key)),
        send(session, BODY, headers=bearer("sk-agentrl-guess"), token=False),
        send(session, BODY, path=f"/v1/{other.api_key}"),
        send(session, b"{", headers=bearer(session.api_key)),
        send(session, BODY),
    ]
    shown = (
        "".join(reply.text for reply in replies[:3] + replies[4:])
        + caplog.text
        + repr(session)
        + repr(store.interactions)
    )
    assert [reply.status_code for reply in replies] == [500, 403, 401, 404, 400, 200]
    for secret in (session.api_key, session.token, other.api_key, "sk-agentrl-guess"):
        assert secret not in shown


def test_secrets_differ(session, other):
    assert len({session.api_key, session.token, other.api_key, other.token}) == 4
    assert session.token not in session.api_key


def test_sessions_do_not_continue_each_other(session, other, send, store, engine):
    engine.replies = ["first"]
    send(session, BODY)
    dialogue = [*BODY["messages"], {"role": "assistant", "content": "first"}, {"role": "user", "content": "go on"}]
    send(other, {"messages": dialogue})
    send(session, {"messages": dialogue})
    first, elsewhere, continued = store.interactions
    assert elsewhere.parent is None
    assert continued.parent == first.id


def test_only_as_many_ends_are_remembered_as_fit(gateway, session, send, monkeypatch):
    monkeypatch.setattr("agentrl_core.gateway.sessions._REMEMBERED_ENDS", 1)
    asyncio.run(gateway.close_session(session))
    codes = {status(send(session, BODY)), status(send(session, BODY, headers=bearer(session.api_key), token=False))}
    assert codes == {(401, "invalid_api_key"), (410, "session_ended")}


def test_keys_and_addresses_are_taken_out_of_a_text(session):
    text = without_secrets(f"{session.api_key} at {session.base_url}/v1, half of it: {session.api_key[:20]}")
    assert text == f"sk-agentrl-… at {session.base_url.removesuffix(session.token)}…/v1, half of it: sk-agentrl-…"
