"""2.6.1, naming a link: what becomes of the older link when its name is attached again, by `link_stealing`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amqp_ext.codec import UInt
from gateway.config import Listener
from tests.gateway.amqp.conftest import Start
from tests.gateway.amqp.spec.conftest import OpenedAt, ScriptedPeer
from tests.support.frames import (
    BEGIN,
    DETACH,
    DISPOSITION,
    FLOW,
    TRANSFER,
    WINDOW,
    begin_frame,
    error_of,
    flow_frame,
    frame,
)
from tests.support.messages import body_of, data

STOLEN = "amqp:link:stolen"
Begin = Callable[..., ScriptedPeer]


@pytest.fixture
def at(start: Start, opened_at: OpenedAt) -> Callable[[str], Begin]:
    """Opens connections to a gateway with this `link_stealing`."""

    def at(stealing: Any) -> Begin:
        gateway = start(listeners=(Listener(port=0, link_stealing=stealing),))
        return lambda **fields: opened_at(gateway, **fields)

    return at


def attach(peer: ScriptedPeer, handle: int = 0, channel: int = 0) -> None:
    peer.attach(handle, name="the name", target=["queue://q"], channel=channel)


def with_another_session(peer: ScriptedPeer) -> None:
    begin = begin_frame()
    peer.send(begin[:6] + b"\x00\x01" + begin[8:])
    peer.skip_to(BEGIN)


def is_attached(peer: ScriptedPeer) -> bool:
    """What is said of handle 0: it takes a message, or was detached as stolen."""
    peer.transfer(0, 0, data(b"x"))
    for said in peer.until(DISPOSITION, DETACH):
        if said.code == DETACH:
            assert error_of(said)[0] == STOLEN
            return False
    return True


@pytest.mark.parametrize("stealing", ["session", "connection", "container"])
def test_a_session_has_one_link_of_a_name(at: Callable[[str], Begin], stealing: str) -> None:
    """Wherever names count."""
    peer = at(stealing)()
    attach(peer)
    peer.skip_to(FLOW)
    attach(peer, 1)
    assert not is_attached(peer)


@pytest.mark.parametrize(
    ("stealing", "stays"), [("session", True), ("connection", False), ("container", False)]
)
def test_another_session_of_the_connection(at: Callable[[str], Begin], stealing: str, stays: bool) -> None:
    """Its link of the name is another one, unless the setting says otherwise."""
    peer = at(stealing)()
    attach(peer)
    peer.skip_to(FLOW)
    with_another_session(peer)
    attach(peer, channel=1)
    peer.skip_to(FLOW)
    assert is_attached(peer) is stays


@pytest.mark.parametrize(
    ("stealing", "stays"), [("session", True), ("connection", True), ("container", False)]
)
def test_another_connection_of_the_container(at: Callable[[str], Begin], stealing: str, stays: bool) -> None:
    """By the letter a name is a container's, and so of all its connections: with `container` it is."""
    begin = at(stealing)
    first, second = begin(), begin()
    attach(first)
    first.skip_to(FLOW)
    attach(second)
    second.skip_to(FLOW)
    assert is_attached(first) is stays
    assert is_attached(second)


def test_a_link_to_receive_on_is_no_rival_of_one_to_send_on(at: Callable[[str], Begin]) -> None:
    """A name is one link in each direction."""
    peer = at("container")()
    attach(peer)
    peer.skip_to(FLOW)
    peer.attach(1, receiver=True, name="the name", source=["queue://q"])
    assert is_attached(peer)


def test_what_a_stolen_suspended_link_had_is_the_new_one_s(at: Callable[[str], Begin]) -> None:
    """On another connection, as after one that failed without being noticed."""
    begin = at("container")
    first, second = begin(), begin()
    attach(first)
    first.transfer(0, 0, data(b"one"))
    first.told()
    first.attach(1, receiver=True, name="r", source=["queue://q"])
    first.send(flow_frame(1, 0, 1))
    first.skip_to(TRANSFER)
    first.detach(1)
    second.attach(0, receiver=True, name="r", source=["queue://q"])
    second.send(frame(FLOW, [UInt(0), UInt(WINDOW), UInt(0), UInt(WINDOW), UInt(0), UInt(0), UInt(1)]))
    assert body_of(second.skip_to(TRANSFER).payload) == b"one"
