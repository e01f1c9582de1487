"""Sessions by record: opened once and closed once, however often and from however many threads that is asked for."""

import asyncio
import threading
from types import SimpleNamespace

import attrs
import pytest

from agentrl_core.errors import RequestError
from agentrl_core.gateway.members.sessions import MemberSessions
from agentrl_core.types import Episode, Record


def record(number=0):
    return Record(id=f"r{number}", run_id="run", task_id="t", group_id="g", sample_index=number)


class Gateway:
    """Counts the sessions that it opens and closes; a close waits for `may_close`."""

    def __init__(self):
        self.opened, self.closed, self.error = [], [], None
        self.may_close = threading.Event()
        self.may_close.set()
        self.records = [record(number) for number in range(8)]
        self.members = MemberSessions(store=self, open_session=self.open, close_session=self.close)

    async def open(self, record, seed_key, sampling):
        session = SimpleNamespace(record_id=record.id, refusal="")
        self.opened.append(session)
        await asyncio.sleep(0)
        return session

    async def close(self, session):
        self.closed.append(session)
        await asyncio.to_thread(self.may_close.wait, 10)
        if self.error is not None:
            raise self.error
        return ("stored",)

    async def episode(self, record_id):
        return Episode(record=record(), interactions=("stored",))

    async def episodes(self, record_ids):
        return [Episode(record=one, interactions=()) for one in self.records if one.id in record_ids]

    async def start(self, number=0, member="m"):
        return await self.members.open(member, record(number), seed_key=(1,), sampling=None)


@pytest.fixture
def gateway():
    return Gateway()


def test_one_record_has_one_session(gateway):
    async def scenario():
        first, second = await asyncio.gather(gateway.start(), gateway.start())
        third = await gateway.start()
        return first is second is third

    assert asyncio.run(scenario())
    # The session that lost the race is closed again.
    assert len(gateway.opened) - len(gateway.closed) == gateway.members.count == 1


@pytest.mark.parametrize("stored", [[], [attrs.evolve(record(), run_id="another")]])
def test_a_record_that_the_run_does_not_have_gets_no_session(gateway, stored):
    gateway.records = stored
    with pytest.raises(RequestError, match="the run run has no record r0") as caught:
        asyncio.run(gateway.start())
    assert caught.value.status == 409
    assert not gateway.opened


def test_a_session_is_closed_once_from_two_threads(gateway):
    gateway.may_close.clear()
    replies = []

    def close():
        replies.append(asyncio.run(gateway.members.close("r0")))

    asyncio.run(gateway.start())
    threads = [threading.Thread(target=close) for _ in range(2)]
    for thread in threads:
        thread.start()
    gateway.may_close.set()
    for thread in threads:
        thread.join(10)
    assert replies == [(("stored",), "")] * 2
    assert asyncio.run(gateway.members.close("r0")) == (("stored",), "")
    assert len(gateway.closed) == 1
    assert gateway.members.count == 0


def test_a_session_that_is_closing_is_not_opened_again(gateway):
    async def scenario():
        await gateway.start()
        gateway.may_close.clear()
        closing = asyncio.ensure_future(gateway.members.close("r0"))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="the session of record r0 was closed"):
            await gateway.start()
        gateway.may_close.set()
        await closing

    asyncio.run(scenario())


def test_a_close_that_fails_fails_for_all_who_asked(gateway):
    async def scenario():
        await gateway.start()
        gateway.error = ValueError("disk full")
        results = await asyncio.gather(*(gateway.members.close("r0") for _ in range(2)), return_exceptions=True)
        with pytest.raises(RequestError, match="record r0 has no session here"):
            await gateway.members.close("r0")
        return results

    assert [str(result) for result in asyncio.run(scenario())] == ["disk full"] * 2
    assert gateway.members.count == 0


def test_only_the_sessions_of_a_member_that_is_gone_are_closed(gateway):
    async def scenario():
        for number, member in enumerate("aab"):
            await gateway.start(number, member)
        count = await gateway.members.close_all_of("a")
        with pytest.raises(RequestError, match="member a has left the run"):
            await gateway.start(3, "a")
        await gateway.start(4, "b")
        return count

    assert asyncio.run(scenario()) == 2
    assert [session.record_id for session in gateway.closed] == ["r0", "r1"]
    assert gateway.members.count == 2


def test_a_session_that_opens_while_its_member_goes_is_closed(gateway):
    async def scenario():
        opening = asyncio.ensure_future(gateway.start())
        await asyncio.sleep(0)
        assert gateway.opened
        await gateway.members.close_all_of("m")
        with pytest.raises(RequestError, match="member m has left the run"):
            await opening

    asyncio.run(scenario())
    assert gateway.members.count == 0
