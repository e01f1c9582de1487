"""Agents from elsewhere open, end and reward sessions by themselves; who exports one gets what was sampled."""

import asyncio
import json
import threading

import pytest

from agentrl_core.config.sampling_sections import GatewayConfig
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import FinishReason, Outcome


def code(reply):
    return reply.status_code, reply.json().get("error", {}).get("code")


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_session_from_its_start_to_its_export(rest, engine, database, prefix):
    engine.replies = ["one", "two"]

    async def scenario():
        assert (await rest.post(prefix + "/grant_capacity")).json() == {"capacity": 1}
        opened = (await rest.post(prefix + "/rl/start_session", {"task_id": "math-7"})).json()
        key = opened["api_key"]
        assert (await rest.chat(key, "hello")).status_code == 200
        last = (await rest.chat(key, "hello", "one", "go on")).json()["id"]
        assert (await rest.post(prefix + "/rl/end_session", key=key)).json() == {"interaction_count": 2}
        assert (await rest.post(prefix + "/rl/set_reward", {"reward": True}, key=key)).status_code == 200
        body = {"session_id": opened["session_id"], "discount": 0.5, "style": "individual"}
        exported = await rest.post(prefix + "/export_trajectories", body)
        again = await rest.post(prefix + "/export_trajectories", body)
        return opened, last, exported.json()["interactions"], again

    opened, last, rows, again = asyncio.run(scenario())
    assert code(again) == (410, "session_gone")
    assert [row["reward"] for row in rows.values()] == [0.5, 1.0]
    assert list(rows)[1] == last
    for row, said in zip(rows.values(), engine.log, strict=True):
        assert row["tensor_dict"]["input_ids"] == [*said.request.prompt_ids, *said.ids]
        prompt = len(said.request.prompt_ids)
        assert row["tensor_dict"]["loss_mask"] == [0] * prompt + [1] * len(said.ids)
        assert row["tensor_dict"]["logprobs"][prompt:] == pytest.approx(list(said.logprobs))
        assert row["tensor_dict"]["versions"] == [-1] * prompt + list(said.versions)
    (record,) = asyncio.run(database.records("run"))
    assert (record.id, record.task_id, record.outcome) == (opened["session_id"], "math-7", Outcome.SCORED)
    assert (record.reward, record.rewards) == (1.0, {last: 1.0})


def test_a_reward_that_is_written_late_does_not_open_a_closed_session_again(rest, database, monkeypatch):
    write, began, closed = SQLiteStore.update_session, threading.Event(), threading.Event()

    async def late(store, record_id, *, state, rewards):
        if state == "ended" and rewards:
            began.set()
            assert await asyncio.to_thread(closed.wait, 20)
        await write(store, record_id, state=state, rewards=rewards)

    monkeypatch.setattr(SQLiteStore, "update_session", late)

    async def scenario():
        opened = await rest.start()
        await rest.chat(opened["api_key"], "hello")
        await rest.post("/rl/end_session", key=opened["api_key"])
        reward = asyncio.create_task(rest.post("/rl/set_reward", {"reward": 1}, key=opened["api_key"]))
        assert await asyncio.to_thread(began.wait, 20)
        exported = await rest.post("/export_trajectories", {"session_id": opened["session_id"]})
        closed.set()
        return exported, await reward

    assert [reply.status_code for reply in asyncio.run(scenario())] == [200, 200]
    (row,) = asyncio.run(database.sessions("run"))
    assert (row.state, list(row.rewards.values())) == ("closed", [1.0])


def test_no_session_without_capacity(rest):
    reply = asyncio.run(rest.post("/rl/start_session", {"task_id": "t"}))
    assert code(reply) == (429, "no_capacity")
    assert reply.headers["retry-after"] == "1"


def test_each_grant_opens_one_session(rest):
    async def scenario():
        await rest.start()
        return await rest.post("/rl/start_session", {"task_id": "t"})

    assert asyncio.run(scenario()).status_code == 429


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/rl/start_session", "POST"),
        ("/export_trajectories", "POST"),
        ("/grant_capacity", "POST"),
        ("/rl/sessions", "GET"),
    ],
)
def test_what_the_admin_may_is_for_nobody_else(rest, path, method):
    async def scenario():
        key = (await rest.start())["api_key"]
        none = await rest.gateway.http_client.request(method, rest.gateway.url + path)
        return code(none), code(await rest.post(path, key=key, method=method))

    assert asyncio.run(scenario()) == ((401, "invalid_api_key"), (403, "not_admin"))


