"""Where the admin key comes from, and that nobody else can come by it."""

import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentrl_core.errors import ConfigError, RunError
from agentrl_core.gateway.online.admin import exposed, is_loopback, key_from_environment, make_key, read_key, shared_key


def test_a_made_key_can_be_read_by_its_user_only(tmp_path):
    path = tmp_path / "admin_key"
    path.write_text("an older one")
    path.chmod(0o644)
    key = make_key(path)
    assert path.read_text() == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(key) >= 40
    assert make_key(path) != key


@pytest.mark.parametrize("make", [make_key, shared_key])
def test_a_folder_that_takes_no_key_is_named(tmp_path, make):
    with pytest.raises(RunError, match="nowhere"):
        make(tmp_path / "nowhere" / "admin_key")


def test_servers_that_start_at_once_share_one_key(tmp_path):
    path = tmp_path / "admin_key"
    with ThreadPoolExecutor(8) as threads:
        keys = {each.result() for each in [threads.submit(shared_key, path) for _ in range(32)]}
    assert keys == {path.read_text()}
    assert [each.name for each in tmp_path.iterdir()] == ["admin_key"]


def test_a_key_that_others_could_know_is_not_read(tmp_path):
    path = tmp_path / "admin_key"
    assert read_key(path) is None
    key = make_key(path)
    assert read_key(path) == key
    (tmp_path / "link").symlink_to(path)
    assert read_key(tmp_path / "link") is None
    path.chmod(0o640)
    assert read_key(path) is None
    path.chmod(0o600)
    path.write_text("short")
    assert read_key(path) is None


def test_a_chosen_key_is_not_shown_when_it_is_too_short(monkeypatch):
    monkeypatch.setenv("MY_KEY", "hunter2")
    with pytest.raises(ConfigError, match="MY_KEY holds an admin key of 7 characters") as caught:
        key_from_environment("MY_KEY")
    assert "hunter2" not in str(caught.value)
    monkeypatch.setenv("MY_KEY", "x" * 16)
    assert key_from_environment("MY_KEY") == "x" * 16
    monkeypatch.delenv("MY_KEY")
    assert key_from_environment("MY_KEY") is None


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("10.0.0.7", False), ("trainer.example", False)],
)  # fmt: skip
def test_only_loopback_hosts_need_no_chosen_key(host, own, monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    assert is_loopback(host) == own
    assert (exposed(host, "MY_KEY") is None) == own
    monkeypatch.setenv("MY_KEY", "x" * 16)
    assert exposed(host, "MY_KEY") is None


def test_a_gateway_that_others_can_reach_does_not_start_without_a_chosen_key(make_gateway, monkeypatch):
    monkeypatch.delenv("AGENTRL_ADMIN_KEY", raising=False)
    with pytest.raises(RunError, match=r"gateway.host: 0\.0\.0\.0 can be reached.*AGENTRL_ADMIN_KEY.*127\.0\.0\.1"):
        make_gateway(host="0.0.0.0")
