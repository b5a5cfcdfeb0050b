"""Messages larger than an endpoint takes: which of those that come together are refused, and what is kept of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.broker import Broker
from gateway.core.effects import Publication
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings
from gateway.core.log import LogPolicy
from gateway.core.model import CONTENT, LogState, stored_bytes
from gateway.core.publications import TooLarge


def broker_with(limit_bytes: int, quota_messages: int) -> Broker:
    """A limited endpoint and one without limits, both of the topic `t`; the log takes everything."""
    broker = Broker(LogState(1, 1, 1, 0, 0), LogPolicy(), window=1_000, create_queues=True)
    settings = EndpointSettings(max_message_bytes=limit_bytes, quota_messages=quota_messages)
    broker.create("limited", EndpointKind.QUEUE, settings, ["t"])
    broker.create("free", EndpointKind.QUEUE, EndpointSettings(), ["t"])
    return broker


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=30),
    limit_bytes=st.integers(0, 20),
    quota_messages=st.integers(0, 10),
)
def test_only_messages_too_large_or_beyond_the_quota_are_refused(
    sizes: list[int], limit_bytes: int, quota_messages: int
) -> None:
    """Of messages that come together those that fit are taken, in order, by all endpoints and the log or by none."""
    broker = broker_with(limit_bytes, quota_messages)
    contents = [bytes([i]) * size for i, size in enumerate(sizes)]
    expected = [c for c in contents if not limit_bytes or len(c) <= limit_bytes]
    if quota_messages:
        expected = expected[:quota_messages]
    taken: list[bytes] = []
    publications: list[Publication] = []
    left = contents
    while left:
        publication, count, refused = broker.publications.publish(1, "t", left, [0] * len(left), None)
        assert (publication is None) == (count == 0)
        if publication is not None:
            assert [row[CONTENT] for row in publication.rows] == left[:count]
            assert publication.logged
            taken += left[:count]
            publications.append(publication)
        if isinstance(refused, TooLarge):
            assert all(len(content) > limit_bytes for content in left[count : count + refused.count])
            left = left[count + refused.count :]
            continue
        assert count == len(left) or quota_messages, "nothing else can be in the way"
        break
    assert taken == expected
    for publication in publications:
        broker.publications.committed(publication)
    assert [broker.endpoints[name].depth for name in ("limited", "free")] == [len(taken)] * 2
    assert broker.log.size_bytes == (stored_bytes("t", list(map(len, taken))) if taken else 0)
    assert broker.log.unused_id == len(taken) + 1, "a refused message has no id"


@given(sizes=st.lists(st.integers(1, 5), min_size=1))
def test_a_limit_that_nothing_reaches_changes_nothing(sizes: list[int]) -> None:
    """Messages of at most the limit are taken together, as without one."""
    broker = broker_with(5, 0)
    publication, count, refused = broker.publications.publish(
        1, "t", [b"x" * size for size in sizes], [0] * len(sizes), None
    )
    assert publication is not None
    assert (count, refused) == (len(sizes), None)
