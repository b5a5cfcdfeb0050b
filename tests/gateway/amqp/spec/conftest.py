"""What the tests by section have in common: connections of the scripted peer, with transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from amqp_ext.codec import Array, Described, Symbol, UInt, ULong, encode
from tests.support.frames import (
    ACCEPTED,
    ATTACH,
    DETACH,
    DISPOSITION,
    FLOW,
    TRANSFER,
    Frame,
    flow_frame,
    frame,
)
from tests.support.messages import data
from tests.support.peer import Peer
from tests.support.running import RunningGateway

COORDINATOR, DECLARE, DISCHARGE, DECLARED, TRANSACTIONAL = range(0x30, 0x35)
REJECTED, RELEASED, MODIFIED = 0x25, 0x26, 0x27


class ScriptedPeer(Peer):
    """A peer with handles of its own choice, and transactions."""

    def attach(
        self,
        handle: int,
        *,
        receiver: bool = False,
        source: Any = None,
        target: Any = None,
        name: str | None = None,
        channel: int = 0,
        properties: dict[Any, Any] | None = None,
    ) -> Frame:
        """
        Attach a link; the gateway's answer.

        Args:
            source: Fields of the source. ``target`` has the target's, or is described.
        """
        fields = [
            name or f"link-{handle}",
            UInt(handle),
            receiver,
            None,
            None,
            Described(ULong(0x28), source if source is not None else []),
            target if isinstance(target, Described) else Described(ULong(0x29), target or []),
            None,
            None,
            None if receiver else UInt(0),
            *([None] * 3),
            properties,
        ]
        self.send(frame(ATTACH, fields, channel=channel))
        return self.skip_to(ATTACH)

    def attach_coordinator(self, handle: int, *outcomes: str, name: str | None = None) -> Frame:
        """Attach to the coordinator, with a source that has these outcomes."""
        source = [*[None] * 9, _symbols(outcomes)] if outcomes else []
        answer = self.attach(handle, source=source, target=Described(ULong(COORDINATOR), []), name=name)
        self.skip_to(FLOW)
        return answer

    def control(self, handle: int, number: int, code: int, fields: list[Any]) -> None:
        """Send a message to the coordinator."""
        payload = b"\x00\x53\x77" + encode(Described(ULong(code), fields))
        tag = number.to_bytes(4, "big")
        self.send(frame(TRANSFER, [UInt(handle), UInt(number), tag, UInt(0), False], payload))

    def declare(self, handle: int, number: int) -> bytes:
        """Declare a transaction; its id."""
        self.control(handle, number, DECLARE, [])
        state = self.skip_to(DISPOSITION).field(4)
        assert state.descriptor == DECLARED, state
        return bytes(state.value[0])

    def discharge(self, handle: int, number: int, txn_id: bytes, *, fail: bool = False) -> Any:
        """Discharge a transaction: ``accepted``, or the condition of the rejection."""
        self.control(handle, number, DISCHARGE, [txn_id, fail])
        return self.told()

    def told(self) -> Any:
        """The outcome of the next message that the gateway settles: its code, or the condition of its error."""
        while (received := self.skip_to(DISPOSITION)).field(0) is not True:
            pass
        return outcome_of(received.field(4))

    def transfer(
        self, handle: int, number: int, payload: bytes, *, state: Any = None, settled: bool = False
    ) -> None:
        """Send a message whose tag is its number."""
        tag = number.to_bytes(4, "big")
        fields = [UInt(handle), UInt(number), tag, UInt(0), settled, False, None, state]
        self.send(frame(TRANSFER, fields, payload))

    def put(self, handle: int, number: int, body: bytes) -> None:
        """Send a message, which must be accepted."""
        self.transfer(handle, number, data(body))
        assert self.told() == ACCEPTED

    def first(self, handle: int, *, source: Any, name: str | None = None) -> Frame:
        """Attach a receiver with a credit of one; the transfer of its first message."""
        self.attach(handle, receiver=True, source=source, name=name)
        self.send(flow_frame(handle, 0, 1))
        return self.skip_to(TRANSFER)

    def until(self, *codes: int) -> list[Frame]:
        """All frames, in order, up to the first one of these kinds."""
        came, self._kept = self._kept, []
        while not any(frame.code in codes for frame in came):
            received = self.frame()
            if received is not None:
                came.append(received)
        return came

    def disposition(self, delivery: int, state: Any, *, settled: bool = False) -> None:
        """Send a receiver's disposition."""
        self.send(frame(DISPOSITION, [True, UInt(delivery), None, settled, state]))

    def detach(self, handle: int, *, closed: bool = False) -> Frame:
        """Detach a link; the gateway's answer."""
        self.send(frame(DETACH, [UInt(handle), closed]))
        return self.skip_to(DETACH)


def _symbols(names: tuple[str, ...]) -> Any:
    return Array(map(Symbol, names))


def in_transaction(txn_id: bytes, outcome: int | None = None) -> Described:
    """A transactional-state."""
    fields: list[Any] = [txn_id] if outcome is None else [txn_id, Described(ULong(outcome), [])]
    return Described(ULong(TRANSACTIONAL), fields)


def outcome_of(state: Any) -> Any:
    """The code of an outcome, or the condition of its error."""
    if state.descriptor == REJECTED and state.value and state.value[0] is not None:
        return str(state.value[0].value[0])
    return int(state.descriptor)


Opened = Callable[..., ScriptedPeer]
OpenedAt = Callable[..., ScriptedPeer]


@pytest.fixture
def opened_at() -> Iterator[OpenedAt]:
    """Opens connections to a gateway, each with a session: `opened_at(gateway)`."""
    with ExitStack() as peers:

        def opened(gateway: RunningGateway, **fields: Any) -> ScriptedPeer:
            peer = ScriptedPeer.opened(gateway.host_and_port(), **fields)
            assert isinstance(peer, ScriptedPeer)
            return peers.enter_context(peer)

        yield opened


@pytest.fixture
def opened(gateway: RunningGateway, opened_at: OpenedAt) -> Opened:
    """Opens connections to `gateway`, each with a session."""
    return lambda **fields: opened_at(gateway, **fields)
