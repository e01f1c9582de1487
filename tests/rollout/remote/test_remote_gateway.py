"""Episodes on serving members: the same records as in process, and nothing lost with a server."""

import asyncio
import threading

import attrs
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from tests.rollout.remote.conftest import TASK
from tests.rollout.token_level.test_token_level import Retrying

from agentrl_core.errors import ClaimLostError, RunError
from agentrl_core.http.backoff import Backoff
from agentrl_core.types import Outcome, Record


async def by_openai(data, base_url, api_key, http_client):
    client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
    reply = await client.chat.completions.create(model="policy", messages=data["messages"])
    return float(reply.choices[0].message.content == "4")


async def by_openai_stream(data, base_url, api_key, http_client):
    client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
    text = ""
    async for chunk in await client.chat.completions.create(model="policy", messages=data["messages"], stream=True):
        text += chunk.choices[0].delta.content or ""
    return float(text == "4")


async def by_anthropic(data, base_url, api_key, http_client):
    client = AsyncAnthropic(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
    reply = await client.messages.create(model="policy", messages=data["messages"], max_tokens=50)
    return float(reply.content[0].text == "4")


async def by_its_own_client(data, base_url, api_key):
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        reply = await client.chat.completions.create(model="policy", messages=data["messages"])
    return float(reply.choices[0].message.content == "4")


def comparable(interactions):
    """Return interactions without what differs from one session to the next."""
    plain = {"id": "", "record_id": "", "parent": None, "started_at": 0.0, "finished_at": 0.0, "retry_key": ""}
    plain["digest"] = ""  # it covers all of these
    return [attrs.evolve(interaction, **plain) for interaction in interactions]


@pytest.mark.parametrize("agent", [by_openai, by_openai_stream, by_anthropic, by_its_own_client, Retrying()])
def test_an_episode_is_the_same_as_in_process(agent, serving, sample, episode, chat, store):
    def sampled(gateway):
        serving.engine.replies = ["5", "4"] if isinstance(agent, Retrying) else ["4"]
        return episode(agent, gateway)

    here = asyncio.run(sampled(serving.gateway))
    there = sample(sampled, serving, chat_of=type(chat).from_directory)
    assert (there.record.outcome, there.record.reward) == (Outcome.SCORED, 1.0)
    assert comparable(there.interactions) == comparable(here.interactions)
    assert list(there.interactions) == [item for item in store.interactions if item.record_id == there.record.id]
    assert serving.gateway.member_sessions == 0


async def open_one(gateway, record_id="r", **fields):
    record = Record(id=record_id, run_id="run", task_id="t", **{"group_id": "g", "sample_index": 0, **fields})
    return await gateway.open_session(record, seed_key=(1, 0))


def test_open_and_close_may_be_asked_for_again(serving, sample, store):
    async def scenario(remote):
        one, again = await open_one(remote), await open_one(remote)
        assert (again.base_url, again.api_key) == (one.base_url, one.api_key)
        serving.engine.replies = ["4"]
        await by_openai(TASK.data, one.base_url, one.api_key, remote.http_client)
        closed, repeated = await remote.close_session(one), await remote.close_session(again)
        assert closed == repeated == tuple(store.interactions)
        assert len(closed) == 1
        with pytest.raises(RunError, match="410: the session of record r was closed"):
            await open_one(remote)

    sample(scenario, serving)


@pytest.mark.parametrize(("direction", "route"), [("up", "open"), ("down", "open"), ("up", "close"), ("down", "close")])
def test_a_request_or_reply_that_gets_lost_is_sent_again(direction, route, proxied, sample, episode):
    server, proxy = proxied

    async def agent(data, base_url, api_key, http_client):
        value = await by_openai(data, base_url, api_key, http_client)
        if route == "close":
            proxy.cut(direction, 20)
        return value

    async def scenario(remote):
        server.engine.replies = ["4"]
        if route == "open":
            proxy.cut(direction, 20)
        return await episode(agent, remote)

    sampled = sample(scenario, server)
    assert proxy.cuts == 1
    assert (sampled.record.outcome, len(sampled.interactions)) == (Outcome.SCORED, 1)
    assert server.gateway.member_sessions == 0


def endings(store):
    return [(record.outcome, record.reason) for record in store.records.values()]


LOST = (Outcome.CANCELLED, "server_lost")


def test_an_episode_whose_server_dies_runs_again_at_another(serve, sample, episode, store):
    servers = {server.gateway.url: server for server in (serve(), serve())}
    died = []

    async def agent(data, base_url, api_key, http_client):
        server = servers[base_url.partition("/s/")[0]]
        server.engine.replies = ["4"]
        if not died:
            died.append(server)
            server.gateway.close()
        return await by_openai(data, base_url, api_key, http_client)

    sampled = sample(lambda remote: episode(agent, remote), *servers.values())
    assert (sampled.record.outcome, sampled.record.reward) == (Outcome.SCORED, 1.0)
    assert endings(store) == [LOST, (Outcome.SCORED, "")]
    assert "no connection" in next(iter(store.records.values())).detail


def test_the_servers_say_whether_the_policy_takes_images(serve, sample):
    server = serve()

    async def scenario(remote):
        told = []
        for report in ({"takes_images": False}, {"takes_images": True}):
            remote.update([attrs.evolve(server.member, report=report)])
            told.append(remote.takes_images)
        return told

    assert sample(scenario, server) == [False, True]


def test_an_episode_waits_for_a_server_that_joins(serve, sample, episode, store):
    old, new = serve(), serve()
    waits, waiting = asyncio.Event(), []

    async def agent(data, base_url, api_key, http_client):
        if base_url.startswith(old.gateway.url):
            old.gateway.close()
        return await by_openai(data, base_url, api_key, http_client)

    async def scenario(remote):
        new.engine.replies = ["4"]
        sampling = asyncio.ensure_future(episode(agent, remote))
        await waits.wait()
        waiting.append(remote.waits_for)
        remote.update([old.member, new.member])
        sampled = await sampling
        waiting.append(remote.waits_for)
        return sampled

    def share(_least, most):
        waits.set()
        return most

    backoff = Backoff(first_s=0.05, longest_s=0.05, uniform=share)
    assert sample(scenario, old, backoff=backoff).record.outcome is Outcome.SCORED
    assert endings(store) == [LOST, (Outcome.SCORED, "")]
    assert waiting[0].startswith(f"a server that opens sessions: serve on gpu1 (process 1) at {old.gateway.url}")
    assert waiting[1] == ""


def test_an_episode_ends_as_soon_as_its_server_is_declared_lost(serve, sample, episode, store):
    """A network that swallows everything gives an agent no error; the lease of the member does."""
    old, new = serve(), serve()
    cleaned = []

    async def scenario(remote):
        async def agent(data, base_url, api_key, http_client):
            if not base_url.startswith(old.gateway.url):
                return 1.0
            remote.update([attrs.evolve(old.member, state="lost"), new.member])
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.append(data["id"])

        async def calling(data, base_url, api_key, http_client):
            value = await agent(data, base_url, api_key, http_client)
            await by_openai(data, base_url, api_key, http_client)
            return value

        return await episode(calling, remote)

    assert sample(scenario, old).record.outcome is Outcome.SCORED
    assert endings(store) == [LOST, (Outcome.SCORED, "")]
    assert cleaned == ["t"]
    assert "has left the run or was declared lost" in next(iter(store.records.values())).detail


@pytest.mark.parametrize(("call", "after"), [(by_openai, 10), (by_openai_stream, 400)])
def test_an_agent_is_not_to_blame_for_a_connection_that_broke(call, after, proxied, sample, episode, store):
    """Before the head of the reply has come, and in the middle of a stream."""
    server, proxy = proxied
    attempts = []

    async def agent(data, base_url, api_key, http_client):
        attempts.append(base_url)
        if len(attempts) == 1:
            proxy.cut("down", after)
        return await call(data, base_url, api_key, http_client)

    def sampled(remote):
        server.engine.replies = ["4", "4"]
        return episode(agent, remote)

    assert sample(sampled, server).record.outcome is Outcome.SCORED
    assert endings(store) == [LOST, (Outcome.SCORED, "")]


def test_a_network_that_is_cut_and_comes_back_loses_no_slot(proxied, sample, episode, store):
    """Cut while all episodes are at their server; no other server is there, so they wait for it to come back."""
    server, proxy = proxied
    slots, waits, there = 4, asyncio.Event(), []

    async def agent(data, base_url, api_key, http_client):
        there.append(base_url)
        if len(there) == slots:
            proxy.leave()
        elif len(there) < slots:
            await waits.wait()
        return await by_openai(data, base_url, api_key, http_client)

    def share(_least, most):
        waits.set()
        return most

    async def scenario(remote):
        server.engine.replies = ["4"] * slots
        sampling = [asyncio.ensure_future(episode(agent, remote, slot=slot)) for slot in range(slots)]
        await waits.wait()
        assert server.member.url in remote.waits_for
        proxy.come_back()
        return await asyncio.gather(*sampling)

    ended = sample(scenario, server, backoff=Backoff(first_s=0.05, longest_s=0.05, uniform=share))
    assert [item.record.outcome for item in ended] == [Outcome.SCORED] * slots
    assert sorted({item.record.sample_index for item in ended}) == list(range(slots))
    assert endings(store).count((Outcome.SCORED, "")) == slots
    assert set(endings(store)) == {LOST, (Outcome.SCORED, "")}
    assert server.gateway.member_sessions == 0, "sessions of the lost episodes are closed"


def test_an_agents_own_failure_stays_its_own(serving, sample, episode, store):
    async def agent(data, base_url, api_key, http_client):
        await by_openai(data, base_url, api_key, http_client)
        raise ValueError("mine")

    assert sample(lambda remote: episode(agent, remote), serving).record.reason == "ValueError"
    assert endings(store) == [(Outcome.FAILED, "ValueError")]


def test_an_agents_own_unreachable_server_is_its_own_failure(serving, sample, episode, store):
    async def agent(data, base_url, api_key, http_client):
        await by_openai(data, base_url, api_key, http_client)
        await http_client.get("http://127.0.0.1:1/")

    sample(lambda remote: episode(agent, remote), serving)
    assert endings(store) == [(Outcome.FAILED, "ConnectError")]


def test_a_slot_that_loses_every_server_ends_the_run(serving, sample, episode, store, monkeypatch):
    monkeypatch.setattr("agentrl_core.rollout.runner._MOST_LOSSES", 3)

    async def scenario(remote):
        async def agent(data, base_url):
            session = next(iter(remote._sessions.values()))
            session.fault = "ReadError"
            raise ValueError("no reply")

        await episode(agent, remote)

    with pytest.raises(RunError, match=r"sample 0 of group g lost its server 3 times in a row.*ReadError"):
        sample(scenario, serving)
    assert endings(store) == [LOST] * 3


def test_the_wait_for_a_server_ends(serving, sample):
    async def scenario(remote):
        with pytest.raises(RunError, match=r"waited 0\.2 s for a server of run 'run'.*is live; start `agentrl serve`"):
            await open_one(remote)
        serving.gateway.close()
        remote.update([serving.member])
        with pytest.raises(RunError, match=r"waited 0\.2 s .*: no connection: .*; start `agentrl serve`"):
            await open_one(remote)

    sample(scenario, patience_s=0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"admin_key": "another-key-of-16"}, r"refused open_session with status 403: .*gateway\.admin_key_env"),
        ({"run_id": "other", "patience_s": 0.1}, r"this gateway serves the run 'run', not 'other'"),
    ],
)
def test_a_server_of_others_takes_no_session(options, message, serving, sample):
    async def scenario(remote):
        with pytest.raises(RunError, match=message) as caught:
            await open_one(remote)
        assert "another-key" not in str(caught.value)

    sample(scenario, serving, **options)
    assert serving.gateway.member_sessions == 0


