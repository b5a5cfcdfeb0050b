"""What these tests share with those of the wire: gateways that end with their test, clients, and a clock."""

from tests.gateway.amqp.conftest import clock, connect, given, start
from tests.gateway.conftest import _ending, _quiet

__all__ = ["_ending", "_quiet", "clock", "connect", "given", "start"]