def test_without_an_admin_key_nobody_is_admin(gateway):
    async def ask(key):
        headers = {"x-api-key": key}
        return await gateway.http_client.post(gateway.url + "/grant_capacity", headers=headers)

    assert {asyncio.run(ask(key)).status_code for key in ("None", "admin", "x" * 40)} == {403}


def test_the_admin_key_makes_no_llm_calls(rest):
    assert code(asyncio.run(rest.chat(rest.key, "hello"))) == (401, "invalid_api_key")


def test_a_client_brings_its_own_key(rest, database):
    own = "my-agent-key-0001"

    async def scenario():
        opened = await rest.start(api_key=own)
        assert opened["api_key"] == own
        assert (await rest.chat(own, "hello")).status_code == 200
        await rest.post("/grant_capacity")
        twice = await rest.post("/rl/start_session", {"task_id": "t", "api_key": own})
        await rest.post("/rl/end_session", key=own)
        after = await rest.post("/rl/start_session", {"task_id": "t", "api_key": own})
        await rest.chat(own, "hello")
        first = await rest.post("/rl/set_reward", {"session_id": opened["session_id"], "reward": 2})
        second = await rest.post("/rl/set_reward", {"reward": 3}, key=own)
        listed = (await rest.post("/rl/sessions", method="GET")).json()["sessions"]
        return twice, after, first, second, listed

    twice, after, first, second, listed = asyncio.run(scenario())
    assert code(twice) == (409, "session_active")
    assert [reply.status_code for reply in (after, first, second)] == [200, 200, 200]
    assert [list(item["rewards"].values()) for item in listed] == [[2.0], [3.0]]
    assert own.encode() not in database.path.read_bytes()


@pytest.mark.parametrize("key", ["short", "fifteen-letters", "with a blank in it", "ümlaut-ümlaut-ümlaut", "", 7])
def test_a_key_that_can_be_guessed_or_sent_by_nobody_is_refused(rest, key):
    async def scenario():
        await rest.post("/grant_capacity")
        return await rest.post("/rl/start_session", {"task_id": "t", "api_key": key})

    assert asyncio.run(scenario()).status_code == 400


def test_the_admin_key_is_no_sessions_key(rest):
    reply = asyncio.run(rest.post("/rl/start_session", {"task_id": "t", "api_key": rest.key}))
    assert reply.status_code == 400
    assert rest.key not in reply.text


def test_an_ended_session_takes_rewards_and_no_calls(rest):
    async def scenario():
        key = (await rest.start())["api_key"]
        await rest.chat(key, "hello")
        await rest.post("/rl/end_session", key=key)
        return [
            await rest.chat(key, "hello"),
            await rest.post("/rl/end_session", key=key),
            await rest.post("/rl/set_reward", {"reward": 1}, key=key),
        ]

    assert [reply.status_code for reply in asyncio.run(scenario())] == [410, 410, 200]


def test_an_exported_session_is_gone(rest):
    async def scenario():
        opened = await rest.start()
        await rest.post("/rl/end_session", key=opened["api_key"])
        await rest.post("/export_trajectories", {"session_id": opened["session_id"]})
        paths = ("/rl/end_session", "/rl/set_reward", "/chat/completions")
        return [(await rest.post(path, {"reward": 1}, key=opened["api_key"])).status_code for path in paths]

    assert asyncio.run(scenario()) == [410, 410, 410]


@pytest.mark.parametrize("reward", [None, "1", [1], "1e999", "NaN"])
def test_a_reward_is_a_finite_number(rest, reward):
    async def scenario():
        key = (await rest.start())["api_key"]
        await rest.chat(key, "hello")
        text = json.dumps({"reward": reward}).replace('"1e999"', "1e999").replace('"NaN"', "NaN")
        headers = {"authorization": f"Bearer {key}"}
        return await rest.gateway.http_client.post(
            rest.gateway.url + "/rl/set_reward", content=text.encode(), headers=headers
        )

    assert asyncio.run(scenario()).status_code == 400


