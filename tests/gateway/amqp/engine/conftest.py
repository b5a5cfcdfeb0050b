"""What the tests in raw frames share: connections of the scripted peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.peer import Peer
from tests.support.running import RunningGateway

Opened = Callable[[], Peer]


@pytest.fixture
def opened(gateway: RunningGateway) -> Iterator[Opened]:
    """Opens connections, all of one container, each with a session."""
    with ExitStack() as peers:
        yield lambda: peers.enter_context(Peer.opened(gateway.host_and_port()))
