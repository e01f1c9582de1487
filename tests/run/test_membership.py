"""Members of a run: they beat whatever their process does, watch each other, and stop if they are declared lost."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading

import pytest

from agentrl_core.api.members import Member
from agentrl_core.api.stores import RunRow
from agentrl_core.errors import LostError, MemberError, RunError, StoreError
from agentrl_core.run.membership import Membership, Watch, declare_gone
from agentrl_core.stores.sqlite import SQLiteStore

PATIENCE_S = 30.0
QUICK_S = 0.2
"""A lease with a heartbeat every 50 ms; no test fails because one comes late."""


class FailingStore(SQLiteStore):
    """Refuses heartbeats while `error` is set."""

    error = None

    async def beat(self, member_id, report):
        if self.error is not None:
            raise self.error
        return await super().beat(member_id, report)


@pytest.fixture
def store(tmp_path):
    store = FailingStore(path=tmp_path / "agentrl.db")
    asyncio.run(store.create_run(RunRow(id="run", created_at=0.0, status="running", config={}, components={})))
    yield store
    asyncio.run(store.close())


def make(role="sample", **fields):
    return Member(**{"run_id": "run", "role": role, "lease_s": QUICK_S, **fields})


def states(store):
    return {member.id: member.state for member in asyncio.run(store.members("run"))}


def beaten(store, member, times=1):
    """Wait until a member has beaten."""
    wanted = next(item.beats for item in asyncio.run(store.members("run")) if item.id == member.id) + times
    with bounded() as goes_on:
        while next(item.beats for item in asyncio.run(store.members("run")) if item.id == member.id) < wanted:
            goes_on()


@contextlib.contextmanager
def bounded():
    end = threading.Event()
    timer = threading.Timer(PATIENCE_S, end.set)
    timer.start()

    def goes_on():
        assert not end.is_set(), "it takes too long"

    try:
        yield goes_on
    finally:
        timer.cancel()


def test_a_trainer_that_joins_wants_its_run_to_go_on(store):
    for role, wanted in (("sample", "stop"), ("train", "run")):
        asyncio.run(store.set_control("run", wanted="stop"))
        with Membership(store, [make(role)]) as membership:
            membership.join()
            assert asyncio.run(store.control("run")).wanted == wanted


def test_only_the_store_confirms_a_membership(store):
    with Membership(store, [make("train", lease_s=1000.0)]) as membership:
        membership.join()
        membership.confirm()
        while not asyncio.run(
            store.declare_lost(membership.id_of("train"), beats=asyncio.run(store.members("run"))[0].beats)
        ):
            pass
        membership.check()
        with pytest.raises(LostError, match="was declared lost"):
            membership.confirm()
        with pytest.raises(LostError):
            membership.check()


def test_the_members_of_a_process_join_beat_and_leave(store):
    said = threading.Semaphore(0)

    def report(member):
        said.release()
        return {"role": member.role}

    both = [make("train"), make("sample")]
    with Membership(store, both, report=report) as membership:
        membership.join()
        for _ in range(6):  # this thread does nothing but wait, like an event loop that an agent blocks
            assert said.acquire(timeout=PATIENCE_S)
        assert set(states(store).values()) == {"live"}
        reports = {member.id: member.report for member in asyncio.run(store.members("run")) if member.beats}
        assert all(reports[member.id] == {"role": member.role} for member in both if member.id in reports)
        assert membership.id_of("train") == both[0].id
        membership.check()
    assert set(states(store).values()) == {"left"}
    membership.leave()  # a second time, nothing happens


def test_a_membership_that_has_not_joined_leaves_nothing(store):
    with Membership(store, [make()]):
        pass
    assert states(store) == {}


def test_a_member_that_others_declared_lost_is_told_once(store):
    member, told, again = make(), threading.Event(), []
    with Membership(store, [member]) as membership:
        membership.on_lost(lambda error: (again.append(error), told.set()))
        membership.join()
        with bounded() as goes_on:
            while not asyncio.run(store.declare_lost(member.id, beats=asyncio.run(store.members("run"))[0].beats)):
                goes_on()
        assert told.wait(PATIENCE_S)
        with pytest.raises(MemberError, match=r"sample on .* was declared lost, .*rollout.lease_s = 0.2 s") as lost:
            membership.check()
        membership.on_lost(again.append)
        assert again == [lost.value] * 2
    assert states(store) == {member.id: "lost"}


def test_a_store_that_is_away_for_less_than_a_lease_ends_nothing(store):
    member = make(lease_s=4 * PATIENCE_S)
    with Membership(store, [member]) as membership:
        membership._beat_s = 0.05
        membership.join()
        beaten(store, member)
        store.error = StoreError("the server is away")
        membership.check()
        store.error = None
        beaten(store, member, times=2)
        membership.check()


def test_a_member_without_a_heartbeat_for_its_lease_stops_by_itself(store):
    now, told = [0.0], threading.Event()
    with Membership(store, [make(lease_s=60.0)], clock=lambda: now[0]) as membership:
        membership._beat_s = 0.05
        membership.on_lost(lambda error: told.set())
        membership.join()
        store.error = StoreError("the server is away")
        now[0] = 59.0
        assert not told.wait(0)
        now[0] = 61.0
        assert told.wait(PATIENCE_S)
        with pytest.raises(MemberError, match="no heartbeat reached the store for 60 s: the server is away"):
            membership.check()
        store.error = None


@pytest.mark.parametrize("error", [TimeoutError(), StoreError("")], ids=["hangs", "names nothing"])
def test_a_store_whose_error_has_no_text_is_said_not_to_answer(store, error):
    now, told = [0.0], threading.Event()
    with Membership(store, [make(lease_s=60.0)], clock=lambda: now[0]) as membership:
        membership._beat_s = 0.05
        membership.on_lost(lambda error: told.set())
        membership.join()
        store.error = error
        now[0] = 61.0
        assert told.wait(PATIENCE_S)
        with pytest.raises(MemberError, match="reached the store for 60 s: it did not answer in time"):
            membership.check()
        store.error = None


def test_a_fault_in_a_report_ends_the_membership_with_its_name(store):
    def report(member):
        raise ZeroDivisionError("ours")

    told = threading.Event()
    with Membership(store, [make()], report=report) as membership:
        membership.on_lost(lambda error: told.set())
        membership.join()
        assert told.wait(PATIENCE_S)
        with pytest.raises(MemberError, match="heartbeats stopped: ZeroDivisionError: ours"):
            membership.check()


def test_a_process_that_was_suspended_asks_before_it_goes_on(store):
    """As after SIGSTOP: by its own clock, the lease is over before it can beat again."""
    now, member = [0.0], make(lease_s=60.0)
    with Membership(store, [member], clock=lambda: now[0]) as membership:
        membership.join()
        beaten(store, member, times=0)
        now[0] = 1000.0
        membership.check()  # nobody has declared it lost
        with bounded() as goes_on:
            while not asyncio.run(store.declare_lost(member.id, beats=asyncio.run(store.members("run"))[0].beats)):
                goes_on()
        now[0] = 2000.0
        with pytest.raises(MemberError, match="was declared lost"):
            membership.check()


def test_people_change_what_the_members_do(store):
    told, seen = threading.Semaphore(0), []
    with Membership(store, [make()]) as membership:
        membership.on_control(lambda control: (seen.append((control.wanted, dict(control.limits))), told.release()))
        membership.join()
        assert told.acquire(timeout=PATIENCE_S)
        asyncio.run(store.set_control("run", wanted="pause", limits={"rollout.max_concurrent_rollouts": 3}))
        assert told.acquire(timeout=PATIENCE_S)
        asyncio.run(store.set_control("run", cancel={"record": True}))
        assert told.acquire(timeout=PATIENCE_S)
        later = []
        membership.on_control(lambda control: later.append(control.wanted))
    assert seen == [("run", {}), *2 * [("pause", {"rollout.max_concurrent_rollouts": 3})]]
    assert later == ["pause"]


def test_a_second_trainer_is_refused_while_the_first_one_beats(store):
    first = make("train", lease_s=1000.0)
    asyncio.run(store.join(first))
    notices = []

    def beat(message):
        notices.append(message)
        thread = threading.Thread(target=lambda: asyncio.run(store.beat(first.id, {})))
        thread.start()
        thread.join()

    with (
        Membership(store, [make("train"), make("sample")], notice=beat) as membership,
        pytest.raises(MemberError, match=rf"train on {socket.gethostname()} \(process {os.getpid()}\)"),
    ):
        membership.join()
    assert notices == [f"waiting up to 1000 s to see whether {first.name} still lives"]
    assert states(store) == {first.id: "live"}


def test_a_trainer_takes_the_place_of_one_that_does_not_beat_any_more(store):
    first, second = make("train"), make("train")
    asyncio.run(store.join(first))
    with Membership(store, [second]) as membership:
        membership.join()
        assert states(store) == {first.id: "lost", second.id: "live"}


def test_a_member_that_is_gone_is_declared_lost_by_the_others(store):
    """With the notice, and in spite of a lease that is much shorter than the watcher's."""
    gone, told = make(), threading.Event()
    asyncio.run(store.join(gone))
    with Membership(store, [make()], notice=lambda message: gone.name in message and told.set()) as membership:
        membership.join()
        assert told.wait(PATIENCE_S)
        assert states(store)[gone.id] == "lost"


