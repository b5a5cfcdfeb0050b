"""What every engine's store does, through the port only, compared with the naive store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from threading import Event, Thread
from typing import Final

import pytest
from hypothesis import given, settings

from gateway.core.effects import (
    AddReferences,
    CountAttempts,
    Effect,
    EraseMessages,
    OpenCursor,
    Publication,
    SaveArchived,
    SavePoint,
    SaveReplay,
    SaveReplayRecord,
    SaveSubscription,
)
from gateway.core.erasing import erased_row
from gateway.core.model import CONTENT, ROUTE, WHOLE, Point
from store.errors import WriteFailed
from store.ports import UNDONE_BY_FAILURE, Batch, Recovered, Store, StoreOptions
from store.promises import MOST_EXAMPLES
from store.recovery import RecoveredStore
from tests.store.effects import (
    BY_PRIORITY,
    applied,
    counted,
    delayed,
    publication,
    purge,
    queue,
    route,
    settled,
    trimming,
)
from tests.store.histories import histories
from tests.store.port.adapters import Adapter, Place
from tests.store.port.vpns import StoredVpn
from tests.store.state import check_state
from tests.store.vpn_file import MADE_MS, empty_model
from tests.support.chance import times
from tests.support.naive_reader import NaivePages, agree
from tests.support.naive_store import NaiveStore

# --- What every engine's store does, through the port only, compared with the naive store -----------------------------

PAGE_ROWS = 20
OPTIONS = StoreOptions(
    page_rows=PAGE_ROWS, page_bytes=1 << 20, read_threads=1, checkpoint_bytes=1 << 20, synchronous="OFF"
)


def write(store: Store, batches: Sequence[Sequence[Effect]]) -> None:
    """Commit batches, none of which may fail, and close the store."""
    errors: list[WriteFailed | None] = []
    writer = store.start_writer(lambda told, error: errors.extend([error] * len(told)))
    for effects in batches:
        size = sum(effect.size_bytes for effect in effects if isinstance(effect, Publication))
        writer.submit(Batch(effects, size))
    store.close()
    assert errors == [None] * len(batches)


def check_recovered(found: Recovered, model: NaiveStore) -> None:
    """Assert that a start finds what the naive store has; routes that no message names may be missing."""
    known = model.recover(found.log.generation)
    for field in fields(Recovered):
        if field.name != "routes":
            assert getattr(found, field.name) == getattr(known, field.name), field.name
    assert isinstance(found, RecoveredStore)
    assert found.largest_bytes == model.largest_bytes
    newest = {route.definition.number: route.newest_id for route in known.routes}
    for definition, newest_id in found.routes:
        assert newest_id == newest.get(definition.number, 0) or found.garbage, (
            "a dropped cursor's is one, too"
        )
    routes = {route.definition for route in found.routes}
    assert routes <= {route.definition for route in known.routes}
    assert routes >= {model.routes[row[ROUTE]] for row in model.messages.values() if row[ROUTE]}


@settings(max_examples=times(10, 2_000))
@given(history=histories())
def test_what_was_committed_is_found_and_read(adapter: Adapter, history: list[list[Effect]]) -> None:
    """
    After any history, a store that is closed and opened again equals the naive store in its tables, in what the start
    finds and in what is read, and keeps every promise.
    """
    place, model = adapter.place(), empty_model()
    write(adapter.open(place, OPTIONS), history)
    assert adapter.check(place) == []
    for effects in history:
        applied(model, effects)
    check_state(adapter.state(place), model)
    with closing(adapter.open(place, OPTIONS)) as store:
        check_recovered(store.recovered, model)
        reader, naive = store.reader, NaivePages(model, PAGE_ROWS)
        end = model.last_id + 1
        first = model.first_id
        assert agree(reader.log_page(first, end, ()), naive.log_page(first, end, ()), PAGE_ROWS)
        assert reader.last_matching(None) == naive.last_matching(None)
        assert sorted(reader.tally(1, end, ())) == sorted(naive.tally(1, end, ()))
        for cursor in model.cursors:
            assert reader.attempts(cursor) == naive.attempts(cursor)
        ids = {i for i, row in model.messages.items() if row[ROUTE]}
        found, after = set[int](), 0
        while after < model.last_id and model.routes:
            page = reader.routed_page(sorted(model.routes), after, end)
            found |= {row[0] for row in page.rows}
            assert page.position > after
            after = page.position - 1
        # Messages of a dropped cursor may still be stored for a while.
        assert found >= ids


@pytest.fixture
def place(adapter: Adapter) -> Place:
    """A place without a store."""
    return adapter.place()


@pytest.fixture
def opened(adapter: Adapter, place: Place) -> Callable[[], Store]:
    """Opens the store at that place, at each call."""
    return lambda: adapter.open(place, OPTIONS)


def test_a_purged_and_trimmed_store_goes_on(
    adapter: Adapter, place: Place, opened: Callable[[], Store]
) -> None:
    """Messages are trimmed, purged, settled and delayed with a restart after each step: each start finds all of it."""
    model = empty_model()
    steps: list[Callable[[], Sequence[Effect]]] = [
        lambda: [*queue(1, "q"), *queue(2, "r")],
        lambda: [publication(1, [b"x"] * 30, endpoints=(1, 2), time_ms=MADE_MS)],
        lambda: [publication(31, [b"y"] * 30, endpoints=(1, 2), logged=False, time_ms=MADE_MS)],
        lambda: settled(model, 1, range(5, 40)),
        lambda: [trimming(model, 20)],
        lambda: purge(model, 2),
        lambda: settled(model, 1, [1, 2, 3, 4]),
        lambda: [delayed(model, 61, [b"z"] * 3, [MADE_MS + 9] * 3, endpoints=(1, 2), time_ms=MADE_MS)],
        lambda: [trimming(model, 64)],
    ]
    for step in steps:
        write(opened(), [applied(model, step())])
        store = opened()
        check_recovered(store.recovered, model)
        store.close()
        check_state(adapter.state(place), model)
    assert sorted(model.messages) == list(range(40, 64))


def test_it_says_what_it_is(opened: Callable[[], Store]) -> None:
    """A store names its engine with a version, and its place."""
    with closing(opened()) as store:
        assert any(character.isdigit() for character in store.engine)
        assert store.place


def test_text_may_hold_any_character(adapter: Adapter, place: Place, opened: Callable[[], Store]) -> None:
    """U+0000 in a topic, a name, a pattern or a point's name: stored, and found at the next start."""
    model = empty_model()
    write(
        opened(),
        [
            applied(model, [*queue(1, "a\0b"), SaveSubscription(1, "t\0/>"), SaveSubscription(1, "\1")]),
            applied(model, [publication(1, [b"x"] * 50, topic="t\0/\1", endpoints=(1,), time_ms=MADE_MS)]),
            applied(model, [publication(51, [b"y"], topic="t\0/0", time_ms=MADE_MS)]),
            applied(model, [SavePoint(Point("p\0", 1, MADE_MS, MADE_MS))]),
            applied(model, [trimming(model, 20)]),
        ],
    )
    check_state(adapter.state(place), model)
    store = opened()
    check_recovered(store.recovered, model)
    store.close()


