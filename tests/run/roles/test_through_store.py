"""The trainer's sampling side through store and weights, with members whose heartbeats the test sends itself."""

import asyncio
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import attrs
import pytest
from transformers import AutoModelForCausalLM

from agentrl_core import config as configs
from agentrl_core.api.group_queue import OvertakeLimits
from agentrl_core.api.members import Member
from agentrl_core.api.stores import RunRow
from agentrl_core.api.weights import ModuleWeights
from agentrl_core.errors import RunError
from agentrl_core.run.components import resolve
from agentrl_core.run.roles.through_store import SamplingThroughStore
from agentrl_core.stores.files import UNNAMED
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Outcome, Record
from agentrl_core.weights.place import WeightsPlace

SERVED = {"version": 0, "max_tokens": 77, "takes_tools": True, "notices": ["the template is fine"]}


@pytest.fixture
def store(tmp_path):
    store = SQLiteStore(path=tmp_path / "agentrl.db")
    row = RunRow(id="r", created_at=0.0, status="running", config={}, components={})
    asyncio.run(store.create_run(row))
    asyncio.run(store.add_version("r", 0, step=0))
    yield store
    asyncio.run(store.close())


@pytest.fixture
def place(tmp_path):
    return WeightsPlace(tmp_path / "weights")


@pytest.fixture
def module(policy_dir):
    return AutoModelForCausalLM.from_pretrained(policy_dir)


@pytest.fixture
def join(store):
    """`join("serve", version=0)` adds a live member with a report."""

    def make(role, **report):
        member = Member(run_id="r", role=role, report=report)
        asyncio.run(store.join(member))
        asyncio.run(store.beat(member.id, report))
        return member

    return make


@pytest.fixture
def side(store, place, module, project, policy_dir, tmp_path):
    """Open the sampling side; it is closed at the end."""
    told = []

    @contextmanager
    def make(wait_s=0.5, version=0, **sections):
        config = configs.parse(project(roles={"wait_s": wait_s}, **sections))
        components = resolve(configs.LoadedConfig(config, tmp_path), role="train")
        learner = SimpleNamespace(weights=lambda: ModuleWeights(module))
        start = SimpleNamespace(
            model_dir=policy_dir, learner=learner, store=store, step=0, version=version, writer=UNNAMED
        )
        opened = SamplingThroughStore(
            components,
            start,
            "r",
            place=place,
            notice=told.append,
            asked_to_stop=lambda: None,
            command="agentrl {}".format,
        )
        opened.told = told
        try:
            yield opened
        finally:
            opened.close()

    return make


def test_it_publishes_the_weights_and_waits_for_a_server_that_has_them(side, join, place, store):
    server = join("serve", **{**SERVED, "version": -1})

    def load():
        while not place.versions():
            time.sleep(0.01)
        asyncio.run(store.beat(server.id, SERVED))

    loading = threading.Thread(target=load, daemon=True)
    loading.start()
    with side(wait_s=60) as opened:
        assert place.versions() == [0]
        assert (opened.max_tokens, opened.notices) == (77, ["the template is fine"])
    loading.join()


def test_without_a_server_it_says_which_command_starts_one_and_gives_up(side):
    with pytest.raises(RunError, match=r"waited 0\.5 s for a server; start one with `agentrl serve`"), side():
        pass


def test_a_server_that_does_not_load_in_time_is_named(side, join):
    join("serve", **{**SERVED, "version": -1})
    with pytest.raises(RunError, match=r"for serve on \S+ \(process \d+\) to load version 0 of the weights"), side():
        pass


def test_weights_that_no_server_can_load_end_the_run_at_once(side, join):
    join("serve", **{**SERVED, "version": -1, "refused": {"version": 0, "error": "version 0 is damaged"}})
    with pytest.raises(RunError, match="no server could load version 0: version 0 is damaged"), side(wait_s=None):
        pass


def test_capacity_opens_only_when_all_live_servers_have_the_new_weights(side, join, store, module, place):
    fast, slow, gone = (join("serve", **SERVED) for _ in range(3))
    asyncio.run(store.leave(gone.id))
    with side() as opened:
        opened.begin()
        asyncio.run(store.beat(fast.id, {**SERVED, "version": 1}))
        opened.load_weights(1, ModuleWeights(module))
        assert place.versions() == [1, 0]
        with pytest.raises(RunError, match="to load version 1"):
            opened.open_capacity(1, 1)
        assert asyncio.run(store.control("r")).admitted_steps == 0
        asyncio.run(store.beat(slow.id, {**SERVED, "version": 2}))
        opened.open_capacity(1, 1)
        assert asyncio.run(store.control("r")).admitted_steps == 1


