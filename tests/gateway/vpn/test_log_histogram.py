"""When messages of the log came, while log and archive change under every read; times are ids there."""

from __future__ import annotations

import asyncio

import pytest

from gateway.vpn.log import Histogram, LogHistogram
from tests.gateway.vpn.changing_log import COUNT, World, state_of


def histogram_of(world: World, from_ms: int | None, until_ms: int | None, most: int) -> Histogram:
    async def run() -> Histogram:
        state, _ = state_of(world)
        return await LogHistogram(state).between(from_ms, until_ms, most)

    return asyncio.run(run())


@pytest.mark.parametrize("seed", range(100))
def test_each_message_is_in_its_bucket(seed: int) -> None:
    """Wherever it has gone at the moment of the read: it came in its bucket's time, and has an id of the bucket's."""
    world = World(seed)
    from_ms, until_ms = sorted(world.dice.sample(range(COUNT + 9), 2))
    most = world.dice.choice([1, 2, 7, 100])
    found = histogram_of(world, from_ms, until_ms, most)
    assert (found.from_ms, found.until_ms) == (from_ms, until_ms)
    assert len(found.buckets) == min(most, until_ms - from_ms)
    ends = [bucket.time_ms for bucket in found.buckets[1:]] + [until_ms]
    for bucket, end_ms in zip(found.buckets, ends, strict=True):
        assert from_ms <= bucket.time_ms < end_ms
        came = {row[0] for row in world.rows.values() if bucket.time_ms <= row[1] < end_ms}
        ids = range(bucket.first_id, bucket.first_id + bucket.ids)
        assert came == world.rows.keys() & set(ids)
    assert found.last_id - found.first_id + 1 == sum(bucket.ids for bucket in found.buckets)


def test_without_times_it_is_the_whole_log() -> None:
    """From the oldest message to the newest, which is in the last bucket."""
    world = World(0)
    world.change = lambda: None  # type: ignore[method-assign]
    found = histogram_of(world, None, None, 10)
    assert (found.first_id, found.last_id) == (min(world.rows), max(world.rows))
    assert found.oldest == (min(world.rows), min(world.rows))
    assert found.newest == (max(world.rows), max(world.rows))
    assert found.archived is None


def test_an_end_that_is_not_said_lies_behind_the_other() -> None:
    """A beginning after the newest message, and an end before the oldest one: a bucket without a message."""
    world = World(0)
    world.change = lambda: None  # type: ignore[method-assign]
    after, before = histogram_of(world, COUNT + 5, None, 10), histogram_of(world, None, 1, 10)
    assert [(b.time_ms, b.ids) for b in after.buckets] == [(COUNT + 5, 0)]
    assert [(b.time_ms, b.ids) for b in before.buckets] == [(0, 0)]
