"""What clients send must not fill the memory."""

import pytest

from agentrl_core.chat.prompt_cache import IdsCache


@pytest.fixture
def cache():
    return IdsCache(most_bytes=64_000)  # 1000 for one entry


def test_what_was_kept_is_found(cache):
    cache.put("a", (1, 2), key_bytes=1)
    assert cache.get("a") == (1, 2)
    assert cache.get("b") is None


@pytest.mark.parametrize(("ids", "key_bytes"), [(range(30), 0), ((1,), 1000)])
def test_what_is_too_large_is_not_kept(cache, ids, key_bytes):
    cache.put("a", tuple(ids), key_bytes=key_bytes)
    assert cache.get("a") is None


def test_a_full_cache_starts_anew(cache):
    ids = tuple(range(25))  # 900 bytes
    for key in range(71):
        cache.put(key, ids, key_bytes=0)
    assert all(cache.get(key) == ids for key in range(71))
    cache.put(71, ids, key_bytes=0)
    assert cache.get(71) == ids
    assert not any(cache.get(key) for key in range(71))


def test_an_entry_that_two_threads_put_counts_once(cache):
    ids = tuple(range(25))  # 900 bytes
    cache.put("a", ids, key_bytes=0)
    for _ in range(100):
        cache.put("b", ids, key_bytes=0)
    assert cache.get("a") == ids
