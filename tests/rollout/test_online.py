"""Agents that run elsewhere fill the slots of training: groups, rewards, limits and ends are those of every episode."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from tests.gateway import conftest as parts
from tests.rollout.driving import MEMBER, DrivenScheduler, stopped

from agentrl_core.config.sampling_sections import AgentConfig, GatewayConfig, RolloutConfig
from agentrl_core.gateway.online.leases import Claim
from agentrl_core.rollout.online import OnlineAgents
from agentrl_core.rollout.runner import Runner
from agentrl_core.scorers.call import normalize_scorer
from agentrl_core.types import FinishReason, Outcome, Task

chat, model_dir, engine, database, rest, online = (
    getattr(parts, name) for name in ("chat", "model_dir", "engine", "database", "rest", "online")
)


def scores_one(answer):
    return 1.0


@pytest.fixture
def make_run(database):
    """Start a scheduler whose slots wait for agents of `rest`; it is stopped at the end."""

    @asynccontextmanager
    async def run(rest, *, scorer=None, tasks=2, ttl_s=0.0, **options):
        agent = {"reward_timeout_s": options.pop("reward_timeout_s", 30.0)}
        agent["reward_grace_s"] = options.pop("reward_grace_s", 5.0)
        agent["lease_timeout_s"] = options.pop("lease_timeout_s", 30.0)
        config = make_config(agent, **{"group_size": 2, "tasks_per_step": 1, "retries": 0, **options})
        source = OnlineAgents(rest.gateway, config, GatewayConfig(session_ttl_s=ttl_s))
        rows = [Task(id=f"t{i}", data={"id": f"t{i}", "messages": [], "n": i}, scorer=scorer) for i in range(tasks)]
        runner = Runner(
            source=source,
            gateway=rest.gateway,
            store=database,
            scorer_for=lambda _: normalize_scorer(scores_one, "ones"),
            config=config,
            run_id="run",
        )
        scheduler = DrivenScheduler(tasks=rows, runner=runner, store=database, config=config, seed=0, shuffle=False)
        await database.join(MEMBER)
        running = asyncio.create_task(scheduler.run())
        try:
            yield scheduler
        finally:
            await stopped(scheduler, running)

    return run


def make_config(agent, **options):
    return RolloutConfig(agent=AgentConfig(mode="online", **agent), **options)


async def begin(rest, task_id="mine", **fields):
    """Open a session on the next slot, and wait until there is one."""
    while True:
        reply = await rest.post("/rl/start_session", {"task_id": task_id, **fields})
        if reply.status_code != 429:
            assert reply.status_code == 200, reply.text
            return reply.json()
        await asyncio.sleep(0)


async def work(rest, reward=None, **fields):
    """Do one episode; a reward of None is sent by nobody."""
    opened = await begin(rest, **fields)
    key = opened["api_key"]
    await rest.chat(key, "hello")
    if reward is not None:
        await rest.post("/rl/set_reward", {"reward": reward}, key=key)
    await rest.post("/rl/end_session", key=key)
    return opened


async def record_of(database, session_id):
    """Wait until a record has its outcome."""
    while (record := (await database.episode(session_id)).record).outcome is Outcome.RUNNING:
        await asyncio.sleep(0)
    return record


def test_sessions_of_outside_agents_make_groups(rest, make_run, database, engine):
    async def scenario():
        async with make_run(rest):
            opened = [await work(rest, reward) for reward in (1.0, 0.0)]
            (group,) = await database.take_groups("run", 1)
        return opened, group

    opened, group = asyncio.run(scenario())
    assert [item["task"] for item in opened] == [{"id": "t0", "data": {"id": "t0", "messages": [], "n": 0}}] * 2
    assert {item["is_eval"] for item in opened} == {False}
    assert [episode.record.id for episode in group.episodes] == [item["session_id"] for item in opened]
    assert [episode.record.reward for episode in group.episodes] == [1.0, 0.0]
    assert [episode.interactions[0].output_ids for episode in group.episodes] == [said.ids for said in engine.log]
    assert [row.task_id for row in asyncio.run(database.sessions("run"))] == ["mine", "mine"]


def test_no_more_sessions_than_training_wants(rest, make_run):
    async def scenario():
        async with make_run(rest, max_head_offpolicyness=0):
            for _ in range(2):
                await begin(rest)
            return (await rest.post("/rl/start_session", {"task_id": "t"})).status_code

    assert asyncio.run(scenario()) == 429


def test_an_agent_gets_the_task_that_it_asks_for_where_it_waits(rest, make_run):
    async def scenario():
        async with make_run(rest, max_head_offpolicyness=1):
            first = await begin(rest, "elsewhere")
            return first["task"]["id"], (await begin(rest, "t1"))["task"]["id"]

    assert asyncio.run(scenario()) == ("t0", "t1")


def test_a_reward_that_comes_after_the_end_counts(rest, make_run, database):
    async def scenario():
        async with make_run(rest):
            opened = await work(rest)
            await rest.post("/rl/set_reward", {"session_id": opened["session_id"], "reward": 0.25})
            record = await record_of(database, opened["session_id"])
            late = await rest.post("/rl/set_reward", {"reward": 1}, key=opened["api_key"])
            return record, late.status_code

    record, late = asyncio.run(scenario())
    assert (record.outcome, record.reward, record.rewards) == (Outcome.SCORED, 0.25, {})
    assert late == 410


def test_rewards_of_single_calls_are_kept_apart(rest, make_run, database):
    async def scenario():
        async with make_run(rest):
            opened = await begin(rest)
            key = opened["api_key"]
            calls = [(await rest.chat(key, text)).json()["id"] for text in ("one", "two")]
            for call, reward in zip(calls, (1, -2), strict=True):
                await rest.post("/rl/set_reward", {"interaction_id": call, "reward": reward}, key=key)
            await rest.post("/rl/end_session", key=key)
            return calls, await record_of(database, opened["session_id"])

    calls, record = asyncio.run(scenario())
    assert (record.reward, record.rewards) == (-1.0, dict(zip(calls, (1.0, -2.0), strict=True)))


def test_without_a_reward_a_session_is_rejected_in_time(rest, make_run, database):
    async def scenario():
        async with make_run(rest, reward_timeout_s=0.05):
            return await record_of(database, (await work(rest))["session_id"])

    record = asyncio.run(scenario())
    assert (record.outcome, record.reason) == (Outcome.REJECTED, "no_reward")
    assert "reward_timeout_s" in record.detail


def test_a_task_s_scorer_takes_the_place_of_a_reward(rest, make_run, database):
    async def scenario():
        async with make_run(rest, scorer="ones"):
            return await record_of(database, (await work(rest))["session_id"])

    assert asyncio.run(scenario()).reward == 1.0


def test_a_call_that_is_still_being_stored_belongs_to_the_session_that_ends(rest, make_run, database, monkeypatch):
    stored, gate = asyncio.Event(), asyncio.Event()
    add = database.add_interaction

    async def add_slowly(*values):
        stored.set()
        await gate.wait()
        await add(*values)

    monkeypatch.setattr(database, "add_interaction", add_slowly)

    async def scenario():
        async with make_run(rest):
            opened = await begin(rest)
            call = asyncio.create_task(rest.chat(opened["api_key"], "hello"))
            await stored.wait()
            end = asyncio.create_task(rest.post("/rl/end_session", key=opened["api_key"]))
            while not rest.gateway._sessions.find_by_key(opened["api_key"]).closed:
                await asyncio.sleep(0)
            gate.set()
            await call
            reply = await rest.post("/rl/set_reward", {"reward": 0.25}, key=opened["api_key"])
            assert reply.status_code == 200, reply.text
            return (await end).json(), (await record_of(database, opened["session_id"])).reward

    assert asyncio.run(scenario()) == ({"interaction_count": 1}, 0.25)


def test_a_session_without_a_call_is_rejected_at_once(rest, make_run, database):
    async def scenario():
        async with make_run(rest):
            opened = await begin(rest)
            await rest.post("/rl/end_session", key=opened["api_key"])
            return await record_of(database, opened["session_id"])

    record = asyncio.run(scenario())
    assert (record.outcome, record.reason) == (Outcome.REJECTED, "no_llm_call")


@pytest.mark.parametrize(("limit", "words"), [({"ttl_s": 0.05}, "idle for 0.05 s"), ({"timeout_s": 0.05}, "open for")])
def test_an_agent_that_goes_away_loses_its_slot_to_another(rest, make_run, database, limit, words):
    async def scenario():
        async with make_run(rest, retries=1, group_size=1, min_group_size=1, **limit):
            gone = await begin(rest)
            record = await record_of(database, gone["session_id"])
            again = await begin(rest)
            call = await rest.chat(gone["api_key"], "hello")
            return record, again["task"]["id"], call.status_code

    record, task, status = asyncio.run(scenario())
    assert record.outcome is Outcome.TIMED_OUT
    assert words in record.detail
    assert (task, status) == ("t0", 410)


def test_the_same_key_again_ends_the_session_and_goes_on_with_the_next_slot(rest, make_run, database):
    own = "my-agent-key-0001"

    async def scenario():
        async with make_run(rest, group_size=1, min_group_size=1, max_head_offpolicyness=3):
            first = await begin(rest, api_key=own)
            await rest.chat(own, "hello")
            second = await begin(rest, api_key=own)
            await rest.chat(own, "hello")
            for item, reward in ((first, 1), (second, 2)):
                await rest.post("/rl/set_reward", {"session_id": item["session_id"], "reward": reward})
            await rest.post("/rl/end_session", key=own)
            return [(await record_of(database, item["session_id"])).reward for item in (first, second)]

    assert asyncio.run(scenario()) == [1.0, 2.0]


def test_of_two_agents_with_one_key_one_gets_a_session_and_no_slot_is_lost(rest, make_run, database):
    own = {"task_id": "t", "api_key": "my-agent-key-0001"}

    async def scenario():
        async with make_run(rest, group_size=3, retries=1):
            first = await begin(rest)  # now the slots are there
            leases = [rest.gateway.leases.take(Claim(**own)) for _ in range(2)]
            while not (opened := rest.gateway._sessions.find_by_key(own["api_key"])):
                await asyncio.sleep(0)
            for key in (first["api_key"], own["api_key"]):
                await rest.chat(key, "hello")
                await rest.post("/rl/set_reward", {"reward": 1}, key=key)
                await rest.post("/rl/end_session", key=key)
            await work(rest, 0)
            (group,) = await database.take_groups("run", 1)
            assert leases[1].opened.exception().status == 409
            return opened.record_id, [item.record for item in group.episodes], await database.records("run")

    opened, scored, records = asyncio.run(scenario())
    assert opened in {record.id for record in scored}
    assert len(scored) == 3
    (refused,) = [record for record in records if record.outcome is Outcome.REJECTED]
    assert (refused.reason, refused.detail[:12]) == ("no_session", "this api_key")


def test_the_end_of_a_run_ends_its_sessions(rest, make_run, database, engine):
    async def scenario():
        async with make_run(rest):
            opened = await begin(rest)
            await engine.pause()
            call = asyncio.create_task(rest.chat(opened["api_key"], "hello"))
            await asyncio.to_thread(engine.begun[0].wait, 5)
        return (await database.episode(opened["session_id"])).record, (await call).status_code

    record, status = asyncio.run(scenario())
    assert (record.outcome, status) == (Outcome.CANCELLED, 410)
    assert engine.log[0].finish_reason is FinishReason.ABORT


def test_the_run_keeps_its_sessions_from_being_exported(rest, make_run):
    async def scenario():
        async with make_run(rest):
            opened = await begin(rest)
            return (await rest.post("/export_trajectories", {"session_id": opened["session_id"]})).status_code

    assert asyncio.run(scenario()) == 409


def test_evaluations_are_done_by_outside_agents_too(rest, make_run):
    async def scenario():
        async with make_run(rest, max_head_offpolicyness=0) as scheduler:
            for _ in range(2):
                await begin(rest)
            held_out = [Task(id="held-out", data={"id": "held-out", "messages": []})]
            evaluation = asyncio.create_task(scheduler.evaluate(held_out, name="eval"))
            opened = await work(rest, 0.75)
            found = await evaluation
            return opened["is_eval"], found.mean, found.scored, found.failed

    assert asyncio.run(scenario()) == (True, 0.75, 1, 0)


def test_without_tasks_sessions_of_one_task_make_a_group(rest, make_run, database):
    async def scenario():
        async with make_run(rest, tasks=0, max_head_offpolicyness=1):
            opened = [await work(rest, reward, task_id=name) for name, reward in (("b", 1), ("a", 2), ("b", 3))]
            (first,) = await database.take_groups("run", 1)
            opened.append(await work(rest, 4, task_id="a"))
            (second,) = await database.take_groups("run", 1)
        return opened, first, second

    opened, first, second = asyncio.run(scenario())
    assert [item["task"] for item in opened] == [
        {"id": name, "data": {"id": name, "messages": []}} for name in ("b", "a", "b", "a")
    ]
    found = [(group.index, group.task_id, [item.record.reward for item in group.episodes]) for group in (first, second)]
    assert found == [(0, "b", [1.0, 3.0]), (1, "a", [2.0, 4.0])]
    assert [task.id for task in asyncio.run(database.tasks("run"))] == ["b", "a"]


def test_without_tasks_sessions_may_stand_alone(rest, make_run, database):
    async def scenario():
        async with make_run(rest, tasks=0, group_size=1, min_group_size=1):
            await work(rest, 0.5, task_id="only")
            return await database.take_groups("run", 1)

    (group,) = asyncio.run(scenario())
    assert (group.task_id, [item.record.reward for item in group.episodes]) == ("only", [0.5])


def test_without_tasks_a_group_waits_not_for_ever(rest, make_run, database):
    async def scenario():
        limits = {"group_size": 3, "min_group_size": 2, "lease_timeout_s": 0.3, "retries": 100}
        async with make_run(rest, tasks=0, **limits) as scheduler:
            for reward in (0.0, 1.0):
                await work(rest, reward, task_id="rare")
            (group,) = await asyncio.wait_for(database.take_groups("run", 1), 15)
            return group, scheduler.counts.records.totals

    group, totals = asyncio.run(scenario())
    assert [item.record.reward for item in group.episodes] == [0.0, 1.0]
    assert totals == {"scored": 2}


def test_without_tasks_a_group_is_for_one_task_only(rest, make_run):
    async def scenario():
        async with make_run(rest, tasks=0, max_head_offpolicyness=0):
            await begin(rest, "mine")
            other = await rest.post("/rl/start_session", {"task_id": "other"})
            return other.status_code, (await begin(rest, "mine"))["task"]["id"]

    assert asyncio.run(scenario()) == (429, "mine")


# Rewards of single calls, behind the end.


async def ended_session(rest, count):
    """Do an episode of `count` calls without a reward."""
    opened = await begin(rest)
    key = opened["api_key"]
    calls = [(await rest.chat(key, f"call {number}")).json()["id"] for number in range(count)]
    await rest.post("/rl/end_session", key=key)
    return opened, calls


async def reward(rest, opened, value, call=None, **fields):
    """Send a reward, and let all see it who wait for one: a call in process by itself gives nobody a turn."""
    named = {} if call is None else {"interaction_id": call}
    reply = await rest.post("/rl/set_reward", {"reward": value, **named, **fields}, key=opened["api_key"])
    for _ in range(200):
        await asyncio.sleep(0)
    return reply


def statuses(replies):
    return [reply.status_code for reply in replies]


@pytest.mark.parametrize("at_once", [True, False])
def test_rewards_that_come_one_by_one_behind_the_end_all_count(rest, make_run, database, at_once):
    async def scenario():
        async with make_run(rest, reward_grace_s=1000.0):
            opened, calls = await ended_session(rest, 4)
            sent = [reward(rest, opened, value, call) for value, call in enumerate(calls)]
            replies = await asyncio.gather(*sent) if at_once else [await one for one in sent]
            record = await record_of(database, opened["session_id"])
            return calls, statuses(replies), record, await reward(rest, opened, 9, calls[0])

    calls, replies, record, late = asyncio.run(scenario())
    assert replies == [200] * 4
    assert record.rewards == {call: float(value) for value, call in enumerate(calls)}
    assert record.reward == 6.0
    assert late.status_code == 410


def test_rewards_from_both_sides_of_the_end_belong_together(rest, make_run, database):
    async def scenario():
        async with make_run(rest, reward_grace_s=1000.0):
            opened = await begin(rest)
            key = opened["api_key"]
            calls = []
            for value in range(3):  # each call is rewarded as it comes, without its id
                calls.append((await rest.chat(key, f"call {value}")).json()["id"])
                if value < 2:
                    await reward(rest, opened, value)
            await rest.post("/rl/end_session", key=key)
            replies = [await reward(rest, opened, 7, calls[0]), await reward(rest, opened, 2, calls[2])]
            return calls, statuses(replies), await record_of(database, opened["session_id"])

    calls, replies, record = asyncio.run(scenario())
    assert replies == [200, 200]
    assert record.rewards == dict(zip(calls, (7.0, 1.0, 2.0), strict=True))


def test_a_reward_that_is_sent_twice_counts_once_and_completes_nothing(rest, make_run, database):
    async def scenario():
        async with make_run(rest, reward_grace_s=1000.0):
            opened, calls = await ended_session(rest, 2)
            replies = [await reward(rest, opened, value, calls[0]) for value in (1, 1, 3)]
            running = (await database.episode(opened["session_id"])).record.outcome
            replies.append(await reward(rest, opened, 4, calls[1]))
            return calls, running, statuses(replies), await record_of(database, opened["session_id"])

    calls, running, replies, record = asyncio.run(scenario())
    assert running is Outcome.RUNNING
    assert replies == [200] * 4
    assert record.rewards == dict(zip(calls, (3.0, 4.0), strict=True))


@pytest.mark.parametrize("fields", [{"final": True}, {}])
def test_the_last_reward_ends_the_wait_where_it_says_so(rest, make_run, database, fields):
    """By `final`, or by naming no call."""

    async def scenario():
        async with make_run(rest, reward_grace_s=1000.0):
            opened, calls = await ended_session(rest, 3)
            await reward(rest, opened, 1, calls[0])
            named = calls[1] if fields else None
            await reward(rest, opened, 2, named, **fields)
            return calls, await record_of(database, opened["session_id"])

    calls, record = asyncio.run(scenario())
    assert record.rewards == {calls[0]: 1.0, calls[1 if fields else 2]: 2.0}


def test_a_reward_without_a_call_may_say_that_others_follow(rest, make_run, database):
    async def scenario():
        async with make_run(rest, reward_grace_s=1000.0):
            opened, calls = await ended_session(rest, 2)
            replies = [await reward(rest, opened, 1, final=False), await reward(rest, opened, 2, calls[0])]
            return calls, statuses(replies), await record_of(database, opened["session_id"])

    calls, replies, record = asyncio.run(scenario())
    assert replies == [200, 200]
    assert record.rewards == dict(zip(calls, (2.0, 1.0), strict=True))


@pytest.mark.parametrize("limit", [{"reward_grace_s": 0.05}, {"reward_grace_s": 1000.0, "reward_timeout_s": 0.05}])
def test_an_episode_some_of_whose_calls_nobody_rewards_ends_in_time(rest, make_run, database, limit):
    async def scenario():
        async with make_run(rest, **limit):
            opened = await begin(rest)
            calls = [(await rest.chat(opened["api_key"], text)).json()["id"] for text in ("one", "two")]
            await reward(rest, opened, 5, calls[0])
            await rest.post("/rl/end_session", key=opened["api_key"])
            return calls, await record_of(database, opened["session_id"])

    calls, record = asyncio.run(scenario())
    assert (record.outcome, record.rewards) == (Outcome.SCORED, {calls[0]: 5.0})


@pytest.mark.parametrize("final", ["yes", 1, []])
def test_a_word_about_the_end_that_is_none_is_refused(rest, make_run, final):
    async def scenario():
        async with make_run(rest):
            opened, calls = await ended_session(rest, 1)
            return await reward(rest, opened, 1, calls[0], final=final)

    reply = asyncio.run(scenario())
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "final")
