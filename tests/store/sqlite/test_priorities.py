"""Queues that begin, or cease, to deliver by priority: cursors and routes are arranged when the file is opened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core.effects import Effect
from gateway.core.model import ROUTE, WHOLE
from store.sqlite.check import check
from store.sqlite.database import open_file
from store.sqlite.store import recover
from tests.store.effects import BY_PRIORITY, publication, queue, settled, trimming
from tests.store.histories import histories
from tests.store.vpn_file import MADE_MS, query, state_of, written
from tests.support.naive_store import NaiveStore

CONTENTS = [
    *(bytes.fromhex("005370c004024050") + bytes((n % 12,)) + b"body" for n in range(36)),
    b"bare",
]
"""With priorities from 0 to above 9, three of each, and one without a header."""
EXPECTED = {i + 1: min(i % 12, 9) for i in range(36)} | {37: 4}


def filled(path: Path) -> NaiveStore:
    """A plain queue and one that delivers by priority, with messages of both and of one, some of them settled."""
    bares = [9] * 36 + [0]
    return written(
        path,
        [
            [*queue(1, "q"), *queue(2, "r", settings=BY_PRIORITY)],
            [publication(1, CONTENTS, endpoints=(1,), time_ms=MADE_MS, bares=bares)],
            [publication(38, CONTENTS, endpoints=(1, 2), time_ms=MADE_MS, bares=bares, ranked=True)],
            lambda model: settled(model, 1, [1, 2, 3, 10, 11, 30, 40, 41]),
            lambda model: settled(model, 2, [38, 39, 50, 60, 74]),
            lambda model: [trimming(model, 20)],
        ],
    )


def lying(path: Path, number: int) -> dict[int, int]:
    """What an endpoint's cursor is not done with: the part that each message is in, by id."""
    found = {}
    for endpoint in recover(path).endpoints:
        if endpoint.definition.number != number:
            continue
        rows = query(
            path,
            "select message.id, priority from route join message on message.route = route.number "
            "where exists (select 1 from json_each(endpoints) where value = ?) order by message.id",
            (number,),
        )
        for message_id, priority in rows:
            part = WHOLE if WHOLE in endpoint.parts else priority
            cursor = endpoint.parts.get(part)
            if cursor is None or message_id <= cursor.floor:
                continue
            if not any(first <= message_id <= last for first, last in cursor.ranges):
                found[message_id] = part
    return found


def depth(path: Path, number: int) -> tuple[int, int]:
    """Messages and bytes that a start finds on an endpoint by its routes."""
    (endpoint,) = (e for e in recover(path).endpoints if e.definition.number == number)
    parts = endpoint.parts.values()
    return (
        sum(part.messages + part.later_messages for part in parts),
        sum(part.size_bytes + part.later_bytes for part in parts),
    )


def test_a_changed_queue_is_arranged_with_its_settings(path: Path) -> None:
    """There and back, in the transaction that opens the file: what is settled stays so, and each is in its part."""
    model = filled(path)
    on_q, on_r = set(model.on(1)), set(model.on(2))
    depths = depth(path, 1), depth(path, 2)
    open_file(path, MADE_MS, synchronous="FULL", priorities={"q": True, "r": False, "unknown": True}).close()
    assert check(path) == []
    assert lying(path, 1) == {i: EXPECTED[(i - 1) % 37 + 1] for i in on_q}
    assert lying(path, 2) == dict.fromkeys(on_r, WHOLE)
    assert (depth(path, 1), depth(path, 2)) == depths
    texts = [endpoint.definition.settings for endpoint in recover(path).endpoints]
    assert [json.loads(text).get("priorities") for text in texts] == [True, False]
    open_file(path, MADE_MS, synchronous="FULL", priorities={"q": False, "r": True}).close()
    assert check(path) == []
    assert lying(path, 1) == dict.fromkeys(on_q, WHOLE)
    assert lying(path, 2) == {i: EXPECTED[(i - 1) % 37 + 1] for i in on_r}
    assert (depth(path, 1), depth(path, 2)) == depths


def test_an_unchanged_queue_is_left_as_it_is(path: Path) -> None:
    """Nothing is written for a queue that is what it was, or that nobody declares any more."""
    filled(path)
    before = state_of(path), recover(path)
    open_file(path, MADE_MS, synchronous="FULL", priorities={"q": False, "r": True}).close()
    open_file(path, MADE_MS, synchronous="FULL").close()
    assert (state_of(path), recover(path)) == before


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=20)
@given(history=histories(), changes=st.lists(st.booleans(), min_size=1, max_size=3))
def test_whatever_lies_there_stays_there(
    fresh: Callable[[], Path], history: list[list[Effect]], changes: list[bool]
) -> None:
    """After any history, and changes of all queues there and back: the same messages lie on them, counted alike."""
    path = fresh()
    model = written(path, history)
    routed = {number: [row[0] for row in model.routed(number)] for number in model.endpoints}
    depths = {number: depth(path, number) for number in model.endpoints}
    for by_priority in changes:
        names = [endpoint.definition.name for endpoint in model.endpoints.values()]
        open_file(path, MADE_MS, synchronous="OFF", priorities=dict.fromkeys(names, by_priority)).close()
        assert check(path) == []
        assert {number: sorted(lying(path, number)) for number in model.endpoints} == routed
        assert {number: depth(path, number) for number in model.endpoints} == depths


def test_messages_that_were_settled_keep_their_routes(path: Path) -> None:
    """Only what the queue still has is put on a route with a priority: what is done with is not read."""
    model = filled(path)
    open_file(path, MADE_MS, synchronous="FULL", priorities={"q": True}).close()
    routes = dict(query(path, "select id, route from message where id < 38"))
    settled_ids = [i for i in routes if i not in model.on(1)]
    assert settled_ids
    assert all(routes[i] == model.messages[i][ROUTE] for i in settled_ids)