def test_who_is_at_fault_fails_alone(adapter: Adapter, place: Place, opened: Callable[[], Store]) -> None:
    """A batch that the driver or the engine refuses fails alone; batches submitted with it are stored, in order."""
    store = opened()
    told: list[tuple[Batch, WriteFailed | None]] = []
    writer = store.start_writer(lambda batches, error: told.extend((batch, error) for batch in batches))

    def submit(*effects: Effect) -> Batch:
        batch = Batch(effects, 0)
        writer.submit(batch)
        return batch

    sent = [submit(*queue(1, "q"))]
    bad = [submit(SaveSubscription(1, "\ud800"))]
    sent += [*bad, *[submit(publication(n, [b"x"], time_ms=MADE_MS)) for n in range(2, 40)]]
    # The engine refuses an id that exists.
    bad += [submit(publication(2, [b"y"] * count, time_ms=MADE_MS)) for count in (1, 100)]
    sent += [*bad[1:], *[submit(publication(n, [b"x"], time_ms=MADE_MS)) for n in range(40, 60)]]
    store.close()
    assert [id(batch) for batch, _ in told] == [id(batch) for batch in sent]
    assert [id(batch) for batch, error in told if error is not None] == [id(batch) for batch in bad]
    assert list(adapter.state(place).messages) == list(range(2, 60))


