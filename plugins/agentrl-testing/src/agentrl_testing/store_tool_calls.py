"""Conformance tests of stores, seventh part: tool calls of records, and marks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.api.audit import digested, tool_call_digest
from agentrl_core.errors import StoreError, UnstorableError
from agentrl_core.types import Outcome, ToolCall
from agentrl_testing.base import ConformanceSuite
from agentrl_testing.store_values import (
    add_group,
    add_record,
    call,
    create_run,
    finals,
    shared_store,
    tool_call,
    tool_calls,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.api.stores import RunReader, Store


class StoreToolCallsSuite(ConformanceSuite):
    """`add_tool_call`, `Episode.tool_calls` and `Record.marks`."""

    @shared_store
    @given(final=finals, calls=st.lists(tool_calls(), max_size=4))
    def test_tool_calls_and_marks_come_back_as_they_were(
        self, store: Store, final: dict[str, Any], calls: list[ToolCall]
    ) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            record = await add_record(store, run, await add_group(store, run))
            given = [digested(attrs.evolve(call, record_id=record.id, seq=seq)) for seq, call in enumerate(calls)]
            # They end in another order than that of their start.
            for item in reversed(given):
                await store.add_tool_call(run, item)
            assert await store.finish_record(attrs.evolve(record, **final))
            episode = await store.episode(record.id)
            assert episode is not None
            assert episode.tool_calls == tuple(given)
            assert [tool_call_digest(item) for item in episode.tool_calls] == [item.digest for item in given]
            assert episode.record.marks == final["marks"]
            assert [item.marks for item in await store.records(run)] == [final["marks"]]

        asyncio.run(scenario())

    def test_a_reader_finds_the_tool_calls_of_each_record(self, store: Store, read: Callable[[], RunReader]) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            group = await add_group(store, run)
            records = [await add_record(store, run, group, sample_index=slot) for slot in range(3)]
            given = [tool_call(record, seq=seq) for seq in range(2) for record in records[:2]]
            await store.add_interaction(run, call(records[0]))
            for item in given:
                await store.add_tool_call(run, item)
            reader = read()
            try:
                episodes = [await reader.episode(record.id) for record in records]
            finally:
                await reader.close()
            found = [episode.tool_calls for episode in episodes if episode is not None]
            assert found == [tuple(given[0::2]), tuple(given[1::2]), ()]

        asyncio.run(scenario())

    @pytest.mark.parametrize("size", [2**20, 10 * 2**20])
    def test_long_results_come_back(self, store: Store, size: int) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            record = await add_record(store, run, await add_group(store, run))
            raw = ({"type": "text", "text": "è\x00\U0001f600" + "x" * size},)
            image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * size}}
            given = [tool_call(record, seq=0, raw=raw, shown=(image,)), tool_call(record, seq=1, shown=raw)]
            for item in given:
                await store.add_tool_call(run, item)
            # The arrays of an LLM call are not mixed up with them.
            interaction = call(record)
            await store.add_interaction(run, interaction)
            episode = await store.episode(record.id)
            assert episode is not None
            assert episode.tool_calls == tuple(given)
            assert episode.interactions == (interaction,)

        asyncio.run(scenario())

    def test_text_that_utf_8_cannot_encode_keeps_its_digest(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            record = await add_record(store, run, await add_group(store, run))
            odd = "\ud800"
            shown = ({"type": "text", "text": odd},)
            names: dict[str, Any] = {"call_id": odd, "name": odd, "tool": odd, "error": odd, "middleware": (odd,)}
            given = digested(tool_call(record, arguments={odd: odd, "nan": float("nan")}, shown=shown, **names))
            await store.add_tool_call(run, given)
            episode = await store.episode(record.id)
            assert episode is not None
            (found,) = episode.tool_calls
            assert tool_call_digest(found) == given.digest
            assert (found.shown, found.arguments[odd]) == (shown, odd)  # type: ignore[index]
            assert found.name.encode() == b"\\ud800"

        asyncio.run(scenario())

    def test_what_cannot_be_stored_is_named_and_leaves_the_store_usable(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            record = await add_record(store, run, await add_group(store, run))
            odd = tool_call(record, arguments={"when": object()})
            with pytest.raises(UnstorableError, match=odd.id):
                await store.add_tool_call(run, odd)
            stranger = attrs.evolve(tool_call(record), record_id="nothing")
            with pytest.raises(StoreError):
                await store.add_tool_call(run, stranger)
            kept = tool_call(record)
            await store.add_tool_call(run, kept)
            with pytest.raises(StoreError):
                await store.add_tool_call(run, tool_call(record))  # another one with its `seq`
            episode = await store.episode(record.id)
            assert episode is not None
            assert episode.tool_calls == (kept,)

        asyncio.run(scenario())

    def test_a_tool_call_may_end_after_its_record(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            record = await add_record(store, run, await add_group(store, run))
            await store.finish_record(attrs.evolve(record, outcome=Outcome.CANCELLED))
            late = tool_call(record)
            await store.add_tool_call(run, late)
            episode = await store.episode(record.id)
            assert episode is not None
            assert episode.tool_calls == (late,)

        asyncio.run(scenario())
