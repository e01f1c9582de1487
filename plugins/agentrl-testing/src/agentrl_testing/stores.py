"""Conformance suite of stores: no data lost or changed, groups claimed, taken and trained once, runs resumable."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from agentrl_testing.store_claims import StoreClaimsSuite
from agentrl_testing.store_facts import StoreFactsSuite
from agentrl_testing.store_fencing import StoreFencingSuite
from agentrl_testing.store_groups import StoreGroupsSuite
from agentrl_testing.store_machine import StoreMachine
from agentrl_testing.store_members import StoreMembersSuite
from agentrl_testing.store_requests import StoreRequestsSuite
from agentrl_testing.store_resuming import StoreResumingSuite
from agentrl_testing.store_seals import StoreSealsSuite
from agentrl_testing.store_tool_calls import StoreToolCallsSuite

if TYPE_CHECKING:
    from agentrl_core.api.stores import Store


class StoreSuite(
    StoreFactsSuite,
    StoreMembersSuite,
    StoreClaimsSuite,
    StoreGroupsSuite,
    StoreResumingSuite,
    StoreFencingSuite,
    StoreRequestsSuite,
    StoreSealsSuite,
    StoreToolCallsSuite,
):
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

    machine_examples = 40
    """Histories that the state machine makes up."""

    @pytest.fixture(autouse=True)
    def _close(self, store: Store) -> Any:
        yield
        asyncio.run(store.close())

    def test_members_claims_and_resuming_follow_a_model(self, store: Store) -> None:
        machine = type("Machine", (StoreMachine,), {"store": store})
        run_state_machine_as_test(
            machine, settings=settings(max_examples=self.machine_examples, stateful_step_count=40, deadline=None)
        )
