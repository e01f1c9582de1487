"""A server, a sampler and a trainer as processes whose network or store goes away for a while: they wait and go on."""

import contextlib
import socket
import sqlite3
import threading

import pytest
from tests.matrix.proxy import CuttingProxy
from tests.run.roles.test_processes import SHORT_LEASE, check_whole

pytestmark = pytest.mark.slow

STEPS = 10
AWAY_S = 5.0
"""For how long the store is away: longer than every wait between two of its calls, shorter than a lease."""


@pytest.fixture
def proxied():
    """A port for a server, and a proxy before it."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    proxy = CuttingProxy("127.0.0.1", port)
    yield port, proxy
    proxy.close()


def test_a_network_that_is_cut_between_roles_and_comes_back_loses_nothing(written, role, tmp_path, proxied):
    port, proxy = proxied
    written(trainer={"steps": STEPS, "save_steps": 2})
    address = f"gateway.public_url=http://127.0.0.1:{proxy.port}"
    serve = role("serve", SHORT_LEASE, f"gateway.port={port}", address)
    sample, train = role("sample", SHORT_LEASE), role("train", SHORT_LEASE)
    train.until_step(2)
    proxy.leave()
    assert proxy.missed.wait(60), "the sampler has asked in vain"
    proxy.come_back()
    assert train.ends() == 0, train.told
    assert (serve.ends(), sample.ends()) == (0, 0), serve.told + sample.told
    members = check_whole(tmp_path, steps=STEPS)
    assert {member.state for member in members} == {"left"}


def test_a_store_that_is_away_between_steps_is_waited_for_by_every_role(written, role, tmp_path):
    written(trainer={"steps": STEPS, "save_steps": 2})
    serve, sample, train = (role(name, SHORT_LEASE) for name in ("serve", "sample", "train"))
    train.until_step(2)
    database = tmp_path / "runs" / "r" / "agentrl.db"
    with contextlib.closing(sqlite3.connect(database, isolation_level=None, timeout=60)) as other:
        other.execute("BEGIN IMMEDIATE")
        threading.Event().wait(AWAY_S)
        other.execute("ROLLBACK")
    assert train.ends() == 0, train.told
    assert (serve.ends(), sample.ends()) == (0, 0), serve.told + sample.told
    members = check_whole(tmp_path, steps=STEPS)
    assert {member.state for member in members} == {"left"}


def test_a_second_trainer_is_refused_with_the_first_one_s_name(written, role, tmp_path):
    written(trainer={"steps": 6, "save_steps": 2})
    serve, sample, train = (role(name, SHORT_LEASE) for name in ("serve", "sample", "train"))
    train.until_step(1)
    second = role("train", SHORT_LEASE)
    assert second.ends() == 2, second.told
    assert f"is being trained by process {train.pid}" in second.told
    assert "Traceback" not in second.told
    assert (train.ends(), serve.ends(), sample.ends()) == (0, 0, 0), train.told
    check_whole(tmp_path, steps=6)