def test_a_record_of_a_replay_that_was_not_committed_is_not_written_later() -> None:
    """A replay's record fails together with the messages published with it, and is not retried without them."""
    assert issubclass(SaveReplayRecord, UNDONE_BY_FAILURE)


# --- Erased contents are neither read nor in the engine's files after a scrub -----------------------------------------

WAIT_SECONDS = 20
SECRET = b"what nobody is to know any more "


@pytest.fixture
def store(opened: Callable[[], Store]) -> Iterator[Store]:
    """An opened store."""
    with closing(opened()) as found:
        yield found


@pytest.mark.parametrize("size", [1, 1_000])
def test_what_was_erased_is_neither_read_nor_in_files(store: Store, tmp_path: Path, size: int) -> None:
    """Whether the content fills one page or many: the marker is read in its place, next to unchanged messages."""
    committed, errors = Event(), []

    def on_commit(_batches: list[Batch], error: WriteFailed | None) -> None:
        errors.append(error)
        committed.set()

    writer = store.start_writer(on_commit)
    rows = publication(1, [b"before", SECRET * size, b"behind"], time_ms=MADE_MS).rows
    writer.submit(Batch([publication(1, [row[CONTENT] for row in rows], time_ms=MADE_MS)], 0))
    assert committed.wait(WAIT_SECONDS)
    committed.clear()
    effect = EraseMessages([erased_row(row, MADE_MS, "asked to") for row in rows[1:2]])
    writer.submit(Batch([effect], 0))
    assert committed.wait(WAIT_SECONDS)
    assert errors == [None, None]
    assert effect.ids == [2]
    assert store.scrub(WAIT_SECONDS)
    read = store.reader.submit(lambda: store.reader.log_page(1, 4, ())).result(WAIT_SECONDS).rows
    assert read == [rows[0], *effect.rows, rows[2]]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and SECRET in path.read_bytes()]


def test_draining_waits_for_reads_that_began_before(store: Store) -> None:
    """``drain`` returns after the reads that were submitted before it are done."""
    store.start_writer(lambda _batches, _error: None)
    go_on, order = Event(), []
    reading = store.reader.submit(lambda: (go_on.wait(WAIT_SECONDS), order.append("read")))
    behind = store.reader.submit(lambda: order.append("behind"))
    draining = Thread(target=lambda: (store.reader.drain(), order.append("drained")))
    draining.start()
    go_on.set()
    draining.join(WAIT_SECONDS)
    assert reading.done()
    assert behind.done()
    assert order == ["read", "behind", "drained"]


# --- The check of a store: it reports nothing of a sound store, and each kind of damage -------------------------------

BOTH = route(1, 2).number

INDEX = (
    "insert into indexed values (1, 'p', 1, null)",
    "insert into property_value values (0, 1, 'x', 3)",
)


