"""The message caches of several Message VPNs, and the bytes that they have together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.message_cache import ROW_OVERHEAD_BYTES, CacheBudget, MessageCache
from gateway.core.model import ID, Row

ROW_BYTES = 1_000
"""What a row of the tests counts, its content and the rest."""


def rows_of(cache: MessageCache, count: int) -> list[Row]:
    """The next messages of a Message VPN."""
    content = b"x" * (ROW_BYTES - ROW_OVERHEAD_BYTES)
    return [(cache.next_id + number, 1, "a", 0, None, content) for number in range(count)]


def publish(cache: MessageCache, count: int) -> None:
    rows = rows_of(cache, count)
    cache.extend(rows, sum(len(row[5]) for row in rows))


def held(cache: MessageCache) -> list[int]:
    """Ids that it has, asked for as a reader does."""
    return [row[ID] for row in cache.since(cache.first_id, 1_000_000)]


def test_a_quiet_message_vpn_keeps_what_a_busy_one_cannot_have() -> None:
    """What goes is the busy one's own, as long as that is more than the quiet one has."""
    budget = CacheBudget(80 * ROW_BYTES)
    quiet, busy = MessageCache(budget, 1), MessageCache(budget, 1)
    publish(quiet, 20)
    for _ in range(100):
        publish(busy, 10)
    assert held(quiet) == list(range(1, 21))
    assert 50 * ROW_BYTES <= busy.size_bytes <= 60 * ROW_BYTES
    assert held(busy)[-1] == 1_000


def test_what_a_message_vpn_no_longer_uses_goes_to_those_who_do() -> None:
    """A cache that has more than another gives way, in equal parts in the end."""
    budget = CacheBudget(80 * ROW_BYTES)
    early, late = MessageCache(budget, 1), MessageCache(budget, 1)
    for _ in range(8):
        publish(early, 10)
    for _ in range(100):
        publish(late, 10)
    assert early.size_bytes <= 40 * ROW_BYTES
    assert late.size_bytes >= 30 * ROW_BYTES
    assert held(early)[-1] == 80


def test_a_cache_that_is_closed_or_emptied_leaves_its_room() -> None:
    """Nothing is counted of a Message VPN that is gone, and nothing of ids that came to nothing."""
    budget = CacheBudget(80 * ROW_BYTES)
    gone, emptied, stays = (MessageCache(budget, 1) for _ in range(3))
    publish(gone, 30)
    publish(emptied, 30)
    gone.close()
    emptied.skip(100)
    assert budget.used_bytes == 0
    publish(stays, 80)
    assert len(stays) == 80
    assert emptied.first_id == emptied.next_id == 100


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30)), max_size=60),
)
def test_together_they_hold_no_more_than_the_limit(limit: int, publications: list[tuple[int, int]]) -> None:
    """Whoever publishes how much; each holds a run that ends with its last id, and is counted for what it holds."""
    budget = CacheBudget(limit * ROW_BYTES)
    caches = [MessageCache(budget, 1) for _ in range(3)]
    for who, count in publications:
        publish(caches[who], count)
        assert budget.used_bytes == sum(cache.size_bytes for cache in caches) <= limit * ROW_BYTES
        for cache in caches:
            assert held(cache) == list(range(cache.first_id, cache.next_id))
            assert cache.size_bytes == len(cache) * ROW_BYTES
