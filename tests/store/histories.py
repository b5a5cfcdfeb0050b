"""Histories made by Hypothesis: the effects that a broker could have committed, batch by batch.

A batch refers only to messages of earlier batches: no consumer settles a message before it is durable.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import strategies as st

from gateway.core.effects import (
    AddReferences,
    CancelDelayed,
    CountAttempts,
    CountedUpTo,
    DedupIds,
    DeletePoint,
    DeleteSubscription,
    DropCursor,
    DropReplayRecords,
    Effect,
    ForgetIds,
    HoldBack,
    KeepValues,
    MoveCursor,
    OpenCursor,
    ReleaseDelayed,
    SaveArchived,
    SaveEndpoint,
    SavePoint,
    SaveReplay,
    SaveReplayRecord,
    SaveSubscription,
    SettleInTransaction,
    Value,
)
from gateway.core.model import BARE, CONTENT, COPY, ID, WHOLE, Point, ReplayRecord
from store.cursors import by_priority
from tests.store.effects import (
    BY_PRIORITY,
    applied,
    counted,
    delayed,
    deletion,
    erasing,
    keeping,
    publication,
    purge,
    queue,
    settled,
    trimming,
    trimming_topics,
    waiting,
)
from tests.store.vpn_file import MADE_MS, empty_model
from tests.support.naive_store import NaiveStore

TOPICS = ("a", "a/b", "#queue/q", "ä/€", "x//")
NAMES = ("q", "r", "s", "t")
PATTERNS = ("a/>", "*", "ä/€")
VIEW = "last-value"
KEYS = [bytes([k]) * 32 for k in range(6)]
KINDS = (
    *["publish", "settle"] * 4,
    "forget ids",
    *["replay", "other", "trim", "rule", "purge", "delay", "release", "hold back"] * 2,
    "cancel",
    *["values"] * 3,
    *["erase"] * 2,
    "archived",
    "attempts",
    "define",
    "count",
    "refer",
)

# Around the sizes by which statements are split: eight for a run of ids, powers of two up to 256 for an insert.
_counts = st.sampled_from([1, 1, 2, 3, 7, 8, 9, 10, 33, 255, 256, 257, 300])
_headers = [bytes.fromhex("005370c004024050") + bytes((priority,)) for priority in (0, 9, 20)]
_contents = st.sampled_from([b"", b"\0", b"content", b"\xff" * 40, b"0123456789" * 60, *_headers])
_settings = st.sampled_from(['{"quota_messages": 1}', "{}", BY_PRIORITY])


@st.composite
def histories(draw: st.DrawFn, max_batches: int = 10) -> list[list[Effect]]:
    """Batches of effects, valid in this order on an empty file; the first creates two queues and a last-value queue."""
    model = empty_model()
    made = [*queue(1, "q"), *queue(2, "r", settings=BY_PRIORITY), *queue(3, "v", kind=VIEW)]
    applied(model, made)
    return [made, *[_batch(draw, model) for _ in range(draw(st.integers(1, max_batches)))]]


def _batch(draw: st.DrawFn, model: NaiveStore) -> list[Effect]:
    before, end = set(model.messages), model.last_id + 1
    if draw(st.integers(0, 3)) == 0:
        return _transaction(draw, model, before)
    effects: list[Effect] = []
    for _ in range(draw(st.integers(1, 4))):
        effects += applied(model, _step(draw, model, before & set(model.messages), end))
    return effects


def _transaction(draw: st.DrawFn, model: NaiveStore, before: set[int]) -> list[Effect]:
    """The effects of a client's transaction: publications on several topics, and settlements on several endpoints."""
    effects: list[Effect] = []
    numbers = _queues(model)
    for _ in range(draw(st.integers(0, 3))):
        effects += applied(model, [_publish(draw, model, numbers)])
    for number in numbers:
        ids = _some(draw, [i for i in model.on(number) if i in before])
        if ids and draw(st.booleans()):
            done = settled(model, number, ids, SettleInTransaction, is_joined=False)
            effects += applied(model, done)
    return effects


