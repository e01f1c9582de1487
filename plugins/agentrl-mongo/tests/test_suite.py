"""The store passes the conformance suite with both drivers."""

import pytest

from agentrl_mongo.store import MongoStore
from agentrl_testing.stores import StoreSuite


class Suite(StoreSuite):
    driver = "motor"
    machine_examples = 6

    @pytest.fixture
    def open_store(self, url, database):
        return lambda kind=MongoStore: kind(url=url, database=database, driver=self.driver)

    @pytest.fixture
    def store(self, open_store):
        return open_store()

    @pytest.fixture
    def reopen(self, store, open_store):
        return open_store

    @pytest.fixture
    def read(self, store, open_store):
        return lambda: open_store(MongoStore.read)


class TestWithMotor(Suite):
    pass


class TestWithPyMongo(Suite):
    driver = "pymongo"


del Suite, StoreSuite
