"""The table of a connection's links: who takes a link's events, from its attach to its end on either side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from proton import Connection, Link

from gateway.amqp.connection_log import ConnectionLog
from gateway.amqp.engine.link_table import LinkTable
from gateway.amqp.engine.loops import LOOPS
from gateway.core.errors import ErrorCode, Refused
from gateway.ledger import LINK_BYTES, SESSION_BYTES, Ledger


class Attached:
    """A link that notes what it is told."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.told: list[Any] = []

    @property
    def incoming(self) -> Any:
        return self if self.link.is_receiver else None

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


class Flushes:
    """Counts how often a flush was asked for."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def flushes() -> Flushes:
    return Flushes()


@pytest.fixture
def table(flushes: Flushes) -> LinkTable:
    return LinkTable(ConnectionLog(1), Ledger(2**30, 2**30).open(2**30, print), flushes)


@pytest.fixture
def session(table: LinkTable) -> Any:
    session = Connection().session()
    table.begin_session(session)
    return session


def register(table: LinkTable, link: Link) -> Attached:
    attached = Attached(link)
    table.register(attached)
    return attached


def test_a_registered_link_is_found_by_its_handle(table: LinkTable, session: Any) -> None:
    """Links that messages come in on and those that they go out on are kept apart."""
    incoming, outgoing = register(table, session.receiver("in")), register(table, session.sender("out"))
    assert list(table.incoming.values()) == [incoming]
    assert list(table.outgoing.values()) == [outgoing]
    assert table.attached_at(LOOPS.handle_of(outgoing.link._impl)) == outgoing.link
    assert list(table.attached) == [incoming, outgoing]


def test_a_link_that_we_detach_is_told_and_gone(table: LinkTable, session: Any, flushes: Flushes) -> None:
    """What the engine then has to say is written; the link's name is the peer's until that has detached, too."""
    link = session.sender("out")
    assert (table.count_attach(link), table.replaced_by(link)) == (1, None)
    attached = register(table, link)
    link.open()
    table.detach(link, None)
    assert attached.told == [("detached", True)]
    assert (dict(table.outgoing), list(table.attached), flushes.count) == ({}, [], 1)
    assert table.attached_at(LOOPS.handle_of(link._impl)) is None
    assert table.count_attach(session.sender("other")) == 2
    table.detached(link, closed=True)
    assert attached.told == [("detached", True)]
    assert table.count_attach(session.sender("third")) == 2


def test_the_link_of_a_name_is_found_when_the_name_is_attached_anew(table: LinkTable, session: Any) -> None:
    """In its direction: a sender and a receiver may have one name."""
    first, second = session.sender("a"), session.sender("a")
    assert table.replaced_by(first) is None
    attached = register(table, first)
    assert table.replaced_by(session.receiver("a")) is None
    assert table.replaced_by(second) is attached


def test_a_session_ends_with_its_links_alone(table: LinkTable, session: Any) -> None:
    """Links of another session stay."""
    other = session.connection.session()
    table.begin_session(other)
    ended, stays = register(table, session.sender("a")), register(table, other.sender("b"))
    table.end_session(session)
    assert (ended.told, stays.told) == ([("detached", False)], [])
    assert (list(table.attached), list(table.sessions)) == ([stays], [other])


def test_what_was_let_go_of_is_not_let_go_of_again(table: LinkTable, session: Any) -> None:
    """A second detach, one after the end of its session, and a second end free nothing, and count nothing."""
    first, second = session.sender("a"), session.sender("b")
    for link in (first, second):
        table.count_attach(link)
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


def test_a_lost_connection_is_told_to_every_link(table: LinkTable, session: Any) -> None:
    """Each is told by itself, so that a mistake of one costs no other its end; and nothing is kept."""
    links = [register(table, session.sender(name)) for name in "abc"]
    guarded: list[Callable[[], None]] = []
    table.wait_for_output(links[0])
    table.lost(guarded.append)
    for tell in guarded:
        tell()
    assert [link.told for link in links] == [["lost"]] * 3
    assert (dict(table.outgoing), list(table.attached), table.is_waiting) == ({}, [], False)


def test_links_that_wait_are_told_of_room_once(table: LinkTable, session: Any) -> None:
    """In the order in which they came; who has nothing to send any more is not."""
    links = [register(table, session.sender(name)) for name in "abc"]
    for link in links:
        table.wait_for_output(link)
    table.stop_waiting(links[1])
    table.offer_output()
    assert [link.told for link in links] == [["writable"], [], ["writable"]]
    assert not table.is_waiting


def test_a_refusal_is_the_condition_of_the_detach(table: LinkTable, session: Any) -> None:
    """The row of the table of errors, and the text for a person."""
    link = session.sender("a")
    register(table, link)
    table.detach(link, Refused(ErrorCode.RESOURCE_DELETED, "gone"))
    assert (link.condition.name, link.condition.description) == ("amqp:resource-deleted", "gone")