def _step(draw: st.DrawFn, model: NaiveStore, before: set[int], end: int) -> Sequence[Effect]:
    """The effects of one command; no effects where the command is impossible."""
    numbers = _queues(model)
    kind = draw(st.sampled_from(KINDS))
    if kind == "publish":
        return [_publish(draw, model, numbers)]
    if kind == "trim":
        stop = draw(st.integers(model.first_id, max(end, model.first_id)))
        return (
            [trimming(model, stop, _forced(draw, model, range(model.first_id, stop)))]
            if stop > model.first_id
            else []
        )
    if kind == "rule":
        ids = [i for i in sorted(model.messages) if i < end and model.is_logged(i)]
        chosen = sorted(_some(draw, ids))
        rule = draw(st.sampled_from(['["a/>"]', '["b", "\N{SNOWMAN}"]']))
        forced = _forced(draw, model, chosen)
        return [trimming_topics(model, rule, chosen, forced)] if chosen else []
    if kind == "erase":
        # Contents that are not valid messages have no header for the marker to keep.
        ids = _some(draw, [i for i in sorted(before) if not model.messages[i][BARE]])
        return erasing(model, ids, draw(st.sampled_from(["", "asked to"]))) if ids else []
    if kind == "values":
        return _values(draw, model, before)
    if kind == "archived":
        return [SaveArchived(draw(st.integers(0, end - 1)))]
    if kind == "count":
        up_to = draw(st.integers(0, end - 1))
        return [*(move for number in numbers for move in counted(model, number, up_to)), CountedUpTo(up_to)]
    if kind == "define" or not numbers:
        free = [name for name in NAMES if name not in {e.definition.name for e in model.endpoints.values()}]
        if not free or model.next_number > 45:
            return []
        name, floor = draw(st.sampled_from(free)), draw(st.sampled_from([model.last_id, model.last_id + 3]))
        number = model.next_number
        return queue(number, name, cursor=number + 1, settings=draw(_settings), floor=floor)
    number = draw(st.sampled_from(numbers))
    lying = [i for i in model.on(number) if i in before]
    if kind == "settle":
        up_to = draw(st.sampled_from([0, end - 1]))
        is_joined = draw(st.booleans())
        return settled(model, number, _some(draw, lying), counted_id=up_to, is_joined=is_joined)
    if kind == "hold back":
        ids = _some(draw, lying)
        moves = settled(model, number, ids, SettleInTransaction, is_joined=False)
        for move in moves:
            move.done = move.attempts = ()
        due = st.integers(model.last_time_ms + 1, model.last_time_ms + 5)
        entries = [(draw(due), i, len(model.messages[i][CONTENT])) for i in ids]
        cursor = model.endpoints[number].definition.cursor
        return [*moves, HoldBack(cursor, entries, draw(st.booleans()))] if ids else []
    if kind == "attempts":
        ids = _some(draw, lying)[:5]
        cursor = model.endpoints[number].definition.cursor
        return [CountAttempts(cursor, [(i, draw(st.integers(0, 9))) for i in ids])] if ids else []
    if kind == "refer":
        there = {*lying, *model.cursor_of(number).delayed}
        ids = sorted(_some(draw, [i for i in sorted(before) if model.is_logged(i) and i not in there]))
        return [AddReferences(model.endpoints[number].definition.cursor, ids)] if ids else []
    if kind == "delay":
        return [_delay(draw, model, number)]
    if kind in ("release", "cancel"):
        there = model.cursor_of(number).references
        entries = [found for found in waiting(model, number) if found[1] in before and found[1] not in there]
        entries = entries[: draw(st.integers(0, len(entries)))]
        end_of = ReleaseDelayed if kind == "release" else CancelDelayed
        return [end_of(model.endpoints[number].definition.cursor, entries)] if entries else []
    if kind == "purge":
        replay = _replay_of(model, number)
        gone = [SaveReplay(number, None), DropCursor(replay, 0, 0)] if replay else []
        if draw(st.booleans()):
            routed = {row[ID] for row in model.routed(number)} - model.cursor_of(number).references
            return [*gone, *keeping(model, number, _some(draw, [i for i in lying if i in routed]))]
        return [*gone, *draw(st.sampled_from([purge, purge, deletion]))(model, number)]
    if kind == "forget ids":
        window = model.endpoints[number].dedup
        if not draw(st.booleans()):
            return [ForgetIds(number)]
        return [
            ForgetIds(
                number, {first: ids[: draw(st.integers(0, len(ids)))] for first, (_, ids) in window.items()}
            )
        ]
    if kind == "replay":
        return _replay(draw, model, number)
    return [_definition(draw, model, number)]


