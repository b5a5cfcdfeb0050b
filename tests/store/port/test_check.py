"""The check of a store: silent on a sound one, and it finds each thing that can be wrong, whichever engine keeps it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from hypothesis import HealthCheck, given, settings

from gateway.core.effects import (
    AddReferences,
    CountAttempts,
    Effect,
    OpenCursor,
    SaveArchived,
    SavePoint,
    SaveReplay,
    SaveSubscription,
)
from gateway.core.model import WHOLE, Point
from store.promises import MOST_EXAMPLES
from tests.store.effects import (
    BY_PRIORITY,
    applied,
    counted,
    publication,
    purge,
    queue,
    route,
    settled,
    trimming,
)
from tests.store.histories import histories
from tests.store.port.adapters import Adapter
from tests.store.port.vpns import StoredVpn
from tests.store.vpn_file import MADE_MS, empty_model

BOTH = route(1, 2).number

INDEX = (
    "insert into indexed values (1, 'p', 1, null)",
    "insert into property_value values (0, 1, 'x', 3)",
)


def make_sound(vpn: StoredVpn) -> None:
    """
    Something of everything: two queues, one emptied, one by priority, a replay; messages logged, held by routes and by
    references, and trimmed; a point and an index.
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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=20)
@given(history=histories())
def test_whatever_is_committed_is_sound(
    new_vpn: Callable[[], StoredVpn], history: list[list[Effect]]
) -> None:
    """After any history of commands there is nothing to say."""
    vpn = new_vpn()
    vpn.write(history)
    assert vpn.check() == []


DAMAGES: Final[Mapping[str, str]] = {
    "the log has 0 rows instead of one": "delete from log",
    f"message 14 arrived at {MADE_MS + 8} ms, before message 13 at {MADE_MS + 9} ms": (
        f"update message set time = {MADE_MS + 8} where id = 14"
    ),
    "message 13 is not what was written": "update message set topic = 'other' where id = 13",
    "message 14 begins at byte 2 of 1": "update message set bare = 2 where id = 14",
    "message 5 is held by 2 endpoints on record, and 1 need it": "update cursor set floor = 5 where number = 2",
    "message 6 is held by 1 endpoints on record, and 0 need it": "delete from garbage",
    f"message 3 is on route {BOTH}, which does not exist": f"delete from route where number = {BOTH}",
    f"message 13 is on route {route(1, 3, priority=4).number} of priority 5, and its header says 4": (
        "update route set priority = 5 where priority = 4"
    ),
    "endpoint 3 (p) has a cursor 3 without part 7": "delete from cursor where number = 3 and part = 7",
    "endpoint 1 (q) has a cursor 1 with a part 5, which it does not deliver by": (
        "insert into cursor values (1, 5, 0, 0, 0, 0)"
    ),
    "message 13 lies on endpoint 3 (p), which delivers by priority, and its route has none": (
        "update route set priority = null"
    ),
    "part -1 of cursor 1 has 8 messages with 18 bytes on record, and 7 with 18 lie there up to 14": (
        "update cursor set messages = messages + 1 where number = 1"
    ),
    "part 4 of cursor 3 has 0 messages with 7 bytes on record": (
        "update cursor set size_bytes = 7 where number = 3 and part = 4"
    ),
    "part -1 of cursor 9 is done with everything up to 15, and the log's last id is 14": (
        "update cursor set floor = 15 where number = 9"
    ),
    "part -1 of cursor 9 is counted up to 15, and the log's last id is 14": (
        "update cursor set counted_id = 15 where number = 9"
    ),
    "part -1 of cursor 9 has a range from 14 to 15, and the log's last id is 14": (
        "insert into cursor_range values (9, -1, 14, 15)"
    ),
    "part -1 of cursor 1 has a range from 4, and the one before it goes to 5": (
        "update cursor_range set last = 5 where number = 1 and first = 2"
    ),
    "part -1 of cursor 9 has a range from 2, below its floor 3": "insert into cursor_range values (9, -1, 2, 9)",
    "1 ranges are of part -1 of cursor 8, which does not exist": "insert into cursor_range values (8, -1, 2, 9)",
    "cursor 9 is neither an endpoint's nor a replay's, nor is it worked off": "update endpoint set replay = null",
    "cursor 1 is worked off, and is endpoint 1's (q)": "insert into garbage values (1, 1, 0)",
    "cursor 1 refers to message 77, which does not exist": "insert into reference values (1, 77)",
    "1 references are of cursor 8, which does not exist": "insert into reference values (8, 9)",
    "cursor 1 counts failed deliveries of message 77, which does not exist": "insert into attempt values (1, 77, 1)",
    "1 attempts are of cursor 8, which does not exist": "insert into attempt values (8, 3, 1)",
    "message 77 waits for its time by cursor 1, and does not exist": "insert into delayed values (1, 5, 77, 1, 0)",
    "1 messages wait for their time by cursor 8, which does not exist": "insert into delayed values (8, 5, 9, 1, 0)",
    "message 77 is a value of cursor 1, and does not exist": "insert into last_value values (1, 'k', 77, 1, null)",
    "1 values are of cursor 8, which does not exist": "insert into last_value values (8, 'k', 9, 1, null)",
    "1 rows of publishers' ids are of endpoint 77, which does not exist": "insert into dedup values (77, 1, 1, '')",
    "message 3 was delivered -1 times by cursor 1": "update attempt set count = -1",
    "number 9 is in use, and the next one to be given out is 9": "update log set next_number = 9",
    "number 9 is subscribed to b, and is no endpoint": "insert into subscription values (9, 'b')",
    "the largest content has 5 bytes, above the largest on record of 4": "update log set largest_bytes = 4",
    "1 rows of the index are of number 1, which indexes no property": "delete from indexed",
    f"message 14 arrived at {MADE_MS + 9} ms, after the log's last time {MADE_MS} ms, which holds up to 14": (
        f"update log set last_time = {MADE_MS}"
    ),
    "the log has 1 bytes on record up to 14, and holds 384": "update log set size_bytes = 1",
    "the log begins at 16, behind its end: its last id is 14": "update log set first_id = 16",
    "every cursor counts up to 15, behind the log's end: its last id is 14": "update log set counted_id = 15",
    "the log is archived up to 15, behind its end: its last id is 14": "update log set archived_id = 15",
    "point p stands at 16, behind the log's last id 14": "update point set position = 16",
    "message 3 is filed in segment 5 of the index instead of 0": "update property_value set segment = 5",
}
"""What is said of a damage, and the damage."""

