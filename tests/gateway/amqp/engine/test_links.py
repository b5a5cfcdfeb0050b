"""Link names attached twice, in raw frames (AMQP 1.0 section 2.6.1); the link table; the engine's errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from proton import Condition, Connection, Link

from amqp_ext.codec import Symbol, UInt
from gateway.amqp.connection_log import ConnectionLog
from gateway.amqp.engine.conditions import CloseError, code_of
from gateway.amqp.engine.link_table import LinkTable
from gateway.amqp.engine.loops import LOOPS
from gateway.core.errors import ErrorCode, Refused
from gateway.ledger import DELIVERY_ID_BYTES, LINK_BYTES, SESSION_BYTES, Ledger
from tests.gateway.amqp.engine.conftest import Opened
from tests.support.frames import (
    ATTACH,
    CLOSE,
    DETACH,
    FLOW,
    TRANSFER,
    Frame,
    attach_frame,
    disposition,
    error_of,
    flow_frame,
    frame,
    parse,
)
from tests.support.messages import body_of
from tests.support.peer import Peer

# --- A link's name attached twice -----------------------------------------------------------------------------------

STOLEN = "amqp:link:stolen"


def stolen_from(peer: Peer) -> Frame:
    """The detach that says that a link is stolen; the peer answers it."""
    detached = peer.skip_to(DETACH)
    assert error_of(detached)[0] == STOLEN
    peer.send(frame(DETACH, [UInt(0), True]))
    return detached


@pytest.mark.parametrize(
    ("address", "expiry"), [("queue://taken", None), ("topic://taken/a", Symbol("never"))]
)
def test_a_consumers_name_attached_anew_takes_the_link_over(
    opened: Opened, address: str, expiry: Symbol | None
) -> None:
    """
    The older link of the session is detached as stolen; the new one gets what that had not settled, then what comes. A
    durable subscription goes on as well.
    """
    peer, publisher = opened(), opened()
    peer.attach_receiver(address, name="mine", credit=10, expiry=expiry)
    publisher.attach_sender(address)
    publisher.publish(b"first")
    assert body_of(peer.skip_to(TRANSFER).payload) == b"first"
    peer.send(attach_frame(1, receiver=True, address=address, name="mine", expiry=expiry))
    stolen_from(peer)
    assert peer.skip_to(ATTACH).field(0) == "mine"
    peer.send(flow_frame(1, 0, 10))
    again = peer.skip_to(TRANSFER)
    assert body_of(again.payload) == b"first"
    peer.send(disposition(int(again.field(1)), int(again.field(1))))
    publisher.publish(b"second")
    assert peer.receive() == b"second"
    peer.close()


def test_a_refused_name_can_be_attached_before_its_detach_is_answered(opened: Opened) -> None:
    """A peer that attaches the name again before its own detach is served."""
    peer = opened()
    peer.send(attach_frame(0, receiver=False, address="log://>", name="mine"))
    assert error_of(peer.skip_to(DETACH))[0] == "amqp:not-allowed"
    peer.send(attach_frame(1, receiver=False, address="queue://taken", name="mine"))
    assert peer.skip_to(FLOW)
    peer.send(frame(DETACH, [UInt(0), True]))
    peer.publish(b"served", handle=1)
    peer.close()


def test_a_name_attached_twice_at_once_is_a_mistake(opened: Opened) -> None:
    """A second attach of a name before the first is answered closes the connection, with an error that has the name."""
    peer = opened()
    peer.send(*(attach_frame(n, receiver=True, address="queue://taken", name="mine") for n in range(2)))
    assert "mine" in error_of(peer.skip_to(CLOSE))[1]


# --- The table of a connection's links ------------------------------------------------------------------------------


class Attached:
    """A link that records the calls that it gets."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.told: list[Any] = []

    @property
    def incoming(self) -> Any:
        return self.receive if self.link.is_receiver else None

    @property
    def outgoing(self) -> Any:
        return None if self.link.is_receiver else self

    def detached(self, *, closed: bool) -> None:
        self.told.append(("detached", closed))

    def lost(self) -> None:
        self.told.append("lost")

    def refuse(self, refused: Refused) -> None:
        self.told.append(refused)

    def writable(self) -> None:
        self.told.append("writable")

    def receive(self) -> None: ...

    def report(self) -> None: ...

    def updated(self, delivery: Any) -> None: ...

    def on_flow(self) -> None: ...


@pytest.fixture
def flushes() -> list[None]:
    """One entry for each flush that was requested."""
    return []


@pytest.fixture
def table(flushes: list[None]) -> LinkTable:
    account = Ledger(2**30, 2**30).open(2**30, print)
    return LinkTable(ConnectionLog(1), account, partial(flushes.append, None))


@pytest.fixture
def session(table: LinkTable) -> Any:
    session = Connection().session()
    table.begin_session(session)
    return session


def register(table: LinkTable, link: Link) -> Attached:
    attached = Attached(link)
    table.register(attached)
    return attached


