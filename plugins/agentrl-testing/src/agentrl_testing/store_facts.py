"""Conformance tests of stores, first part: no run, task, record, call or session is lost or changed."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.api.audit import call_digest, digested
from agentrl_core.api.stores import RecordUsage, RunReader, RunRow, SessionRow, Store
from agentrl_core.errors import StoreError
from agentrl_core.types import Interaction, Outcome, Record, Task
from agentrl_testing.base import ConformanceSuite
from agentrl_testing.store_values import (
    add_group,
    add_record,
    call,
    create_run,
    finals,
    interactions,
    objects,
    session,
    shared_store,
    step,
    texts,
)

Reopen: TypeAlias = Callable[[], Store]
Read: TypeAlias = Callable[[], RunReader]


class StoreFactsSuite(ConformanceSuite):
    """Tests that a store returns what was written: runs, tasks, records, calls, sessions, steps, versions."""

    def test_runs_come_back_in_order_with_every_field(self, store: Store) -> None:
        config = {"name": "è 😀", "trainer": {"lr": 4e-4, "steps": 3}, "eval": None}
        first = RunRow(id="a", created_at=2.5, status="running", config=config, components={"losses:grpo": "x==1 a:B"})
        second = attrs.evolve(first, id="b", created_at=1.0)

        async def scenario() -> list[RunRow]:
            await store.create_run(first)
            await store.create_run(second)
            await store.update_run("a", status="failed", error="disk \ud800 full")
            return await store.runs()

        assert asyncio.run(scenario()) == [second, attrs.evolve(first, status="failed", error="disk \\ud800 full")]

    def test_a_run_s_name_is_taken_once(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            with pytest.raises(StoreError, match=run):
                await create_run(store, run)

        asyncio.run(scenario())

    @shared_store
    @given(rows=st.lists(st.tuples(objects, st.none() | texts, st.none() | texts, texts), max_size=4))
    def test_tasks_come_back_as_they_were(self, store: Store, rows: list[tuple[Any, ...]]) -> None:
        tasks = [
            Task(id=f"task-{number}", data=data, answer=answer, scorer=scorer, answer_schema=schema)
            for number, (data, answer, scorer, schema) in enumerate(rows)
        ]

        async def scenario() -> list[Task]:
            run = await create_run(store)
            await store.add_tasks(run, tasks)
            # The first row of an id stays.
            await store.add_tasks(run, [attrs.evolve(task, answer="other") for task in tasks])
            return await store.tasks(run)

        assert asyncio.run(scenario()) == tasks

    def test_tasks_of_several_sets_may_have_one_id(self, store: Store, reopen: Reopen) -> None:
        trained = Task(id="1", data={"query": "a"}, answer="train")
        held_out = Task(id="1", data={"query": "b"}, answer="eval")
        hard = Task(id="1", data={"query": "c"}, answer="hard")

        async def scenario() -> None:
            run = await create_run(store)
            await store.add_tasks(run, [held_out], task_set="eval")
            await store.add_tasks(run, [trained])
            await store.add_tasks(run, [hard], task_set="eval.hard")
            await store.add_tasks(run, [attrs.evolve(trained, answer="other")])
            group = await add_group(store, run)
            record = await add_record(store, run, group, task_id="1", is_eval=True, task_set="eval.hard")
            other = reopen()
            try:
                assert await other.tasks(run) == [held_out, trained, hard]
                assert await other.tasks(run, task_set="train") == [trained]
                assert await other.tasks(run, task_set="eval.hard") == [hard]
                assert await other.tasks(run, task_set="elsewhere") == []
                assert await other.records(run) == [record]
            finally:
                await other.close()

        asyncio.run(scenario())

    def test_what_was_flushed_is_there_for_a_second_store(self, store: Store, reopen: Reopen) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            await store.flush()
            await store.add_step(step(run, 1))
            # Nothing is left to flush the second time, which must not fail.
            await store.flush()
            await store.flush()
            other = reopen()
            try:
                assert [row.step for row in await other.steps(run)] == [1]
            finally:
                await other.close()

        asyncio.run(scenario())

    @shared_store
    @given(final=finals, calls=st.lists(interactions(), max_size=4))
    def test_an_episode_comes_back_as_it_was(
        self, store: Store, final: dict[str, Any], calls: list[Interaction]
    ) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            record = await add_record(store, run, await add_group(store, run), started_at=17.25, attempt=1)
            named = [attrs.evolve(call, record_id=record.id, seq=seq) for seq, call in enumerate(calls)]
            interactions = tuple(map(digested, named))
            for interaction in interactions:
                await store.add_interaction(run, interaction)
            finished = attrs.evolve(record, **final)
            assert await store.finish_record(finished)
            episode = await store.episode(record.id)
            assert episode is not None
            assert episode.record == finished
            assert episode.interactions == interactions
            # A digest is of the value, whatever the store makes of it.
            assert [call_digest(item) for item in episode.interactions] == [item.digest for item in interactions]

        asyncio.run(scenario())

    def test_details_of_scores_are_left_out_of_lists(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            record = await add_record(store, run, await add_group(store, run))
            finished = attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0, score_details={"judge": ["said", 1]})
            await store.finish_record(finished)
            assert await store.records(run) == [attrs.evolve(finished, score_details={})]
            assert (episode := await store.episode(record.id)) is not None
            assert episode.record == finished

        asyncio.run(scenario())

    def test_sessions_come_back_in_order_with_where_they_stand(self, store: Store, reopen: Reopen) -> None:
        async def scenario() -> list[SessionRow]:
            run = await create_run(store)
            group = await add_group(store, run)
            later = session(await add_record(store, run, group), opened_at=3.5, task_id="è 😀")
            first = session(await add_record(store, run, group), opened_at=1.5, key_hash=bytes(range(32)))
            other_run = await create_run(store)
            other = session(await add_record(store, other_run, await add_group(store, other_run)))
            for row in (later, first, other):
                await store.add_session(row)
            await store.update_session(first.record_id, state="ended", rewards={"chatcmpl-1": -0.25})
            assert await store.sessions(run) == [
                attrs.evolve(first, state="ended", rewards={"chatcmpl-1": -0.25}),
                later,
            ]
            return await store.sessions(run)

        rows = asyncio.run(scenario())
        other = reopen()
        assert asyncio.run(other.sessions(rows[0].run_id)) == rows
        asyncio.run(other.close())

    def test_a_session_needs_a_record_and_has_only_one(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            record = await add_record(store, run, await add_group(store, run))
            with pytest.raises(StoreError):
                await store.update_session(record.id, state="ended", rewards={})
            with pytest.raises(StoreError):
                await store.add_session(attrs.evolve(session(record), record_id="unknown"))
            await store.add_session(session(record))
            with pytest.raises(StoreError):
                await store.add_session(session(record))
            assert await store.sessions(run) == [session(record)]

        asyncio.run(scenario())

    def test_going_on_from_an_earlier_step_closes_the_sessions_of_cancelled_records(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            group = await add_group(store, run)
            running, done = await add_record(store, run, group), await add_record(store, run, group)
            for record in (running, done):
                await store.add_session(session(record))
            await store.finish_record(attrs.evolve(done, outcome=Outcome.SCORED, reward=1.0))
            await store.void_after(run, 0)
            states = {row.record_id: row.state for row in await store.sessions(run)}
            assert states == {running.id: "closed", done.id: "open"}

        asyncio.run(scenario())

    def test_logprobs_keep_their_32_bits(self, store: Store) -> None:
        # Values that 32 bits cannot hold exactly, and a negative zero.
        logprobs = (-0.1, -1e-7, -123.456, -0.0)

        async def scenario() -> tuple[float, ...]:
            run = await create_run(store)
            record = await add_record(store, run, await add_group(store, run))
            await store.add_interaction(run, call(record, logprobs=logprobs))
            episode = await store.episode(record.id)
            assert episode is not None
            return episode.interactions[0].logprobs

        expected = struct.unpack("4f", struct.pack("4f", *logprobs))
        # As text, because -0.0 == 0.0.
        assert [value.hex() for value in asyncio.run(scenario())] == [value.hex() for value in expected]

    def test_a_second_store_on_the_same_data_sees_everything(self, store: Store, reopen: Reopen) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            record = await add_record(store, run, await add_group(store, run))
            await store.add_interaction(run, call(record, tools=({"name": "look"},)))
            await store.add_version(run, 4, step=4)
            await store.add_step(step(run, 1))
            other = reopen()
            try:
                assert await other.episode(record.id) == await store.episode(record.id)
                assert await other.last_version(run) == 4
                assert await other.steps(run) == await store.steps(run)
                assert [row.id for row in await other.runs()] == [row.id for row in await store.runs()]
            finally:
                await other.close()

        asyncio.run(scenario())

    def test_a_reader_sees_everything_while_the_run_goes_on(self, store: Store, read: Read) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            await store.add_tasks(run, [Task(id="t", data={"query": "a"})])
            record = await add_record(store, run, await add_group(store, run))
            await store.add_session(session(record))
            await store.add_version(run, 2, step=1)
            reader = read()
            try:
                for seq in range(2):
                    await store.add_interaction(run, call(record, seq=seq, output={"content": f"reply {seq}"}))
                await store.add_step(step(run, 1))
                assert await reader.runs() == await store.runs()
                assert await reader.tasks(run, task_set="train") == await store.tasks(run)
                assert await reader.sessions(run) == [session(record)]
                assert await reader.records(run) == [record]
                assert await reader.episode(record.id) == await store.episode(record.id)
                assert await reader.steps(run) == [step(run, 1)]
                assert await reader.last_version(run) == 2
                assert await reader.usage(run) == {record.id: RecordUsage(calls=2, prompt_tokens=4, output_tokens=2)}
                assert await reader.last_outputs(run) == {record.id: {"content": "reply 1"}}
                assert reader.location == store.location
            finally:
                await reader.close()

        asyncio.run(scenario())

    def test_concurrent_writers_lose_nothing(self, store: Store) -> None:
        calls_each = 25
        run = asyncio.run(create_run(store))
        group = asyncio.run(add_group(store, run))
        failures: list[BaseException] = []

        async def work(index: int) -> None:
            record = await add_record(store, run, group, sample_index=index)
            for seq in range(calls_each):
                await store.add_interaction(run, call(record, seq=seq, tools=({"name": f"tool {seq % 3}"},)))
            assert await store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0))

        def on_a_loop_of_its_own(index: int) -> None:
            try:
                asyncio.run(work(index))
            except BaseException as error:  # noqa: BLE001 - raised in the main thread below
                failures.append(error)

        threads = [threading.Thread(target=on_a_loop_of_its_own, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        episodes = [asyncio.run(store.episode(record.id)) for record in asyncio.run(store.records(run))]
        assert sorted(episode.record.sample_index for episode in episodes if episode) == [0, 1, 2, 3]
        for episode in filter(None, episodes):
            assert [interaction.seq for interaction in episode.interactions] == list(range(calls_each))

    def test_only_the_first_finish_counts(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            record = await add_record(store, run, await add_group(store, run))
            assert await store.finish_record(attrs.evolve(record, outcome=Outcome.TIMED_OUT, reason="timeout"))
            assert not await store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0))
            (kept,) = await store.records(run)
            assert (kept.outcome, kept.reason, kept.reward) == (Outcome.TIMED_OUT, "timeout", None)

        asyncio.run(scenario())

    def test_what_was_never_announced_is_refused(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            stranger = Record(id="stranger", run_id=run, task_id="t", group_id="nowhere", sample_index=0)
            for write in (
                store.add_record(stranger),
                store.add_interaction(run, call(stranger)),
                store.finish_record(attrs.evolve(stranger, outcome=Outcome.FAILED)),
                store.update_run("nowhere", status="finished"),
                store.take_groups("nowhere", 1),
            ):
                with pytest.raises(StoreError, match=r"stranger|nowhere"):
                    await write

        asyncio.run(scenario())

    def test_records_are_listed_by_start_and_filtered(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            group = await add_group(store, run, task_id="a")
            late = await add_record(store, run, group, task_id="a", started_at=3.0)
            early = await add_record(store, run, group, task_id="b", started_at=1.0)
            held_out = await add_record(store, run, group, task_id="b", started_at=2.0, is_eval=True)
            await add_record(store, other := await create_run(store), await add_group(store, other))
            assert await store.records(run) == [early, held_out, late]
            assert await store.records(run, limit=2) == [early, held_out]
            assert await store.records(run, task_id="b") == [early, held_out]
            assert await store.records(run, is_eval=False) == [early, late]
            assert await store.records(run, task_id="b", is_eval=True) == [held_out]

        asyncio.run(scenario())

    def test_several_episodes_come_as_each_of_them_does(self, store: Store, read: Read) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            group = await add_group(store, run)
            names = [f"{run}-{letter}" for letter in "abc"]
            for calls, name in enumerate(names):
                record = await add_record(store, run, group, record_id=name)
                for seq in range(calls):
                    await store.add_interaction(run, call(record, seq=seq))
                await store.finish_record(
                    attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0, score_details={"seen": calls})
                )
            for reader in (store, read()):
                assert await reader.episodes([]) == []
                one_by_one = [await reader.episode(name) for name in reversed(names)]
                asked = [names[2], run, names[1], f"{run}-x", names[0]]
                assert await reader.episodes(asked) == one_by_one
                assert [len(item.interactions) for item in one_by_one if item is not None] == [2, 1, 0]
                if reader is not store:
                    await reader.close()

        asyncio.run(scenario())

    def test_an_episode_is_found_by_a_unique_prefix(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            group = await add_group(store, run)
            for name in (f"{run}-abc", f"{run}-abd", f"{run}-ab"):
                await add_record(store, run, group, record_id=name)
            for asked, found in (
                (f"{run}-abc", f"{run}-abc"),
                (f"{run}-ab", f"{run}-ab"),
                (f"{run}-abd", f"{run}-abd"),
            ):
                episode = await store.episode(asked)
                assert episode is not None
                assert episode.record.id == found
            assert await store.episode(f"{run}-x") is None
            with pytest.raises(StoreError, match=f"{run}-abc"):
                await store.episode(f"{run}-a")

        asyncio.run(scenario())

    def test_usage_counts_calls_and_tokens_of_each_record(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            group = await add_group(store, run)
            busy, idle = await add_record(store, run, group), await add_record(store, run, group)
            await store.add_interaction(run, call(busy, prompt_ids=(1, 2, 3), output_ids=(4,)))
            await store.add_interaction(run, call(busy, seq=1, prompt_ids=(5,), output_ids=()))
            usage = await store.usage(run)
            assert usage[busy.id] == RecordUsage(calls=2, prompt_tokens=4, output_tokens=1)
            assert idle.id not in usage

        asyncio.run(scenario())
