"""How long a message lives: the header's ttl (AMQP 1.0 section 3.2.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from amqp_ext.message.header_field import header_field

ttl_of: Final[Callable[[bytes], int | None]] = header_field(lambda header: header.ttl_ms, None)
"""The time to live of a message in ms; None when it lives for ever, or its header cannot be read."""
