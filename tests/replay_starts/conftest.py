"""What these tests share with those of the wire: gateways that end with their test, and clients of theirs."""

from tests.gateway.amqp.conftest import (  # noqa: F401
    _ending,
    _quiet,
    client,
    clock,
    connect,
    gateway,
    start,
)