def _forced(draw: st.DrawFn, model: NaiveStore, leaving: Sequence[int]) -> list[tuple[int, int]]:
    """References to messages that a force-completed replay had put, and that are about to leave the log."""
    found = []
    for number in _queues(model):
        endpoint, lying = model.endpoints[number], set(model.on(number))
        waits = model.cursors[endpoint.definition.cursor].delayed
        others = [i for i in leaving if model.is_logged(i) and i not in lying and i not in waits]
        if draw(st.integers(0, 3)) == 0:
            found += [(endpoint.definition.cursor, i) for i in _some(draw, others)[:3]]
    return found


def _publish(draw: st.DrawFn, model: NaiveStore, numbers: list[int]) -> Effect:
    endpoints = draw(st.sampled_from([tuple(numbers), tuple(numbers[:1]), tuple(numbers[-1:]), ()]))
    floors = {e.parts[k].floor for e in map(model.cursor_of, endpoints) for k in e.parts}
    logged = draw(st.booleans()) or not endpoints
    count = draw(_counts)
    contents = draw(st.lists(_contents, min_size=1, max_size=3))
    mixed = draw(st.booleans())
    published = [contents[k % len(contents)] for k in range(count)]
    hole = draw(st.sampled_from([0, 0, 0, 5]))  # a failed commit leaves one
    found = publication(
        max([model.last_id, *floors]) + 1 + hole,
        published,
        topic=draw(st.sampled_from(TOPICS)),
        endpoints=endpoints,
        logged=logged,
        time_ms=model.last_time_ms + draw(st.sampled_from([0, 0, 1, 1_000])),
        bares=[_bare(k, content) if mixed else 0 for k, content in enumerate(published)],
        ranked=any(by_priority(model.endpoints[number].definition.settings) for number in endpoints),
    )
    if endpoints and draw(st.booleans()):
        ids = [b"\x80" + bytes(8), b"\xa1\x01a", b"\xa0\x00", b"\x98" + bytes(16), b"#" + bytes(16)]
        windows = {number: sorted(model.endpoints[number].dedup) for number in endpoints}
        found.dedup = DedupIds(
            draw(st.lists(st.sampled_from(ids), min_size=1, max_size=4)),
            {number: draw(st.sampled_from([0, *firsts])) for number, firsts in windows.items()},
        )
    return found


def _values(draw: st.DrawFn, model: NaiveStore, before: set[int]) -> Sequence[Effect]:
    """The index of a last-value queue is updated from the log, or the queue is purged or deleted."""
    views = sorted(set(model.endpoints) - set(_queues(model)))
    if not views:
        return []
    number = draw(st.sampled_from(views))
    what = draw(st.sampled_from(["keep"] * 8 + ["purge", "delete"]))
    if what != "keep":
        return (purge if what == "purge" else deletion)(model, number)
    cursor, there = model.endpoints[number].definition.cursor, model.cursor_of(number).values
    logged = [i for i in sorted(before) if model.is_logged(i)]
    newest = {
        KEYS[i % len(KEYS)]: (i, draw(st.sampled_from([None, None, 3, 7])))
        for i in sorted(_some(draw, logged))[-6:]
    }
    return [
        KeepValues(
            cursor,
            [
                Value(
                    key, i, draw(st.sampled_from([len(model.messages[i][CONTENT])] * 3 + [None])), expires_ms
                )
                for key, (i, expires_ms) in newest.items()
            ],
            [value.id for value in there.values() if draw(st.integers(0, 9)) == 0],
            first=1,
            position=draw(st.integers(1, model.last_id + 1)),
            now_ms=draw(st.sampled_from([0, 0, 3, 9])),
            most=draw(st.sampled_from([2, 100])),
            most_bytes=draw(st.sampled_from([0, 50])),
            messages=len(there),
            size_bytes=sum(value.size_bytes or 0 for value in there.values()),
        )
    ]


def _queues(model: NaiveStore) -> list[int]:
    """The endpoints that store messages: all but last-value queues."""
    return sorted(n for n, endpoint in model.endpoints.items() if endpoint.definition.kind != VIEW)