def test_a_publication_has_the_bytes_written_and_the_time_of_the_slowest_server(side, join, module, place):
    for seconds, stall_s, gap in ((2.0, 0.5, 1e-4), (3.0, 0.25, 3e-4)):
        told = {"seconds": seconds, "stall_s": stall_s, "canary_gap": gap, "canary_change": 10 * gap}
        join("serve", **SERVED, publication=told)
    with side() as opened:
        publication = opened.load_weights(1, ModuleWeights(module))
    written = place.root / "version-1"
    assert publication.bytes == sum(path.stat().st_size for path in written.iterdir())
    assert (publication.version, publication.path, publication.stall_s) == (1, "disk", 0.5)
    assert 3.0 < publication.seconds < 3.0 + 60
    assert (publication.canary_gap, publication.canary_change) == (3e-4, 1e-3)


def test_without_a_sampler_it_says_which_command_starts_one_and_who_was_the_last(side, join, store):
    join("serve", **SERVED)
    asyncio.run(store.leave(join("sample", error="too bad").id))
    with side() as opened:
        opened.begin()
        told = r"a sampler \(the last one, sample on \S+ \(process \d+\), has left after an error: too bad\); start"
        with pytest.raises(RunError, match=told):
            opened.take_groups(1, OvertakeLimits(step=0, max_lag=0, per_step=1))


def test_when_no_episode_ends_for_too_long_it_says_what_the_members_wait_for(side, join):
    join("serve", **SERVED)
    join("sample", waits_for="a server that opens sessions")
    with side(rollout={"timeout_s": 0.5}) as opened:
        opened.begin()
        with pytest.raises(RunError, match=r"an episode to end \(sample on .* waits for a server that opens"):
            opened.take_groups(1, OvertakeLimits(step=0, max_lag=0, per_step=1))


def test_counts_are_those_of_all_members_since_it_began(side, join, store):
    asyncio.run(store.leave(join("sample", outcomes={"scored": 100}).id))
    server, sampler = join("serve", **SERVED, calls={"llm": 5}), join("sample")
    with side() as opened:
        asyncio.run(store.beat(sampler.id, {"outcomes": {"scored": 3, "timed_out": 1}, "groups": {"sampled": 1}}))
        asyncio.run(store.beat(server.id, {**SERVED, "calls": {"llm": 9}}))
        counts = opened.drain_counts()
        assert (counts.outcomes, counts.groups) == ({"scored": 3, "timed_out": 1}, {"sampled": 1})
        assert counts.unseen_tools is None
        assert opened.llm_calls == 4
        asyncio.run(store.leave(sampler.id))
        join("sample", outcomes={"scored": 2})
        assert opened.drain_counts().outcomes == {"scored": 2}
        totals = opened.close()
    assert totals.groups == {"sampled": 1}
    assert totals.llm_calls == 4


def test_the_summary_counts_the_records_of_the_store_whatever_the_samplers_have_told(side, join, store):
    async def sample(name, **ended):
        (group,) = await store.add_evaluation("r", "eval", ["t"], version=0, claimable=False)
        record = Record(id=name, run_id="r", task_id="t", group_id=group, sample_index=0)
        await store.add_record(record)
        if ended:
            await store.finish_record(attrs.evolve(record, **ended))
        return record

    asyncio.run(sample("before", outcome=Outcome.SCORED, reward=1.0))
    late = asyncio.run(sample("late"))
    join("serve", **SERVED)
    join("sample", outcomes={"scored": 1})
    with side() as opened:
        asyncio.run(store.finish_record(attrs.evolve(late, outcome=Outcome.SCORED, reward=0.0)))
        asyncio.run(sample("slow", outcome=Outcome.TIMED_OUT, reason="agent"))
        asyncio.run(sample("runs still"))
        assert opened.close().outcomes == {"scored": 1, "timed_out(agent)": 1}


def test_another_exception_ends_the_wait_at_once(side, join, store, place, project, policy_dir, tmp_path, module):
    def stop():
        raise KeyboardInterrupt

    components = resolve(configs.LoadedConfig(configs.parse(project()), tmp_path), role="train")
    start = SimpleNamespace(
        model_dir=policy_dir,
        learner=SimpleNamespace(weights=lambda: ModuleWeights(module)),
        store=store,
        step=0,
        version=0,
        writer=UNNAMED,
    )
    with pytest.raises(KeyboardInterrupt):
        SamplingThroughStore(
            components, start, "r", place=place, notice=print, asked_to_stop=stop, command="agentrl {}".format
        )