OF_ENGINES: Final[Mapping[str, Mapping[str, str]]] = {
    "sqlite": {
        "message 3 is in the log, which begins at 4": "update log set first_id = 4",
        "message 1 is held by 3 endpoints on record, and 2 need it": "update message set held = 3 where id = 1",
        # Its log's row holds up to its last id: what was published since says the rest by itself.
        "the log has 384 bytes on record up to 13, and holds 338": "update log set last_id = 13",
    },
    "postgresql": {
        "message 14 is above the log's last id 13": "update log set last_id = 13",
        "message 5 is in the log, and is held by 2 endpoints as if it were not": (
            "insert into message (id, time, checksum, route, bare, topic, content) "
            "select id, time, checksum, route, bare, topic, content from held_message where id = 5"
        ),
        "message 1 is held by 3 endpoints on record, and 2 need it": (
            "update held_message set held = 3 where id = 1"
        ),
    },
}


def test_each_damage_is_found_and_each_promise_is_tested(
    adapter: Adapter, new_vpn: Callable[[], StoredVpn]
) -> None:
    """Each planted damage is named, with the rows it is about; for each promise there is one that breaks it."""
    told: list[str] = []
    for expected, damage in {**DAMAGES, **OF_ENGINES[adapter.name]}.items():
        vpn = new_vpn()
        make_sound(vpn)
        vpn.execute(damage)
        found = vpn.check()
        assert any(sentence.startswith(expected) for sentence in found), (expected, found)
        told += found
    for promise in vpn.promises:
        pattern = re.compile(re.sub(r"\\\{\d?\\\}", ".+", re.escape(promise.broken)))
        assert any(map(pattern.fullmatch, told)), promise.broken


def test_much_damage_is_counted_rather_than_listed(vpn: StoredVpn) -> None:
    """A thousand broken rows give a few examples and a number."""
    make_sound(vpn)
    vpn.execute(*(f"insert into subscription values (9, 't/{k}')" for k in range(1_000)))
    found = vpn.check()
    assert len(found) == MOST_EXAMPLES + 1
    assert found[-1] == f"… and {1_000 - MOST_EXAMPLES} more like that"