def make_sound(vpn: StoredVpn) -> None:
    """
    Fill a sound store with rows in most tables: a queue with a replay, a purged one, and one by priority; messages that
    are logged, held by routes or references, or trimmed; a point and an index.
    """
    model = empty_model()
    written: list[Sequence[Effect]] = []

    def write(*effects: Effect) -> None:
        written.append(effects)
        applied(model, effects)

    write(*queue(1, "q"), *queue(2, "r"), *queue(3, "p", settings=BY_PRIORITY), SaveSubscription(1, "a/>"))
    write(publication(1, [b"12345"] * 4, endpoints=(1, 2), time_ms=MADE_MS))
    write(publication(5, [b"12"] * 4, endpoints=(1, 2), logged=False, time_ms=MADE_MS + 5))
    write(publication(9, [b"123"] * 4, time_ms=MADE_MS + 9), AddReferences(1, [9]))
    write(*settled(model, 1, [2, 4, 6], is_joined=False))
    write(trimming(model, 3), CountAttempts(1, [(3, 1)]))
    write(*purge(model, 2))
    write(OpenCursor(9, (WHOLE,), 3), SaveReplay(1, '{"cursor": 9}'))
    write(SavePoint(Point("p", 13, MADE_MS, MADE_MS)))
    write(publication(13, [b"1"] * 2, endpoints=(1, 3), time_ms=MADE_MS + 9, ranked=True))
    write(*counted(model, 1, 14), SaveArchived(0))
    vpn.write(written)
    vpn.execute(*INDEX)
    assert vpn.check() == []


DAMAGES: Final[Mapping[str, str]] = {
    "the log has 0 rows instead of one": "delete from log",
    f"message 14 arrived at {MADE_MS + 8} ms, before message 13 at {MADE_MS + 9} ms": (
        f"update message set time = {MADE_MS + 8} where id = 14"
    ),
    "message 13 is not what was written": "update message set topic = 'other' where id = 13",
    "the bare message of message 14 begins at byte 2 of 1": "update message set bare = 2 where id = 14",
    "message 5 is on record as held by 2 endpoints, but 1 need it": "update cursor set floor = 5 where number = 2",
    "message 6 is on record as held by 1 endpoints, but 0 need it": "delete from garbage",
    f"message 3 is on route {BOTH}, which does not exist": f"delete from route where number = {BOTH}",
    f"message 13 is on route {route(1, 3, priority=4).number} of priority 5, but its header says 4": (
        "update route set priority = 5 where priority = 4"
    ),
    "endpoint 3 (p) has cursor 3, which lacks part 7": "delete from cursor where number = 3 and part = 7",
    "endpoint 1 (q) has cursor 1 with part 5, which is not one of its priorities": (
        "insert into cursor values (1, 5, 0, 0, 0, 0)"
    ),
    "message 13 is queued on endpoint 3 (p), which delivers by priority, but its route has no priority": (
        "update route set priority = null"
    ),
    "part -1 of cursor 1 has 8 messages with 18 bytes on record, but its backlog up to 14 has 7 messages": (
        "update cursor set messages = messages + 1 where number = 1"
    ),
    "part 4 of cursor 3 has 0 messages with 7 bytes on record": (
        "update cursor set size_bytes = 7 where number = 3 and part = 4"
    ),
    "part -1 of cursor 9 has settled everything up to 15, but the log's last id is 14": (
        "update cursor set floor = 15 where number = 9"
    ),
    "the backlog of part -1 of cursor 9 is counted up to 15, but the log's last id is 14": (
        "update cursor set counted_id = 15 where number = 9"
    ),
    "part -1 of cursor 9 has a range from 14 to 15, but the log's last id is 14": (
        "insert into cursor_range values (9, -1, 14, 15)"
    ),
    "part -1 of cursor 1 has a range from 4, but the range before it ends at 5": (
        "update cursor_range set last = 5 where number = 1 and first = 2"
    ),
    "part -1 of cursor 9 has a range from 2, below its floor 3": "insert into cursor_range values (9, -1, 2, 9)",
    "1 ranges belong to part -1 of cursor 8, which does not exist": "insert into cursor_range values (8, -1, 2, 9)",
    "cursor 9 belongs to no endpoint and no replay, and was not dropped": "update endpoint set replay = null",
    "cursor 1 was dropped, but endpoint 1 (q) still uses it": "insert into garbage values (1, 1, 0)",
    "cursor 1 refers to message 77, which does not exist": "insert into reference values (1, 77)",
    "1 references belong to cursor 8, which does not exist": "insert into reference values (8, 9)",
    "cursor 1 counts failed deliveries of message 77, which does not exist": "insert into attempt values (1, 77, 1)",
    "1 attempts belong to cursor 8, which does not exist": "insert into attempt values (8, 3, 1)",
    "message 77 is delayed on cursor 1, but does not exist": "insert into delayed values (1, 5, 77, 1, 0)",
    "1 delayed messages belong to cursor 8, which does not exist": "insert into delayed values (8, 5, 9, 1, 0)",
    "message 77 is a value of cursor 1, but does not exist": "insert into last_value values (1, 'k', 77, 1, null)",
    "1 values belong to cursor 8, which does not exist": "insert into last_value values (8, 'k', 9, 1, null)",
    "1 rows of publishers' ids belong to endpoint 77, which does not exist": "insert into dedup values (77, 1, 1, '')",
    "message 3 was delivered -1 times by cursor 1": "update attempt set count = -1",
    "number 9 is in use, but the next number to be given out is 9": "update log set next_number = 9",
    "number 9 is subscribed to b, but is not an endpoint": "insert into subscription values (9, 'b')",
    "the largest content has 5 bytes, but the largest on record has 4": "update log set largest_bytes = 4",
    "1 rows of the index have number 1, which indexes no property": "delete from indexed",
    f"message 14 arrived at {MADE_MS + 9} ms, but the log's last time is {MADE_MS} ms, up to message 14": (
        f"update log set last_time = {MADE_MS}"
    ),
    "the log has 1 bytes on record up to 14, but holds 384": "update log set size_bytes = 1",
    "the log begins at 16, but its last id is 14": "update log set first_id = 16",
    "the backlogs are counted up to 15, but the log's last id is 14": "update log set counted_id = 15",
    "the log is archived up to 15, but its last id is 14": "update log set archived_id = 15",
    "point p is at 16, beyond the log's last id 14": "update point set position = 16",
    "message 3 is in segment 5 of the index instead of 0": "update property_value set segment = 5",
}
"""What the check reports, and the SQL that does the damage."""

