"""Conformance suite of stores: no data lost or changed, groups handed out once and in order, runs resumable."""

from __future__ import annotations

import asyncio
import itertools
import json
import string
import struct
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl_core.api.group_queue import OvertakeLimits
from agentrl_core.api.stores import RecordUsage, ResumePoint, RunReader, RunRow, SessionRow, StepRow, Store
from agentrl_core.errors import StoreError
from agentrl_core.types import FinishReason, Grammar, Group, Interaction, Outcome, Record, Sampling, Task, run_lengths
from agentrl_testing.base import ConformanceSuite

Reopen: TypeAlias = Callable[[], Store]
Read: TypeAlias = Callable[[], RunReader]

_fresh = itertools.count()

# `st.text` draws no lone surrogates; messages that arrive over HTTP as UTF-8 have none either.
_texts = st.text(max_size=20)
_ids = st.text(string.ascii_lowercase + string.digits, min_size=4, max_size=8)
_floats = st.floats(allow_nan=False, allow_infinity=False)
_times = st.floats(0, 4e9)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _floats | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
_objects = st.dictionaries(_texts, _json, max_size=3)
_tool_calls = st.lists(
    st.builds(
        lambda call, name, arguments: {
            "id": call,
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        },
        _ids,
        _ids,
        _objects,
    ),
    min_size=1,
    max_size=3,
)
_messages = st.one_of(
    st.builds(lambda role, content: {"role": role, "content": content}, st.sampled_from(["system", "user"]), _texts),
    st.builds(lambda call, content: {"role": "tool", "tool_call_id": call, "content": content}, _ids, _texts),
    st.builds(lambda content: {"role": "assistant", "content": content}, _texts | st.none()),
    st.builds(lambda calls: {"role": "assistant", "content": None, "tool_calls": calls}, _tool_calls),
)
_sampling = st.builds(
    Sampling,
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1),
    top_k=st.integers(0, 100),
    max_tokens=st.none() | st.integers(1, 9999),
    stop=st.lists(_texts, max_size=2).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=2).map(tuple),
    min_tokens=st.integers(0, 9),
    ignore_eos=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
    grammar=st.none() | st.builds(Grammar, kind=st.sampled_from(("json_object", "lark")), value=_texts),
)
_token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=40).map(tuple)


@st.composite
def _interactions(draw: st.DrawFn) -> Interaction:
    """Draw an arbitrary LLM call as a gateway could record it; the test sets `record_id` and `seq`."""
    output_ids = draw(_token_ids)
    count = len(output_ids)
    return Interaction(
        id=f"chatcmpl-{next(_fresh)}",
        record_id="",
        seq=0,
        parent=draw(st.none() | _ids),
        prompt_ids=draw(_token_ids),
        output_ids=output_ids,
        logprobs=tuple(draw(st.lists(st.floats(-100, 0, width=32), min_size=count, max_size=count))),
        versions=run_lengths(sorted(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))),
        messages=tuple(draw(st.lists(_messages, max_size=3))),
        output=draw(_messages),
        tools=tuple(draw(st.lists(_objects, max_size=2))),
        sampling=draw(_sampling),
        requested=draw(_objects),
        finish_reason=draw(st.sampled_from(FinishReason)),
        model=draw(_texts),
        api=draw(_texts),
        trainable=draw(st.booleans()),
        upstream=draw(_texts),
        cached_tokens=draw(st.integers(0, 9999)),
        tool_errors=draw(st.integers(0, 9)),
        witness=draw(_ids),
        retry_key=draw(_ids),
        started_at=draw(_times),
        finished_at=draw(_times),
    )


