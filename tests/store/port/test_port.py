"""What every engine's store does, through the port alone: compared with the store that is dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from gateway.core.effects import Effect, Publication, SavePoint, SaveReplayRecord, SaveSubscription
from gateway.core.model import ROUTE, Point
from store.errors import WriteFailed
from store.ports import UNDONE_BY_FAILURE, Batch, Recovered, Store, StoreOptions, Stores
from store.recovery import RecoveredStore
from tests.store.effects import applied, delayed, publication, purge, queue, settled, trimming
from tests.store.histories import histories
from tests.store.port.adapters import Adapter
from tests.store.vpn_file import MADE_MS, empty_model
from tests.support.naive_reader import NaivePages, agree
from tests.support.naive_store import NaiveStore, State

VPN = "orders"
PAGE_ROWS = 20
OPTIONS = StoreOptions(
    page_rows=PAGE_ROWS, page_bytes=1 << 20, read_threads=1, checkpoint_bytes=1 << 20, synchronous="OFF"
)


@pytest.fixture
def folders(tmp_path: Path) -> Callable[[], Path]:
    """A new folder at every call."""
    numbers = count()

    def made() -> Path:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return folder

    return made


def write(store: Store, batches: Sequence[Sequence[Effect]]) -> None:
    """Commit batches, each told of without an error, and close."""
    errors: list[WriteFailed | None] = []
    writer = store.start_writer(lambda told, error: errors.extend([error] * len(told)))
    for effects in batches:
        size = sum(effect.size_bytes for effect in effects if isinstance(effect, Publication))
        writer.submit(Batch(effects, size))
    store.close()
    assert errors == [None] * len(batches)


def check_recovered(found: Recovered, model: NaiveStore) -> None:
    """What a start finds is what the naive store has; routes that no message names may be gone."""
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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=20)
@given(history=histories())
def test_what_was_committed_is_found_and_read(
    adapter: Adapter, folders: Callable[[], Path], history: list[list[Effect]]
) -> None:
    """
    After any history, closed and opened again: all tables are a recount, what is found and read is the naive store's,
    and no promise is broken.
    """
    folder, model = folders(), empty_model()
    stores: Stores = adapter.stores(folder)
    write(stores.open(VPN, MADE_MS, OPTIONS), history)
    assert adapter.check(folder, VPN) == []
    for effects in history:
        applied(model, effects)
    check_state(adapter.state(folder, VPN), model)
    store = stores.open(VPN, MADE_MS, OPTIONS)
    try:
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
        # What was dropped may still be there for a while, and is nobody's.
        assert found >= ids
    finally:
        store.close()


def check_state(found: State, model: NaiveStore) -> None:
    """All that can be seen of the tables is the naive store's."""
    known = model.state()
    for field in fields(found):
        assert getattr(found, field.name) == getattr(known, field.name), field.name


@pytest.fixture
def opened(adapter: Adapter, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Opens one store, again and again."""
    stores = adapter.stores(tmp_path)
    yield lambda: stores.open(VPN, MADE_MS, OPTIONS)
    stores.remove(VPN)


def test_a_purged_and_trimmed_store_goes_on(
    adapter: Adapter, tmp_path: Path, opened: Callable[[], Store]
) -> None:
    """Held, trimmed, purged, settled, delayed, with restarts between: each start finds what there is, and goes on."""
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
        check_state(adapter.state(tmp_path, VPN), model)
    assert sorted(model.messages) == list(range(40, 64))


def test_it_says_what_it_is(opened: Callable[[], Store]) -> None:
    """Its engine with a version, and its place."""
    store = opened()
    try:
        assert any(character.isdigit() for character in store.engine)
        assert store.place
    finally:
        store.close()


def test_text_may_hold_any_character(adapter: Adapter, tmp_path: Path, opened: Callable[[], Store]) -> None:
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
    check_state(adapter.state(tmp_path, VPN), model)
    store = opened()
    check_recovered(store.recovered, model)
    store.close()


def test_who_is_at_fault_fails_alone(adapter: Adapter, tmp_path: Path, opened: Callable[[], Store]) -> None:
    """Of what is committed together, what cannot be written fails, whoever refuses it; all else is there, in order."""
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
    # What the engine refuses: an id twice.
    bad += [submit(publication(2, [b"y"] * count, time_ms=MADE_MS)) for count in (1, 100)]
    sent += [*bad[1:], *[submit(publication(n, [b"x"], time_ms=MADE_MS)) for n in range(40, 60)]]
    store.close()
    assert [id(batch) for batch, _ in told] == [id(batch) for batch in sent]
    assert [id(batch) for batch, error in told if error is not None] == [id(batch) for batch in bad]
    assert list(adapter.state(tmp_path, VPN).messages) == list(range(2, 60))


def test_a_record_of_a_replay_that_was_not_committed_is_not_written_later() -> None:
    """It stands or falls with what a job published: a store does not keep it for its next transaction."""
    assert issubclass(SaveReplayRecord, UNDONE_BY_FAILURE)
