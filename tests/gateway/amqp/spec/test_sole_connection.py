"""
AMQP Enforcing Connection Uniqueness 1.0: `sole-connection-for-container`, its two policies, and the connections that
they do not concern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from amqp_ext.codec import Symbol, UByte, UInt, UShort
from amqp_ext.frames.performatives import EnforcementPolicy
from gateway.amqp.client import SoleConnections
from gateway.config import Listener, User
from gateway.core.errors import Refused
from tests.gateway.amqp.conftest import Start
from tests.gateway.amqp.spec.conftest import ScriptedPeer
from tests.gateway.permissions.conftest import HASH, PASSWORD
from tests.support.frames import BEGIN, CLOSE, OPEN, Frame, begin_frame, error_of, frame

SOLE = Symbol("sole-connection-for-container")
POLICY = Symbol("sole-connection-enforcement-policy")
DETECTION = Symbol("sole-connection-detection-policy")
FAILED = Symbol("amqp:connection-establishment-failed")
REFUSE, CLOSE_EXISTING = UInt(0), UInt(1)
NOT_SAID = object()
KEEPING_OUT = [
    *((older, newer) for older in (None, NOT_SAID, REFUSE) for newer in (NOT_SAID, REFUSE)),
    (REFUSE, CLOSE_EXISTING),
    (REFUSE, None),
]
DISPLACING = [
    (None, CLOSE_EXISTING),
    (CLOSE_EXISTING, CLOSE_EXISTING),
    (CLOSE_EXISTING, None),
    # The integer may have another width.
    (UByte(1), UByte(1)),
]
"""Policies of an older and a newer connection; the older one's is in force, if it has one."""


class Connecting:
    """Connects peers to a gateway with two listeners, two users, and anonymous ones."""

    def __init__(self, start: Start, stack: ExitStack) -> None:
        users = {name: User(password=HASH) for name in ("ann", "bob")} | {"anonymous": User()}
        listener = Listener(port=0, sasl=("ANONYMOUS", "PLAIN"))
        self._gateway = start(listeners=(listener, listener), users=users)
        self._stack = stack

    def __call__(
        self,
        policy: Any = None,
        *,
        user: str | None = None,
        container: str = "mine",
        listener: int = 0,
    ) -> tuple[ScriptedPeer, Frame]:
        """
        A peer that has sent its open with this policy (None: it does not ask to be alone); and the gateway's open.
        """
        peer = ScriptedPeer.connect(self._gateway.host_and_port(listener))
        assert isinstance(peer, ScriptedPeer)
        self._stack.enter_context(peer)
        if user is None:
            peer.anonymous()
        else:
            peer.plain(user, PASSWORD)
        desired = None if policy is None else SOLE
        properties = None if policy in (None, NOT_SAID) else {POLICY: policy}
        fields = [container, None, UInt(65_536), UShort(255), None, None, None, None, desired, properties]
        peer.send(frame(OPEN, fields))
        return peer, peer.expect(OPEN)


Connect = Callable[..., tuple[ScriptedPeer, Frame]]


@pytest.fixture
def connect(start: Start) -> Iterator[Connect]:
    """Connects peers to one gateway."""
    with ExitStack() as stack:
        yield Connecting(start, stack)


def is_open(peer: ScriptedPeer) -> bool:
    """Whether a session can begin; otherwise the connection was closed."""
    peer.send(begin_frame())
    return any(said.code == BEGIN for said in peer.until(BEGIN, CLOSE))


def was_refused(peer: ScriptedPeer, opened: Frame) -> bool:
    """Whether the open announced the refusal; its close must have the policy's error."""
    closed = peer.skip_to(CLOSE)
    assert error_of(closed)[0] == "amqp:invalid-field"
    assert closed.field(0).value[2][Symbol("invalid-field")] == "container-id"
    return opened.field(9)[FAILED] is True


def was_displaced(peer: ScriptedPeer) -> bool:
    closed = peer.skip_to(CLOSE)
    assert error_of(closed)[0] == "amqp:resource-locked"
    return closed.field(0).value[2][Symbol("sole-connection-enforcement")] is True


