"""RabbitMQ's addresses of exchanges."""

from __future__ import annotations

import pytest

from amqp_ext.addresses.forms import AddressError
from amqp_ext.rabbitmq.forms import topic_of_address


@pytest.mark.parametrize(
    ("address", "topic"),
    [
        ("/exchanges/orders/eu.new", "orders/eu/new"),
        ("/exchanges/orders", "orders"),
        ("/exchanges/orders/", "orders"),
        ("/exchanges/a%2Fb/c%2Fd", "a%2Fb/c%2Fd"),
        ("/exchanges/amq.topic/x", "amq.topic/x"),
        ("/queues/orders", None),
        ("exchanges/orders", None),
    ],
)
def test_an_address_of_an_exchange_is_a_topic(address: str, topic: str | None) -> None:
    """The parts of the address are percent-decoded, and are levels of the topic."""
    assert topic_of_address(address) == topic


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/exchanges/a/b/c", "too many parts"),
        ("/exchanges/", "default exchange"),
        ("/exchanges//key", "default exchange"),
        ("/exchanges/%ff/key", "not UTF-8"),
    ],
)
def test_a_bad_address_of_an_exchange_is_refused_in_words(address: str, words: str) -> None:
    """What begins like an exchange's address and is none says why."""
    with pytest.raises(AddressError, match=words):
        topic_of_address(address)
