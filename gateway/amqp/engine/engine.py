"""
Proton's engine for one connection: its three parts are bound together, and freed together.
"""

from __future__ import annotations

from proton import Collector, Connection, Transport

from gateway.config import Limits


class Engine:
    """
    The engine of one connection, which takes bytes from behind SASL.

    Args:
        limits: What it tells the peer that it takes.
    """

    def __init__(self, limits: Limits) -> None:
        transport = self.transport = Transport(Transport.SERVER)
        transport.max_frame_size = limits.max_frame_bytes
        transport.channel_max = limits.max_channels - 1
        # What we ask for is half of what we tolerate, so that a heartbeat in time is never missed (2.4.5).
        transport.idle_timeout = limits.idle_timeout_ms / 1000
        self.connection = Connection()
        self.collector = Collector()
        self.connection.collect(self.collector)
        transport.bind(self.connection)

    def free(self) -> None:
        """Nothing may use an object of it from here on."""
        self.transport.unbind()
        self.connection.free()
        self.collector.release()