def test_rewards_need_a_call_of_their_own_session(rest):
    async def scenario():
        first, second = await rest.start(), await rest.start()
        nothing = await rest.post("/rl/set_reward", {"reward": 1}, key=first["api_key"])
        theirs = (await rest.chat(second["api_key"], "hello")).json()["id"]
        await rest.chat(first["api_key"], "hello")
        unknown = await rest.post("/rl/set_reward", {"reward": 1, "interaction_id": theirs}, key=first["api_key"])
        return code(nothing), code(unknown)

    assert asyncio.run(scenario()) == ((400, "no_interaction"), (400, "unknown_interaction"))


def test_calls_that_are_not_trained_get_no_reward_and_no_row(rest):
    async def scenario():
        opened = await rest.start()
        headers = {"authorization": f"Bearer {opened['api_key']}", "x-agentrl-trainable": "false"}
        body = {"messages": [{"role": "user", "content": "judge this"}]}
        await rest.gateway.http_client.post(rest.gateway.url + "/chat/completions", json=body, headers=headers)
        refused = await rest.post("/rl/set_reward", {"reward": 1}, key=opened["api_key"])
        ended = await rest.post("/rl/end_session", key=opened["api_key"])
        exported = await rest.post("/export_trajectories", {"session_id": opened["session_id"]})
        return code(refused), ended.json(), exported.json()["interactions"]

    assert asyncio.run(scenario()) == ((400, "no_interaction"), {"interaction_count": 1}, {})


def test_a_client_that_leaves_during_its_export_leaves_no_record_without_an_end(rest, database, monkeypatch):
    finish, began, left, done = SQLiteStore.finish_record, threading.Event(), threading.Event(), threading.Event()

    async def slow(store, record):
        began.set()
        assert await asyncio.to_thread(left.wait, 20)
        await finish(store, record)
        done.set()

    monkeypatch.setattr(SQLiteStore, "finish_record", slow)

    async def scenario():
        opened = await rest.start()
        await rest.chat(opened["api_key"], "hello")
        await rest.post("/rl/set_reward", {"reward": 1}, key=opened["api_key"])
        await rest.post("/rl/end_session", key=opened["api_key"])
        export = asyncio.create_task(rest.post("/export_trajectories", {"session_id": opened["session_id"]}))
        assert await asyncio.to_thread(began.wait, 20)
        export.cancel()
        await asyncio.wait({export})
        left.set()
        assert await asyncio.to_thread(done.wait, 20)

    asyncio.run(scenario())
    (record,) = asyncio.run(database.records("run"))
    assert (record.outcome, record.reward) == (Outcome.SCORED, 1.0)


def test_an_export_waits_for_the_end(rest):
    async def scenario():
        opened = await rest.start()
        export = asyncio.create_task(rest.post("/export_trajectories", {"session_id": opened["session_id"]}))
        await rest.chat(opened["api_key"], "hello")
        assert not export.done()
        await rest.post("/rl/end_session", key=opened["api_key"])
        return await asyncio.wait_for(export, 5)

    assert len(asyncio.run(scenario()).json()["interactions"]) == 1


def test_of_two_exports_one_gets_the_session(rest):
    async def scenario():
        opened = await rest.start()
        body = {"session_id": opened["session_id"]}
        exports = [asyncio.create_task(rest.post("/export_trajectories", body)) for _ in range(2)]
        await asyncio.sleep(0)
        await rest.post("/rl/end_session", key=opened["api_key"])
        return sorted(reply.status_code for reply in await asyncio.gather(*exports))

    assert asyncio.run(scenario()) == [200, 410]


def test_the_end_aborts_what_runs(rest, engine):
    async def scenario():
        key = (await rest.start())["api_key"]
        await engine.pause()
        running = asyncio.create_task(rest.chat(key, "hello"))
        await asyncio.to_thread(engine.begun[0].wait, 5)
        ended = await rest.post("/rl/end_session", key=key)
        return ended.json(), (await running).status_code

    assert asyncio.run(scenario()) == ({"interaction_count": 0}, 410)
    assert engine.log[0].finish_reason is FinishReason.ABORT