@pytest.fixture
def process():
    """A process of this machine, and how to kill it without a word; nobody reaps it, like the child of a busy shell."""
    made = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield made
    made.kill()
    made.communicate()


def killed(process):
    """Kill a process, and wait until it has ended."""
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_a_killed_process_of_this_machine_is_lost_without_its_lease(store, process):
    member, told = make(pid=process.pid, lease_s=1000.0), threading.Semaphore(0)
    asyncio.run(store.join(member))
    notices = []
    with Membership(
        store, [make(lease_s=1000.0)], notice=lambda message: (notices.append(message), told.release())
    ) as membership:
        membership.join()
        beaten(store, membership.members[0], times=0)
        assert not member.has_ended
        assert states(store)[member.id] == "live"
        killed(process)
        assert told.acquire(timeout=PATIENCE_S)
        assert notices == [f"{member.name} is lost: its process has ended; others take over"]
        assert states(store)[member.id] == "lost"


def test_a_trainer_takes_the_place_of_a_killed_one_at_once(store, process):
    first, second, notices = make("train", pid=process.pid, lease_s=1000.0), make("train", lease_s=1000.0), []
    asyncio.run(store.join(first))
    killed(process)
    with Membership(store, [second], notice=notices.append) as membership:
        membership.join()
        assert states(store) == {first.id: "lost", second.id: "live"}
    assert notices == []


