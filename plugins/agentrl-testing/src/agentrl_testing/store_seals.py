"""Conformance tests of stores, sixth part: what a run's audit trail reads and writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from hypothesis import given

from agentrl_core.api.audit import digested, record_digest, task_digest
from agentrl_core.api.stores import EndedRecord, SealRow
from agentrl_core.errors import StoreError
from agentrl_core.types import Outcome, Task
from agentrl_testing.base import ConformanceSuite
from agentrl_testing.store_values import (
    add_group,
    add_record,
    call,
    create_run,
    finals,
    objects,
    shared_store,
    tool_call,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.api.stores import RunReader, Store


class StoreSealsSuite(ConformanceSuite):
    """`unsealed`, `add_seal`, `seals` and `versions`."""

    def test_an_ended_record_waits_for_a_seal_with_its_group_and_the_digests_of_its_calls(self, store: Store) -> None:
        async def scenario() -> None:
            run, other = await create_run(store), await create_run(store)
            group = await add_group(store, run)
            running = await add_record(store, run, group)
            ended = await _ended(store, run, group, calls=2, tool_calls=2)
            await _ended(store, other, await add_group(store, other))
            (found,) = await store.unsealed(run, limit=9)
            assert found.record == ended.record
            assert (found.calls, found.tool_calls) == (ended.calls, ended.tool_calls)
            assert found.group == next(row for row in await store.groups(run) if row.id == group)
            assert found.num_calls == 4
            await store.add_seal(_seal(run, 0), records={found.record.id: found.num_calls})
            assert await store.unsealed(run, limit=9, late=True) == []
            assert await store.unsealed(run, limit=9) == []
            cancelled = attrs.evolve(running, outcome=Outcome.CANCELLED)
            await store.finish_record(cancelled)
            assert [item.record for item in await store.unsealed(run, limit=9)] == [cancelled]

        asyncio.run(scenario())

    def test_as_many_unsealed_records_come_as_are_asked_for(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            group = await add_group(store, run)
            left = {(await _ended(store, run, group, sample_index=slot)).record.id for slot in range(5)}
            for number in range(3):
                found = await store.unsealed(run, limit=2)
                assert len(found) == (1 if number == 2 else 2)
                await store.add_seal(_seal(run, number), records={item.record.id: 0 for item in found})
                left -= {item.record.id for item in found}
            assert (left, await store.unsealed(run, limit=2)) == (set(), [])

        asyncio.run(scenario())

    def test_a_call_after_the_seal_of_its_record_is_found_as_late(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            group = await add_group(store, run)
            ended = await _ended(store, run, group, calls=1)
            await store.add_seal(_seal(run, 0), records={ended.record.id: 1})
            assert await store.unsealed(run, limit=9, late=True) == []
            late = digested(call(ended.record, seq=1))
            await store.add_interaction(run, late)
            assert await store.unsealed(run, limit=9) == []
            (found,) = await store.unsealed(run, limit=9, late=True)
            assert (found.record, found.calls) == (ended.record, (*ended.calls, late.digest))
            await store.add_seal(_seal(run, 1), records={ended.record.id: 2})
            assert await store.unsealed(run, limit=9, late=True) == []

        asyncio.run(scenario())

    def test_a_tool_call_after_the_seal_of_its_record_is_found_as_late(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            ended = await _ended(store, run, await add_group(store, run), calls=1, tool_calls=1)
            await store.add_seal(_seal(run, 0), records={ended.record.id: ended.num_calls})
            late = digested(tool_call(ended.record, seq=1))
            await store.add_tool_call(run, late)
            assert await store.unsealed(run, limit=9) == []
            (found,) = await store.unsealed(run, limit=9, late=True)
            assert (found.calls, found.tool_calls) == (ended.calls, (*ended.tool_calls, late.digest))
            await store.add_seal(_seal(run, 1), records={found.record.id: found.num_calls})
            assert await store.unsealed(run, limit=9, late=True) == []

        asyncio.run(scenario())

    @shared_store
    @given(final=finals, data=objects)
    def test_digests_of_records_and_tasks_are_the_same_for_every_reader(
        self, store: Store, read: Callable[[], RunReader], final: dict[str, Any], data: dict[str, Any]
    ) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            group = await add_group(store, run)
            record = await add_record(store, run, group, started_at=17.25)
            await store.finish_record(attrs.evolve(record, **final))
            task = Task(id="t", data=data, answer="è")
            await store.add_tasks(run, [task])
            (found,) = await store.unsealed(run, limit=1)
            reader = read()
            try:
                episode = await reader.episode(record.id)
                (row,) = await reader.groups(run)
                (kept,) = await reader.tasks(run, task_set="train", ids=["t"])
            finally:
                await reader.close()
            assert episode is not None
            assert record_digest(episode.record, row) == record_digest(found.record, found.group)
            assert task_digest(kept) == task_digest(task)

        asyncio.run(scenario())

    def test_seals_come_back_in_order_and_each_number_is_taken_once(
        self, store: Store, read: Callable[[], RunReader]
    ) -> None:
        async def scenario() -> None:
            run, other = await create_run(store), await create_run(store)
            written = [_seal(run, number) for number in range(12)]
            for seal in written:
                await store.add_seal(seal, records={})
            await store.add_seal(_seal(other, 0), records={})
            with pytest.raises(StoreError, match="seal 3"):
                await store.add_seal(attrs.evolve(written[3], body="other"), records={})
            reader = read()
            try:
                assert await reader.seals(run) == written
                assert await reader.seals(run, newest=2) == written[-2:]
                assert await reader.seals(run, newest=0) == []
                assert await reader.seals("nothing") == []
            finally:
                await reader.close()
            with pytest.raises(StoreError):
                await store.add_seal(_seal("nothing", 0), records={})

        asyncio.run(scenario())

    def test_versions_are_listed_from_one_on(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            for version, step in ((0, 0), (1, 1), (4, 1), (5, 2)):
                await store.add_version(run, version, step=step)
            found = await store.versions(run)
            assert [(row.version, row.step) for row in found] == [(0, 0), (1, 1), (4, 1), (5, 2)]
            assert all(row.published_at > 0 for row in found)
            assert await store.versions(run, after=1) == found[2:]

        asyncio.run(scenario())

    def test_tasks_are_found_by_their_ids(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            tasks = [Task(id=name, data={"query": name}) for name in ("c", "a", "$b.è")]
            await store.add_tasks(run, tasks)
            await store.add_tasks(run, tasks[:1], task_set="eval")
            assert await store.tasks(run, task_set="train", ids=["$b.è", "c", "nothing"]) == [tasks[0], tasks[2]]
            assert await store.tasks(run, task_set="eval", ids=["a"]) == []
            assert await store.tasks(run, task_set="train", ids=[]) == []

        asyncio.run(scenario())


async def _ended(
    store: Store, run: str, group: str, *, calls: int = 0, tool_calls: int = 0, sample_index: int = 0
) -> EndedRecord:
    """Add a scored record with calls, and return it as it waits for its seal."""
    record = await add_record(store, run, group, sample_index=sample_index)
    interactions = [digested(call(record, seq=seq)) for seq in range(calls)]
    for interaction in interactions:
        await store.add_interaction(run, interaction)
    tools = [digested(tool_call(record, seq=seq)) for seq in range(tool_calls)]
    for item in tools:
        await store.add_tool_call(run, item)
    scored = attrs.evolve(record, outcome=Outcome.SCORED, reward=0.5, score_details={"why": ["so"]}, finished_at=9.5)
    await store.finish_record(scored)
    (row,) = [row for row in await store.groups(run) if row.id == group]
    return EndedRecord(
        record=scored,
        group=row,
        calls=tuple(item.digest for item in interactions),
        tool_calls=tuple(item.digest for item in tools),
    )


def _seal(run: str, number: int) -> SealRow:
    return SealRow(run_id=run, number=number, body=f'{{"number":{number}}}', digest=f"{number:064x}")