def test_sessions_are_listed_without_secrets(rest):
    async def scenario():
        opened = await rest.start("math-7")
        await rest.chat(opened["api_key"], "hello")
        return opened, await rest.post("/rl/sessions", method="GET")

    opened, reply = asyncio.run(scenario())
    (item,) = reply.json()["sessions"]
    assert item["session_id"] == opened["session_id"]
    assert (item["task_id"], item["state"], item["interaction_count"]) == ("math-7", "open", 1)
    assert opened["api_key"] not in reply.text


def test_the_run_ends_its_own_sessions(rest, open_session):
    session = open_session(rest.gateway)
    for path in ("/rl/end_session", "/rl/set_reward"):
        reply = asyncio.run(rest.post(path, {"reward": 1}, key=session.api_key))
        assert code(reply) == (403, "not_yours")


def test_a_session_leaves_nothing_in_memory(rest):
    async def scenario():
        book = rest.gateway._sessions
        for _ in range(20):
            opened = await rest.start()
            await rest.chat(opened["api_key"], "hello")
            await rest.post("/rl/end_session", key=opened["api_key"])
            await rest.post("/export_trajectories", {"session_id": opened["session_id"]})
        return len(book._by_key) + len(book._by_token) + len(book._by_record)

    assert asyncio.run(scenario()) == 0


@pytest.mark.parametrize(
    "body",
    [{}, {"task_id": ""}, {"task_id": 7}, {"task_id": "x" * 501}, [], {"task_id": None, "api_key": "x" * 20}],
)
def test_a_session_works_on_a_task(rest, body):
    assert asyncio.run(rest.post("/rl/start_session", body or {})).status_code == 400


@pytest.mark.parametrize("body", [{"discount": 1.5}, {"style": "tree"}, {"session_id": ""}, {"drop_retry_orphans": 1}])
def test_an_export_names_the_field_at_fault(rest, body):
    async def scenario():
        opened = await rest.start()
        await rest.post("/rl/end_session", key=opened["api_key"])
        return await rest.post("/export_trajectories", {"session_id": opened["session_id"], **body})

    reply = asyncio.run(scenario())
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == next(iter(body))


@pytest.mark.parametrize("path", ["/rl/start_session", "/rl/end_session", "/rl/set_reward", "/export_trajectories"])
def test_a_page_that_changes_something_is_posted_to(rest, path):
    assert asyncio.run(rest.post(path, method="GET")).status_code == 405


def test_base_url_is_where_the_client_found_the_gateway(rest):
    opened = asyncio.run(rest.start())
    assert opened["base_url"] == rest.gateway.url


async def opened_through(rest, **headers):
    """Open a session as a client does whose proxy adds headers."""
    await rest.post("/grant_capacity")
    fields = {"authorization": f"Bearer {rest.key}", "host": "rl.example.com"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"{rest.gateway.url}/rl/start_session"
    return (await rest.gateway.http_client.post(url, json={"task_id": "t"}, headers=fields)).json()["base_url"]


@pytest.mark.parametrize(
    ("headers", "scheme"),
    [
        ({}, "http"),
        ({"x_forwarded_proto": "https"}, "https"),
        ({"x_forwarded_proto": "HTTPS, http"}, "https"),
        ({"forwarded": "for=10.0.0.1;proto=https;by=10.0.0.2"}, "https"),
        ({"forwarded": 'for=10.0.0.1, for="[::1]";proto="https"'}, "https"),
        ({"x_forwarded_proto": "http"}, "http"),
        ({"x_forwarded_proto": "httpsx", "forwarded": "host=https;for=_https"}, "http"),
    ],
)
def test_a_client_that_came_by_tls_goes_on_by_it(rest, headers, scheme):
    assert asyncio.run(opened_through(rest, **headers)) == f"{scheme}://rl.example.com"


def test_a_public_url_is_told_whatever_the_headers_say(online):
    rest = online(public_url="https://rl.example.org/agents/")
    assert asyncio.run(opened_through(rest, x_forwarded_proto="http")) == "https://rl.example.org/agents"


@pytest.mark.parametrize(
    "url", ["rl.example.com", "https://me:word@host", "https://host/v1", "https://host?x=1", "ftp://host"]
)
def test_a_public_url_that_is_no_address_is_refused_without_its_password(url):
    with pytest.raises(ValueError, match="public_url: expected http") as refused:
        GatewayConfig(public_url=url)
    assert ":word" not in str(refused.value)