def _delay(draw: st.DrawFn, model: NaiveStore, number: int) -> Effect:
    endpoints = draw(st.sampled_from([(number,), tuple(_queues(model))]))
    floors = {e.parts[k].floor for e in map(model.cursor_of, endpoints) for k in e.parts}
    contents = draw(st.lists(_contents, min_size=1, max_size=9))
    due = st.integers(model.last_time_ms + 1, model.last_time_ms + 5)
    return delayed(
        model,
        max([model.last_id, *floors]) + 1,
        contents,
        [draw(due) for _ in contents],
        endpoints=endpoints,
        logged=draw(st.booleans()),
        time_ms=model.last_time_ms,
    )


def _bare(k: int, content: bytes) -> int:
    """The offset of the bare message: after the header if there is one, else an arbitrary one."""
    return len(content) if content in _headers else min(k % 3, len(content))


def _replay_of(model: NaiveStore, number: int) -> int:
    """The cursor of an endpoint's replay; 0 when there is none."""
    text = model.endpoints[number].definition.replay
    return int(json.loads(text)["cursor"]) if text else 0


def _replay(draw: st.DrawFn, model: NaiveStore, number: int) -> Sequence[Effect]:
    """Start an endpoint's replay; or settle some of its messages, or end it."""
    cursor = _replay_of(model, number)
    if not cursor:
        cursor, floor = model.next_number, draw(st.integers(0, model.last_id))
        return [OpenCursor(cursor, (WHOLE,), floor), SaveReplay(number, json.dumps({"cursor": cursor}))]
    part = model.cursors[cursor].parts[WHOLE]
    if draw(st.integers(0, 2)) == 0 or model.last_id <= part.floor + 1:
        return [SaveReplay(number, None), DropCursor(cursor, 0, 0)]
    floor = draw(st.integers(part.floor, model.last_id - 1))
    ranges: dict[int, int | None] = dict.fromkeys(part.ranges)
    ranges[draw(st.integers(floor + 1, model.last_id))] = model.last_id
    return [MoveCursor(cursor, WHOLE, floor, ranges, None, -draw(st.integers(0, 5)), 0)]


def _definition(draw: st.DrawFn, model: NaiveStore, number: int) -> Effect:
    found = model.endpoints[number].definition
    pattern = draw(st.sampled_from(PATTERNS))
    changed = json.dumps({**json.loads(found.settings), "quota_bytes": 77})
    return draw(
        st.sampled_from(
            [
                SaveEndpoint(number, found.cursor, found.name, "queue", changed, found.replay),
                SaveSubscription(number, pattern),
                DeleteSubscription(number, pattern),
                SavePoint(Point(found.name, model.last_id + draw(st.sampled_from([1, 4])), MADE_MS, MADE_MS)),
                DeletePoint(found.name),
                SaveReplayRecord(_record(draw, number)),
                DropReplayRecords((number, draw(st.integers(1, 9)))),
            ]
        )
    )


def _record(draw: st.DrawFn, number: int) -> ReplayRecord:
    """The record of a replay with the number of an endpoint; drawn again, it replaces the record, maybe renamed."""
    state = draw(st.sampled_from(["running", "complete"]))
    name = f"r{number}-{draw(st.sampled_from([state, 'again']))}"
    return ReplayRecord(
        number,
        name,
        COPY,
        "ops",
        start="beginning",
        until="10m",
        subscriptions=("a/>", "\N{SNOWMAN}"),
        selector="k = 'x'",
        target="#queue/q",
        rate=2.5,
        speed=1.0,
        state=state,
        position=17,
        read=16,
        sent=9,
        size_bytes=900,
        started_ms=5,
        outcome="\0",
    )


def _some(draw: st.DrawFn, ids: list[int]) -> list[int]:
    """Some of the ids, as a consumer may settle them: all, a run, or every other one, forwards or backwards."""
    if not ids:
        return []
    start = draw(st.integers(0, len(ids) - 1))
    stop = draw(st.integers(start + 1, len(ids)))
    return ids[start : stop : draw(st.sampled_from([1, 1, 2]))][:: draw(st.sampled_from([1, 1, -1]))]