def test_a_link_is_found_by_its_handle_until_we_detach_it(
    table: LinkTable, session: Any, flushes: list[None]
) -> None:
    """
    Incoming and outgoing links are kept apart. A link that we detach is notified and removed, its error is the
    refusal's, and a flush is requested. It still counts until the peer has detached it, too.
    """
    incoming, link = register(table, session.receiver("in")), session.sender("out")
    assert (table.count_attach(link, 0), table.replaced_by(link)) == (1, None)
    outgoing = register(table, link)
    assert list(table.incoming.values()) == [incoming.receive]
    assert list(table.outgoing.values()) == [outgoing]
    assert table.attached_at(LOOPS.handle_of(link._impl)) == link
    assert list(table.attached.values()) == [incoming, outgoing]
    link.open()
    table.detach(link, Refused(ErrorCode.RESOURCE_DELETED, "gone"))
    assert (link.condition.name, link.condition.description) == ("amqp:resource-deleted", "gone")
    assert outgoing.told == [("detached", True)]
    assert (dict(table.outgoing), list(table.attached.values()), len(flushes)) == ({}, [incoming], 1)
    assert table.attached_at(LOOPS.handle_of(link._impl)) is None
    assert table.count_attach(session.sender("other"), 0) == 2
    table.detached(link, closed=True)
    assert outgoing.told == [("detached", True)]
    assert table.count_attach(session.sender("third"), 0) == 2


def test_a_session_ends_with_its_links_alone(table: LinkTable, session: Any) -> None:
    other = session.connection.session()
    table.begin_session(other)
    ended, stays = register(table, session.sender("a")), register(table, other.sender("b"))
    table.end_session(session)
    assert (ended.told, stays.told) == ([("detached", False)], [])
    assert (list(table.attached.values()), list(table.sessions)) == ([stays], [other])


def test_ids_that_are_remembered_for_a_peer_are_held_for_it(table: LinkTable) -> None:
    """They count against the connection's memory as long as they are remembered."""
    for count in (3, 1, 0):
        table.enter_unfinished(count)
        assert table.account.held_bytes == count * DELIVERY_ID_BYTES


def test_what_was_let_go_of_is_not_let_go_of_again(table: LinkTable, session: Any) -> None:
    """A second detach, one after the end of its session, and a second end free no memory twice."""
    first, second = session.sender("a"), session.sender("b")
    for link in (first, second):
        table.count_attach(link, 0)
        table.replaced_by(link)
    for _ in range(2):
        table.detached(first, closed=True)
        assert table.account.held_bytes == SESSION_BYTES + LINK_BYTES
    for _ in range(2):
        table.end_session(session)
        table.detached(second, closed=False)
        assert table.account.held_bytes == 0
    assert not table.is_known(first)
    assert not table.is_known(second)


def test_links_that_wait_are_told_of_room_once_and_of_a_lost_connection(
    table: LinkTable, session: Any
) -> None:
    """
    Links hear of room in the order in which they began to wait, unless they have stopped. Each is told of the
    connection's loss in a call of its own, so that an error in one does not keep it from others; the table is empty
    then.
    """
    links = [register(table, session.sender(name)) for name in "abc"]
    for link in links:
        table.wait_for_output(link)
    table.stop_waiting(links[1])
    table.offer_output()
    assert [link.told for link in links] == [["writable"], [], ["writable"]]
    assert not table.is_waiting
    guarded: list[Callable[[], None]] = []
    table.wait_for_output(links[0])
    table.lost(guarded.append)
    for tell in guarded:
        tell()
    assert [link.told[-1] for link in links] == ["lost"] * 3
    assert (dict(table.outgoing), list(table.attached.values()), table.is_waiting) == ({}, [], False)


# --- The engine's errors, and the close frame that it writes for them -----------------------------------------------

ERROR = CloseError("amqp:illegal-state", "not now")


@pytest.mark.parametrize(
    ("said", "condition", "text"),
    [
        ("no such handle: 7", "amqp:session:unattached-handle", "handle 7"),
        ("no such channel: 5 (connection aborted)", "amqp:illegal-state", "channel 5"),
        ("link name already attached: a{b}", "amqp:not-allowed", "'a{b}'"),
        ("connection aborted", "amqp:decode-error", "0x10 for open"),
        (
            "remote channel 9 is above it. (connection aborted)",
            "amqp:as-it-is",
            "remote channel 9 is above it.",
        ),
        ("something new", "amqp:as-it-is", "something new"),
    ],
)
def test_an_error_of_the_engine_gets_its_condition(said: str, condition: str, text: str) -> None:
    """A known error of the engine is sent with the specification's condition, an unknown one as it is."""
    word = CloseError.of(Condition("amqp:as-it-is", said))
    assert word.condition == condition
    assert text in word.text
    assert "aborted" not in word.text


def test_what_the_walk_over_frames_finds_is_no_refusal_of_a_replay() -> None:
    """Of the error codes with the same condition, ``code_of`` returns the one without a replay-error."""
    for code in (ErrorCode.INVALID_FIELD, ErrorCode.NOT_ALLOWED, ErrorCode.NOT_IMPLEMENTED):
        assert code_of(code.condition) is code


def test_the_last_frame_is_replaced() -> None:
    """
    Output before the close frame is unchanged, even where it looks like one; so is output that does not end with a
    close frame.
    """
    like_one = b"\x02\x00\x00\x00\x00\x53\x18"
    before = frame(CLOSE, []) + frame(0x14, [], like_one)
    output = ERROR.put_into(before + frame(CLOSE, ["the engine's words"]))
    assert output.startswith(before)
    closed = parse(output, len(before), len(output))
    assert closed is not None
    assert closed.code == CLOSE
    assert [str(part) for part in closed.fields[0].value] == ["amqp:illegal-state", "not now"]
    for output in (b"", b"AMQP\x00\x01\x00\x00", frame(0x14, [], like_one + b" more")):
        assert ERROR.put_into(output) == output