def test_sessions_go_to_the_server_with_the_fewest_and_groups_stay_together(serve, sample):
    async def scenario(remote):
        opened = [await open_one(remote, f"{group}{slot}", group_id=group) for group in "abcd" for slot in range(3)]
        where = {session.group_id: set() for session in opened}
        for session in opened:
            where[session.group_id].add(session.server.member.id)
        await asyncio.gather(*map(remote.close_session, opened))
        return where

    servers = [serve(), serve()]
    where = sample(scenario, *servers)
    assert all(len(members) == 1 for members in where.values())
    used = [next(iter(members)) for members in where.values()]
    assert sorted(used) == sorted([server.member.id for server in servers] * 2)


def test_the_sessions_of_other_samplers_count(serve, sample, make_remote):
    first, second = serve(), serve()

    async def scenario(remote):
        other = make_remote(first, member_id="other")
        held = [await open_one(other, f"o{number}") for number in range(4)]
        # The first answer tells the load of the first server; the second one has none.
        held += [await open_one(remote, f"r{number}", group_id=f"g{number}") for number in range(2)]
        chosen = [(await open_one(remote, f"s{number}", group_id=f"s{number}")).server for number in range(3)]
        await other.close()
        return {server.member.id for server in chosen}

    assert sample(scenario, first, second) == {second.member.id}


