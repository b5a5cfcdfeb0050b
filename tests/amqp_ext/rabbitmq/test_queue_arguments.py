"""The arguments of a queue's declaration."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext.codec import Int, UInt
from amqp_ext.rabbitmq.management import ArgumentError, QueueArguments, read_queue_arguments

QUEUE = {
    "x-queue-type": "quorum",
    "x-message-ttl": UInt(5_000),
    "x-max-length": 10,
    "x-max-length-bytes": Int(1_000),
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "dead",
    "x-delivery-limit": 3,
    "x-single-active-consumer": True,
    "x-max-priority": 9,
}


def test_arguments_with_an_equivalent_are_read() -> None:
    """Each argument that means something here is read, of whatever integer type it comes."""
    assert read_queue_arguments(QUEUE) == QueueArguments(
        max_ttl_ms=5_000,
        quota_messages=10,
        quota_bytes=1_000,
        dead_message_queue="dead",
        max_redelivery=3,
        single_active_consumer=True,
        priorities=True,
    )


def test_what_is_read_is_said_again_as_rabbitmq_says_it() -> None:
    """The arguments of a queue that is described declare the same queue."""
    read = read_queue_arguments(QUEUE)
    assert read_queue_arguments(read.to_map()) == read


def test_arguments_of_a_cluster_mean_nothing() -> None:
    """What clients send for replicas, segments and leaders changes nothing on one node with one log."""
    cluster = {"x-queue-leader-locator": "balanced", "x-quorum-initial-group-size": 3, "x-queue-version": 2}
    assert read_queue_arguments(cluster) == QueueArguments()
    for name in ("x-initial-cluster-size", "x-stream-initial-cluster-size"):  # the latter is the Go client's
        stream = {"x-queue-type": "stream", name: 3}
        assert read_queue_arguments(stream) == QueueArguments(is_stream=True)


def test_a_stream_keeps_to_the_bounds_of_the_log() -> None:
    """The bounds that clients give to a stream are taken and leave it as it is."""
    bounds = {"x-queue-type": "stream", "x-max-age": "1h", "x-max-length-bytes": 10_000}
    assert read_queue_arguments(bounds) == QueueArguments(is_stream=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x-queue-type": "jms"}, "quorum, classic or stream, not 'jms'"),
        ({"x-expires": 1_000}, "'x-expires' has no meaning"),
        ({"x-overflow": "drop-head"}, "'drop-head' is not there"),
        ({"x-message-ttl": "soon"}, "x-message-ttl is a whole number of at least 1, not 'soon'"),
        ({"x-message-ttl": True}, "not True"),
        ({"x-max-length": 0}, "at least 1, not 0"),
        ({"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "q"}, "not the exchange 'dlx'"),
        ({"x-dead-letter-exchange": ""}, "back to their queue"),
        ({"x-dead-letter-routing-key": 5}, "the name of a queue, not 5"),
        ({"x-single-active-consumer": 1}, "is a boolean, not 1"),
        ({"x-queue-type": "stream", "x-message-ttl": 5}, "x-message-ttl is of queues"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(arguments: dict[str, Any], words: str) -> None:
    """An argument that would change what happens to messages, and would not here, is an error."""
    with pytest.raises(ArgumentError) as refused:
        read_queue_arguments(arguments)
    assert words in str(refused.value)