_finals = st.builds(
    lambda **fields: fields,
    outcome=st.sampled_from([outcome for outcome in Outcome if outcome is not Outcome.RUNNING]),
    reason=_texts,
    detail=_texts,
    reward=st.none() | _floats,
    rewards=st.dictionaries(_ids, _floats, max_size=3),
    score=st.none() | _floats,
    score_parts=st.dictionaries(_texts, _floats, max_size=3),
    score_details=st.dictionaries(_texts, _texts | st.lists(st.integers() | st.none()), max_size=3),
    finished_at=_times,
)

# All examples share the suite's store, because each uses new ids and a new run.
_shared_store = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)


class StoreSuite(ConformanceSuite):
    """Conformance tests of stores: define the fixtures `store`, `reopen` and `read`.

    `store` is an empty store, which the suite closes; `reopen` is a function that opens it once more, and `read` one
    that opens it for reading, as commands do.

    class TestSQLiteStore(StoreSuite):
        @pytest.fixture
        def store(self, tmp_path):
            return SQLiteStore(path=tmp_path / "agentrl.db")

        @pytest.fixture
        def reopen(self, store, tmp_path):
            return lambda: SQLiteStore(path=tmp_path / "agentrl.db")

        @pytest.fixture
        def read(self, store, tmp_path):
            return lambda: SQLiteStore.read(tmp_path / "agentrl.db")
    """

    @pytest.fixture(autouse=True)
    def _close(self, store: Store) -> Any:
        yield
        asyncio.run(store.close())

    # --- No data is lost or changed ---

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
            run = await _create_run(store)
            with pytest.raises(StoreError, match=run):
                await _create_run(store, run)

        asyncio.run(scenario())

    @_shared_store
    @given(rows=st.lists(st.tuples(_objects, st.none() | _texts, st.none() | _texts, _texts), max_size=4))
    def test_tasks_come_back_as_they_were(self, store: Store, rows: list[tuple[Any, ...]]) -> None:
        tasks = [
            Task(id=f"task-{number}", data=data, answer=answer, scorer=scorer, answer_schema=schema)
            for number, (data, answer, scorer, schema) in enumerate(rows)
        ]

        async def scenario() -> list[Task]:
            run = await _create_run(store)
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
            run = await _create_run(store)
            await store.add_tasks(run, [held_out], task_set="eval")
            await store.add_tasks(run, [trained])
            await store.add_tasks(run, [hard], task_set="eval.hard")
            await store.add_tasks(run, [attrs.evolve(trained, answer="other")])
            group = await _add_group(store, run, is_eval=True)
            record = await _add_record(store, run, group, task_id="1", is_eval=True, task_set="eval.hard")
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
            run = await _create_run(store)
            await store.flush()
            await store.add_step(_step(run, 1))
            # Nothing is left to flush the second time, which must not fail.
            await store.flush()
            await store.flush()
            other = reopen()
            try:
                assert [row.step for row in await other.steps(run)] == [1]
            finally:
                await other.close()

        asyncio.run(scenario())

    @_shared_store
    @given(final=_finals, calls=st.lists(_interactions(), max_size=4))
    def test_an_episode_comes_back_as_it_was(
        self, store: Store, final: dict[str, Any], calls: list[Interaction]
    ) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            record = await _add_record(store, run, await _add_group(store, run), started_at=17.25, attempt=1)
            interactions = tuple(attrs.evolve(call, record_id=record.id, seq=seq) for seq, call in enumerate(calls))
            for interaction in interactions:
                await store.add_interaction(run, interaction)
            finished = attrs.evolve(record, **final)
            assert await store.finish_record(finished)
            episode = await store.episode(record.id)
            assert episode is not None
            assert episode.record == finished
            assert episode.interactions == interactions

        asyncio.run(scenario())

    def test_details_of_scores_are_left_out_of_lists(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            record = await _add_record(store, run, await _add_group(store, run))
            finished = attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0, score_details={"judge": ["said", 1]})
            await store.finish_record(finished)
            assert await store.records(run) == [attrs.evolve(finished, score_details={})]
            assert (episode := await store.episode(record.id)) is not None
            assert episode.record == finished

        asyncio.run(scenario())

    def test_sessions_come_back_in_order_with_where_they_stand(self, store: Store, reopen: Reopen) -> None:
        async def scenario() -> list[SessionRow]:
            run = await _create_run(store)
            group = await _add_group(store, run)
            later = _session(await _add_record(store, run, group), opened_at=3.5, task_id="è 😀")
            first = _session(await _add_record(store, run, group), opened_at=1.5, key_hash=bytes(range(32)))
            other_run = await _create_run(store)
            other = _session(await _add_record(store, other_run, await _add_group(store, other_run)))
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
            run = await _create_run(store)
            record = await _add_record(store, run, await _add_group(store, run))
            with pytest.raises(StoreError):
                await store.update_session(record.id, state="ended", rewards={})
            with pytest.raises(StoreError):
                await store.add_session(attrs.evolve(_session(record), record_id="unknown"))
            await store.add_session(_session(record))
            with pytest.raises(StoreError):
                await store.add_session(_session(record))
            assert await store.sessions(run) == [_session(record)]

        asyncio.run(scenario())

    def test_going_on_from_an_earlier_step_closes_the_sessions_of_cancelled_records(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            group = await _add_group(store, run)
            running, done = await _add_record(store, run, group), await _add_record(store, run, group)
            for record in (running, done):
                await store.add_session(_session(record))
            await store.finish_record(attrs.evolve(done, outcome=Outcome.SCORED, reward=1.0))
            await store.void_after(run, 0)
            states = {row.record_id: row.state for row in await store.sessions(run)}
            assert states == {running.id: "closed", done.id: "open"}

        asyncio.run(scenario())

    def test_logprobs_keep_their_32_bits(self, store: Store) -> None:
        # Values that 32 bits cannot hold exactly, and a negative zero.
        logprobs = (-0.1, -1e-7, -123.456, -0.0)

        async def scenario() -> tuple[float, ...]:
            run = await _create_run(store)
            record = await _add_record(store, run, await _add_group(store, run))
            await store.add_interaction(run, _call(record, logprobs=logprobs))
            episode = await store.episode(record.id)
            assert episode is not None
            return episode.interactions[0].logprobs

        expected = struct.unpack("4f", struct.pack("4f", *logprobs))
        # As text, because -0.0 == 0.0.
        assert [value.hex() for value in asyncio.run(scenario())] == [value.hex() for value in expected]

    def test_a_second_store_on_the_same_data_sees_everything(self, store: Store, reopen: Reopen) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            record = await _add_record(store, run, await _add_group(store, run))
            await store.add_interaction(run, _call(record, tools=({"name": "look"},)))
            await store.add_version(run, 4, step=4)
            await store.add_step(_step(run, 1))
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
            run = await _create_run(store)
            await store.add_tasks(run, [Task(id="t", data={"query": "a"})])
            record = await _add_record(store, run, await _add_group(store, run))
            await store.add_session(_session(record))
            await store.add_version(run, 2, step=1)
            reader = read()
            try:
                for seq in range(2):
                    await store.add_interaction(run, _call(record, seq=seq, output={"content": f"reply {seq}"}))
                await store.add_step(_step(run, 1))
                assert await reader.runs() == await store.runs()
                assert await reader.tasks(run, task_set="train") == await store.tasks(run)
                assert await reader.sessions(run) == [_session(record)]
                assert await reader.records(run) == [record]
                assert await reader.episode(record.id) == await store.episode(record.id)
                assert await reader.steps(run) == [_step(run, 1)]
                assert await reader.last_version(run) == 2
                assert await reader.usage(run) == {record.id: RecordUsage(calls=2, prompt_tokens=4, output_tokens=2)}
                assert await reader.last_outputs(run) == {record.id: {"content": "reply 1"}}
                assert reader.location == store.location
            finally:
                await reader.close()

        asyncio.run(scenario())

    def test_concurrent_writers_lose_nothing(self, store: Store) -> None:
        calls_each = 25
        run = asyncio.run(_create_run(store))
        group = asyncio.run(_add_group(store, run))
        failures: list[BaseException] = []

        async def work(index: int) -> None:
            record = await _add_record(store, run, group, sample_index=index)
            for seq in range(calls_each):
                await store.add_interaction(run, _call(record, seq=seq, tools=({"name": f"tool {seq % 3}"},)))
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
        asyncio.run(store.finish_group(run, group, usable=True))
        (taken,) = asyncio.run(store.take_groups(run, 1))
        assert [episode.record.sample_index for episode in taken.episodes] == [0, 1, 2, 3]
        for episode in taken.episodes:
            assert [interaction.seq for interaction in episode.interactions] == list(range(calls_each))

    # --- Records change their state once ---

    def test_only_the_first_finish_counts(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            record = await _add_record(store, run, await _add_group(store, run))
            assert await store.finish_record(attrs.evolve(record, outcome=Outcome.TIMED_OUT, reason="timeout"))
            assert not await store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0))
            (kept,) = await store.records(run)
            assert (kept.outcome, kept.reason, kept.reward) == (Outcome.TIMED_OUT, "timeout", None)

        asyncio.run(scenario())

    def test_what_was_never_announced_is_refused(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            stranger = Record(id="stranger", run_id=run, task_id="t", group_id="nowhere", sample_index=0)
            for write in (
                store.add_record(stranger),
                store.add_interaction(run, _call(stranger)),
                store.finish_record(attrs.evolve(stranger, outcome=Outcome.FAILED)),
                store.finish_group(run, "nowhere", usable=True),
                store.update_run("nowhere", status="finished"),
                store.take_groups("nowhere", 1),
            ):
                with pytest.raises(StoreError, match=r"stranger|nowhere"):
                    await write

        asyncio.run(scenario())

    def test_records_are_listed_by_start_and_filtered(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            group = await _add_group(store, run, task_id="a")
            late = await _add_record(store, run, group, task_id="a", started_at=3.0)
            early = await _add_record(store, run, group, task_id="b", started_at=1.0)
            held_out = await _add_record(store, run, group, task_id="b", started_at=2.0, is_eval=True)
            await _add_record(store, other := await _create_run(store), await _add_group(store, other))
            assert await store.records(run) == [early, held_out, late]
            assert await store.records(run, limit=2) == [early, held_out]
            assert await store.records(run, task_id="b") == [early, held_out]
            assert await store.records(run, is_eval=False) == [early, late]
            assert await store.records(run, task_id="b", is_eval=True) == [held_out]

        asyncio.run(scenario())

    def test_an_episode_is_found_by_a_unique_prefix(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            group = await _add_group(store, run)
            for name in (f"{run}-abc", f"{run}-abd", f"{run}-ab"):
                await _add_record(store, run, group, record_id=name)
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
            run = await _create_run(store)
            group = await _add_group(store, run)
            busy, idle = await _add_record(store, run, group), await _add_record(store, run, group)
            await store.add_interaction(run, _call(busy, prompt_ids=(1, 2, 3), output_ids=(4,)))
            await store.add_interaction(run, _call(busy, seq=1, prompt_ids=(5,), output_ids=()))
            usage = await store.usage(run)
            assert usage[busy.id] == RecordUsage(calls=2, prompt_tokens=4, output_tokens=1)
            assert idle.id not in usage

        asyncio.run(scenario())

    # --- Groups are taken once, in order ---

    def test_groups_are_taken_in_the_order_of_their_submission(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            names = [await _add_group(store, run, index=index, version=index) for index in range(4)]
            for name in (names[3], names[1], names[0], names[2]):
                await store.finish_group(run, name, usable=True)
            first, second = await store.take_groups(run, 2), await store.take_groups(run, 2)
            assert [group.id for group in first + second] == names
            assert [(group.index, group.version, group.task_id) for group in second] == [(2, 2, "t"), (3, 3, "t")]

        asyncio.run(scenario())

    def test_a_group_holds_scored_records_of_each_slot_in_order(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            name = await _add_group(store, run)
            outcomes = [
                (2, 0, Outcome.SCORED),
                (0, 0, Outcome.FAILED),
                (1, 0, Outcome.REJECTED),
                (0, 1, Outcome.SCORED),
            ]
            # Slot 0 was retried, slot 1 has no scored record, and slot 3 (below) is still running.
            for sample_index, attempt, outcome in outcomes:
                record = await _add_record(store, run, name, sample_index=sample_index, attempt=attempt)
                await store.add_interaction(run, _call(record))
                await store.finish_record(attrs.evolve(record, outcome=outcome, reward=float(attempt)))
            await _add_record(store, run, name, sample_index=3)
            await store.finish_group(run, name, usable=True)
            (group,) = await store.take_groups(run, 1)
            found = [(episode.record.sample_index, episode.record.attempt) for episode in group.episodes]
            assert found == [(0, 1), (2, 0)]
            assert all(len(episode.interactions) == 1 for episode in group.episodes)

        asyncio.run(scenario())

    def test_an_open_group_holds_back_later_ones_and_a_dropped_one_does_not(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            names = [await _add_group(store, run, index=index) for index in range(3)]
            await store.finish_group(run, names[1], usable=True)
            await store.finish_group(run, names[2], usable=True)
            taking = asyncio.create_task(store.take_groups(run, 2))
            # Let the task reach its wait.
            for _ in range(3):
                await asyncio.sleep(0)
            assert not taking.done()
            await store.finish_group(run, names[0], usable=False)
            assert [group.id for group in await taking] == names[1:]

        asyncio.run(scenario())

    def test_ready_groups_overtake_open_ones_until_those_would_get_too_old(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            names = [await _add_group(store, run, index=index) for index in range(3)]
            fresh = await _add_group(store, run, index=3, version=1)
            for name in (names[1], fresh):
                await store.finish_group(run, name, usable=True)
            (first,) = await store.take_groups(run, 1, ahead=OvertakeLimits(version=0, max_lag=2, per_step=1))
            assert first.id == names[1]
            # Two groups of version 0 are left. Only this step and the next may still take them, one each.
            taking = asyncio.create_task(
                store.take_groups(run, 1, ahead=OvertakeLimits(version=1, max_lag=2, per_step=1))
            )
            await asyncio.sleep(0)
            assert not taking.done()
            await store.finish_group(run, names[2], usable=True)
            assert [group.id for group in await taking] == [names[2]]

        asyncio.run(scenario())

    def test_taking_waits_for_a_finish_on_another_thread(self, store: Store) -> None:
        run = asyncio.run(_create_run(store))
        name = asyncio.run(_add_group(store, run))

        async def scenario() -> list[Group]:
            taking = asyncio.create_task(store.take_groups(run, 1))
            await asyncio.sleep(0)
            thread = threading.Thread(target=lambda: asyncio.run(store.finish_group(run, name, usable=True)))
            thread.start()
            taken = await taking
            thread.join()
            return taken

        assert [group.id for group in asyncio.run(scenario())] == [name]

    def test_each_group_is_handed_out_once(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            takers = [asyncio.create_task(store.take_groups(run, 2)) for _ in range(3)]
            for index in range(6):
                await store.finish_group(run, await _add_group(store, run, index=index), usable=True)
            taken = [group.index for groups in await asyncio.gather(*takers) for group in groups]
            assert sorted(taken) == list(range(6))

        asyncio.run(scenario())

    def test_groups_of_evaluations_and_other_runs_are_never_taken(self, store: Store) -> None:
        async def scenario() -> None:
            run, other = await _create_run(store), await _create_run(store)
            for group, owner in (
                (await _add_group(store, run, is_eval=True), run),
                (await _add_group(store, other), other),
            ):
                await store.finish_group(owner, group, usable=True)
            await store.close_sampling(run)
            assert await store.take_groups(run, 5) == []

        asyncio.run(scenario())

    def test_closing_wakes_a_taker_with_what_is_ready(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            await _add_group(store, run, index=0)
            ready = await _add_group(store, run, index=1)
            await store.finish_group(run, ready, usable=True)
            taking = asyncio.create_task(store.take_groups(run, 3))
            await asyncio.sleep(0)
            await store.close_sampling(run)
            assert [group.id for group in await taking] == [ready]
            assert await store.take_groups(run, 1) == []

        asyncio.run(scenario())

    def test_a_cancelled_taker_takes_nothing(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            taking = asyncio.create_task(store.take_groups(run, 1))
            await asyncio.sleep(0)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            name = await _add_group(store, run)
            await store.finish_group(run, name, usable=True)
            assert [group.id for group in await store.take_groups(run, 1)] == [name]

        asyncio.run(scenario())

    # --- Steps, versions, resuming ---

    def test_steps_come_back_with_what_they_consumed(self, store: Store) -> None:
        step = _step("", 1, groups=("g-1", "g-2"), records=("r-1",), metrics={"reward/mean": 0.1, "loss/value": -1e-9})

        async def scenario() -> None:
            run = await _create_run(store)
            steps = [attrs.evolve(step, run_id=run), attrs.evolve(step, run_id=run, step=2, version=2)]
            for row in steps:
                await store.add_step(row)
            assert await store.steps(run) == steps
            with pytest.raises(StoreError):
                await store.add_step(steps[0])

        asyncio.run(scenario())

    def test_versions_never_fall(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            assert await store.last_version(run) == -1
            await store.add_version(run, 0, step=0)
            await store.add_version(run, 7, step=1)
            for version in (7, 6):
                with pytest.raises(StoreError):
                    await store.add_version(run, version, step=2)
            assert await store.last_version(run) == 7

        asyncio.run(scenario())

    def test_resuming_voids_later_steps_and_deletes_nothing(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            await store.add_version(run, 0, step=0)
            names = [await _add_group(store, run, index=index) for index in range(8)]
            records = [await _add_record(store, run, name) for name in names]
            for name in names[:6]:
                await store.finish_group(run, name, usable=name != names[1])
            for step, group_of_step in ((1, names[0]), (2, names[2]), (3, names[3])):
                assert [group.id for group in await store.take_groups(run, 1)] == [group_of_step]
                await store.add_step(_step(run, step, groups=(group_of_step,)))
                await store.add_version(run, step, step=step)
            # A group that was taken for a step that was never recorded.
            await store.take_groups(run, 1)
            await store.finish_record(attrs.evolve(records[0], outcome=Outcome.SCORED, reward=0.5))
            await store.close_sampling(run)

            assert await store.void_after(run, 1) == 2
            assert await store.resume_point(run, 1) == ResumePoint(step=1, next_index=1, last_version=3)
            assert [(row.step, row.voided) for row in await store.steps(run)] == [(1, False), (2, True), (3, True)]
            outcomes = [record.outcome for record in await store.records(run)]
            assert outcomes == [Outcome.SCORED] + [Outcome.CANCELLED] * 7

            again = await _add_group(store, run, index=1)
            taking = asyncio.create_task(store.take_groups(run, 1))
            await asyncio.sleep(0)
            assert not taking.done()
            await store.finish_group(run, again, usable=True)
            assert [group.id for group in await taking] == [again]
            await store.add_step(_step(run, 2, groups=(again,), version=4))
            assert [row.version for row in await store.steps(run) if not row.voided] == [1, 4]
            assert await store.void_after(run, 2) == 0
            assert (await store.resume_point(run, 2)).next_index == 2

        asyncio.run(scenario())

    def test_resuming_tells_which_earlier_groups_no_step_consumed(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            names = [await _add_group(store, run, index=index) for index in (0, 1, 2, 3, 1)]
            # Sampled with the weights of step 1, so its failure does not count for a run that resumes from step 1.
            names.append(await _add_group(store, run, index=2, version=1))
            for name in (names[1], names[2], names[4], names[5]):
                await store.finish_group(run, name, usable=False)
            await store.add_step(_step(run, 1, groups=(names[3],)))
            await store.add_step(_step(run, 2, groups=(names[0],)))
            await store.void_after(run, 1)
            point = await store.resume_point(run, 1)
            assert (point.next_index, dict(point.left)) == (4, {0: 0, 1: 2, 2: 1})

        asyncio.run(scenario())

    def test_a_run_without_steps_resumes_from_its_start(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            assert await store.void_after(run, 0) == 0
            assert await store.resume_point(run, 0) == ResumePoint(step=0, next_index=0, last_version=-1)

        asyncio.run(scenario())

    def test_a_late_finish_does_not_revive_what_resuming_put_aside(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            name = await _add_group(store, run)
            record = await _add_record(store, run, name)
            await store.void_after(run, 0)
            assert not await store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0))
            await store.finish_group(run, name, usable=True)
            await store.close_sampling(run)
            assert await store.take_groups(run, 1) == []

        asyncio.run(scenario())

    def test_a_closed_store_says_so(self, store: Store) -> None:
        async def scenario() -> None:
            run = await _create_run(store)
            await store.close()
            await store.close()
            with pytest.raises(StoreError, match="closed"):
                await store.records(run)

        asyncio.run(scenario())


async def _create_run(store: Store, name: str = "") -> str:
    name = name or f"run-{next(_fresh)}"
    await store.create_run(RunRow(id=name, created_at=1.0, status="running", config={}, components={}))
    return name


async def _add_group(
    store: Store, run: str, *, task_id: str = "t", index: int = 0, version: int = 0, is_eval: bool = False
) -> str:
    name = f"group-{next(_fresh)}"
    await store.add_group(run, name, task_id, index=index, size=4, version=version, is_eval=is_eval)
    return name


async def _add_record(
    store: Store, run: str, group: str, *, record_id: str = "", task_id: str = "t", sample_index: int = 0, **fields: Any
) -> Record:
    record = Record(
        id=record_id or f"record-{next(_fresh)}",
        run_id=run,
        task_id=task_id,
        group_id=group,
        sample_index=sample_index,
        **fields,
    )
    await store.add_record(record)
    return record


def _call(record: Record, *, seq: int = 0, **fields: Any) -> Interaction:
    """Return a small interaction of `record`."""
    default = {
        "prompt_ids": (1, 2),
        "output_ids": (3,),
        "logprobs": (-0.5,),
        "versions": ((0, 1),),
        "messages": ({"role": "user", "content": "hi"},),
        "output": {"role": "assistant", "content": "ho"},
    }
    return Interaction(id=f"chatcmpl-{next(_fresh)}", record_id=record.id, seq=seq, **{**default, **fields})


def _session(record: Record, **fields: Any) -> SessionRow:
    """Return a session of `record`."""
    default = {"task_id": "t", "key_hash": b"key", "token_hash": b"token", "seed_key": (0, 2**62), "opened_at": 2.0}
    policy = {"temperature": 0.5, "max_tokens": None}
    ids = {"record_id": record.id, "run_id": record.run_id, "group_id": record.group_id}
    return SessionRow(policy=policy, **{**ids, **default, **fields})


def _step(run: str, step: int, **fields: Any) -> StepRow:
    """Return a step whose published version equals its number."""
    default = {"version": step, "groups": (), "records": (), "metrics": {}}
    return StepRow(run_id=run, step=step, **{**default, **fields})
