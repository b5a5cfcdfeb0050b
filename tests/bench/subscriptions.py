"""Durable subscriptions that a client leaves behind."""

from __future__ import annotations

from amqp_ext.codec import Symbol

from .generator.connection import Connection


def subscribe(server: str, address: str, count: int, prefix: str = "durable") -> None:
    """Make ``count`` durable subscriptions to ``address``, as a client does that comes back for them later."""
    connection = Connection.to(server, "subscriber")
    for handle in range(count):
        connection.attach(
            sender=False,
            address=address,
            handle=handle,
            name=f"{prefix}{handle}",
            expiry=Symbol("never"),
        )
    connection.end_all()