def test_the_sessions_of_a_lost_sampler_are_closed(serving, sample):
    async def scenario(remote):
        session = await open_one(remote)
        await serving.engine.pause()
        call = asyncio.ensure_future(by_openai(TASK.data, session.base_url, session.api_key, remote.http_client))
        await asyncio.to_thread(serving.engine.begun[0].wait, 10)
        assert await serving.gateway.close_sessions_of("sampler") == 1
        with pytest.raises(Exception, match="this episode has ended"):
            await call
        with pytest.raises(ClaimLostError, match="member sampler has left the run or was declared lost"):
            await open_one(remote, "r2")

    sample(scenario, serving)
    assert serving.gateway.member_sessions == 0


def test_a_session_that_nobody_waits_for_any_more_is_closed(serving, sample, monkeypatch):
    """The agent was cancelled while the server opened its session."""
    opening, may_open = threading.Event(), threading.Event()
    open_session = serving.gateway.open_session

    async def slow(record, **options):
        opening.set()
        await asyncio.to_thread(may_open.wait, 10)
        return await open_session(record, **options)

    monkeypatch.setattr(serving.gateway, "open_session", slow)

    async def scenario(remote):
        wanted = asyncio.ensure_future(open_one(remote))
        await asyncio.to_thread(opening.wait, 10)
        wanted.cancel()
        await asyncio.wait({wanted})
        may_open.set()
        await asyncio.wait(remote._later)
        assert serving.gateway.member_sessions == 0

    sample(scenario, serving)
    assert opening.is_set()


def test_a_session_out_of_reach_is_closed_once_its_server_is_back(proxied, sample, store):
    server, _ = proxied

    async def scenario(remote):
        one = await open_one(remote, "one")
        real, one.server._client.url = one.server._client.url, "http://127.0.0.1:1"
        with pytest.raises(Exception, match="no connection"):
            await remote.close_session(one)
        assert server.gateway.member_sessions == 1
        one.server._client.url = real
        two = await open_one(remote, "two")
        await asyncio.wait(remote._later)
        await remote.close_session(two)

    sample(scenario, server)
    assert server.gateway.member_sessions == 0