def test_another_process_with_the_number_of_a_member_does_not_keep_it_alive(process):
    machine, _, start = make(pid=process.pid).process.rpartition(" ")
    earlier = make(pid=process.pid, process=f"{machine} {int(start) - 1}")
    assert earlier.has_ended
    assert not make(pid=process.pid).has_ended


@pytest.mark.parametrize("identity", ["", "another-boot/pid:[1]/time:[1] 5"])
def test_nothing_is_known_of_processes_of_other_machines(process, identity):
    member = make(pid=process.pid, process=identity, host="elsewhere")
    killed(process)
    assert not member.has_ended
    assert not member.seems_gone


def test_a_watch_counts_the_time_that_it_has_watched():
    now, beats, ended = [0.0], {"a": 0, "b": 0}, []

    class Members:
        async def members(self, run_id, *, live):
            return [make(id=name, lease_s=60.0, beats=count) for name, count in beats.items() if name not in ended]

        async def declare_lost(self, member_id, *, beats):
            ended.append(member_id)
            return True

    watch = Watch(Members(), "run", clock=lambda: now[0])

    def look(at, **options):
        now[0] = at
        return [member.id for member in asyncio.run(watch.look(15.0, **options))]

    assert look(0.0) == []
    assert look(15.0, but=["b"]) == []
    beats["a"] = 1
    assert look(30.0, but=["b"]) == []
    assert look(5000.0) == []  # the watcher itself was suspended; that counts as two looks
    assert look(5015.0) == []
    assert look(5030.0) == ["a"]  # 30 + 15 + 15 s without a heartbeat
    assert look(5045.0) == look(5050.0) == []
    assert look(5060.0) == ["b"]  # seen first at 5000
    assert ended == ["a", "b"]


def test_members_whose_process_is_gone_need_no_lease(store):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    members = {
        "gone": make(pid=process.pid),
        "same number": make(),  # of an earlier process
        "trainer": make("train", pid=os.getppid()),  # the folder is locked, so its number is another process's
        "alive": make(pid=os.getppid()),
        "elsewhere": make(host="elsewhere", pid=process.pid),
    }
    for member in members.values():
        asyncio.run(store.join(member))
    with Membership(store, [make(lease_s=60.0)]) as membership:
        membership.join()
        lost = {member.id for member in asyncio.run(declare_gone(store, "run"))}
        assert lost == {members[name].id for name in ("gone", "same number", "trainer")}
        assert states(store)[membership.members[0].id] == "live"


def test_a_store_that_cannot_be_joined_is_an_error_and_leaves_no_thread(store):
    before = threading.active_count()
    with pytest.raises(RunError, match="elsewhere"), Membership(store, [make(run_id="elsewhere")]) as membership:
        membership.join()
    assert threading.active_count() == before
