"""
The dialects of a gateway. The switches in a listener's settings say which of them it speaks.

This is the one place in the gateway that names the vendors. A listener without a switch speaks AMQP 1.0, and
understands the forms of ``amqp_ext.vendor_forms``.
"""

from __future__ import annotations

from gateway.amqp.dialects.event_hubs import check_position, event_hubs_dialect
from gateway.amqp.dialects.hooks import Dialect, Spoken
from gateway.amqp.dialects.rabbitmq import rabbitmq_dialect
from gateway.config import Listener
from gateway.users import Users


class Dialects:
    """
    All dialects of a gateway, each with what its clients have declared since the start.

    Args:
        users: The directory, which knows keys and identity providers.
    """

    def __init__(self, users: Users) -> None:
        self._rabbitmq = rabbitmq_dialect(users)
        self._event_hubs = event_hubs_dialect(users)

    def spoken_by(self, listener: Listener) -> Spoken:
        """What a listener speaks."""
        dialects: list[Dialect] = []
        if listener.rabbitmq_mode:
            dialects.append(self._rabbitmq)
        if listener.event_hubs_mode:
            dialects.append(self._event_hubs)
        return Spoken(dialects, check_position)