OF_ENGINES: Final[Mapping[str, Mapping[str, str]]] = {
    "sqlite": {
        "message 3 is neither held nor in the log, which begins at 4": "update log set first_id = 4",
        "message 1 is on record as held by 3 endpoints, but 2 need it": "update message set held = 3 where id = 1",
        # In SQLite the log's row may be older than the newest messages, which the check adds up itself.
        "the log has 384 bytes on record up to 13, but holds 338": "update log set last_id = 13",
    },
    "postgresql": {
        "message 14 is above the log's last id 13": "update log set last_id = 13",
        "message 5 is in the log, but also stored as held by 2 endpoints": (
            "insert into message (id, time, checksum, route, bare, topic, content) "
            "select id, time, checksum, route, bare, topic, content from held_message where id = 5"
        ),
        "message 1 is on record as held by 3 endpoints, but 2 need it": (
            "update held_message set held = 3 where id = 1"
        ),
    },
}


def test_each_damage_is_found_and_each_promise_is_tested(adapter: Adapter, vpn: StoredVpn) -> None:
    """The check names each damage and its rows, and each promise is broken by at least one of them."""
    told: list[str] = []
    make_sound(vpn)
    vpn.save()
    for expected, damage in {**DAMAGES, **OF_ENGINES[adapter.name]}.items():
        vpn.restore()
        vpn.execute(damage)
        found = vpn.check()
        assert any(sentence.startswith(expected) for sentence in found), (expected, found)
        told += found
    for promise in vpn.promises:
        pattern = re.compile(re.sub(r"\\\{\d?\\\}", ".+", re.escape(promise.broken)))
        assert any(map(pattern.fullmatch, told)), promise.broken


def test_much_damage_is_counted_rather_than_listed(vpn: StoredVpn) -> None:
    """Of a thousand broken rows the check gives a few examples and the number of the rest."""
    make_sound(vpn)
    vpn.execute(*(f"insert into subscription values (9, 't/{k}')" for k in range(1_000)))
    found = vpn.check()
    assert len(found) == MOST_EXAMPLES + 1
    assert found[-1] == f"… and {1_000 - MOST_EXAMPLES} more like that"