@pytest.mark.parametrize("policy", [None, NOT_SAID, REFUSE, CLOSE_EXISTING])
def test_it_is_offered_to_who_asks(connect: Connect, policy: Any) -> None:
    """With the strong detection policy. A container that does not ask may have two connections, as is usual."""
    peer, opened = connect(policy)
    is_asked = policy is not None
    assert (SOLE in opened.field(7)) is is_asked
    assert opened.field(9, {}).get(DETECTION) == (0 if is_asked else None)
    if not is_asked:
        assert is_open(connect()[0])
    assert is_open(peer)


@pytest.mark.parametrize(("older", "newer"), [*KEEPING_OUT, *DISPLACING])
@pytest.mark.parametrize("listener", [0, 1])
def test_the_policies(connect: Connect, older: Any, newer: Any, listener: int) -> None:
    """The newer one is refused, or the older one is closed, even if the newer one does not ask, and on any listener."""
    first, _ = connect(older)
    second, opened = connect(newer, listener=listener)
    if (older, newer) in DISPLACING:
        assert was_displaced(first)
        assert is_open(second)
    else:
        assert was_refused(second, opened)
        assert is_open(first)


def test_none_is_closed_for_one_that_is_refused(connect: Connect) -> None:
    """Two connections of a container stay open when a third one, which asks to be alone, is refused."""
    first, _ = connect()
    second, _ = connect()
    assert was_refused(*connect(REFUSE))
    assert is_open(first)
    assert is_open(second)


@pytest.mark.parametrize("policy", [REFUSE, CLOSE_EXISTING])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"user": "ann"}, {"user": "bob"}),
        ({"user": "ann"}, {"user": None}),
        ({}, {"container": "other"}),
        ({"container": ""}, {"container": ""}),
    ],
    ids=["another user", "anonymous", "another container", "no container"],
)
def test_others_stay(connect: Connect, policy: Any, one: dict[str, Any], other: dict[str, Any]) -> None:
    """
    A container-id belongs to its user: it neither closes nor keeps out connections of another user. An empty one is
    shared by many: the capability is not offered.
    """
    first, opened = connect(policy, **one)
    second, _ = connect(policy, **other)
    assert (SOLE in (opened.field(7) or ())) is (one.get("container") != "")
    assert is_open(first)
    assert is_open(second)


def test_what_the_older_one_had_is_the_newer_one_s(connect: Connect) -> None:
    """Its unsettled messages are available immediately, before its socket is gone."""
    first, _ = connect(CLOSE_EXISTING)
    first.begin()
    first.attach_sender("queue://q")
    first.publish(b"one")
    first.attach_receiver("queue://q", credit=1)
    assert first.receive(accept=False) == b"one"
    second, _ = connect(CLOSE_EXISTING)
    second.begin()
    second.attach_receiver("queue://q", credit=1)
    assert second.receive() == b"one"


@pytest.mark.parametrize("policy", [UInt(2), Symbol("close-existing"), True])
def test_a_policy_that_is_none(connect: Connect, policy: Any) -> None:
    """It is refused: the connection would not be alone as it asked."""
    peer, _ = connect(policy)
    assert error_of(peer.skip_to(CLOSE))[0] == "amqp:invalid-field"


class Counted:
    """A connection that counts how often `is_connected` is read."""

    asked = 0

    @property
    def is_connected(self) -> bool:
        Counted.asked += 1
        return True

    def displace(self, refused: Refused) -> None:
        raise AssertionError("nobody asked for that")


def test_who_does_not_ask_to_be_alone_costs_the_same_beside_thousands_of_its_name() -> None:
    """
    All instances of a program may have one container-id: a join does not look at those that do not ask to be alone.
    """
    connections, Counted.asked = SoleConnections(), 0
    joined = [Counted() for _ in range(3_000)]
    for one in joined:
        connections.join(one, "ann", "mine", None)
    assert Counted.asked == 0
    with pytest.raises(Refused, match="refuse-connection"):
        connections.join(Counted(), "ann", "mine", EnforcementPolicy.REFUSE_CONNECTION)
    assert Counted.asked == 1
    for one in joined:
        connections.leave(one, "ann", "mine")
    connections.join(joined[0], "ann", "mine", EnforcementPolicy.REFUSE_CONNECTION)
    with pytest.raises(Refused, match="refuse-connection"):
        connections.join(joined[1], "ann", "mine", None)
    assert Counted.asked == 2
