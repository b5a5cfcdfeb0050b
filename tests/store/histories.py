"""Histories: effects a broker could have given out, batch by batch, made by Hypothesis.

A batch refers only to messages of earlier batches, as commands do: nobody settles what was not yet told to be there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import repeat

from hypothesis import strategies as st

from amqp_ext.message.priority import priorities_of
from gateway.core.effects import (
    AddReferences,
    CountAttempts,
    DeleteEndpoint,
    DeletePoint,
    DeleteSubscription,
    DropReplayed,
    Effect,
    Publication,
    Ranked,
    RemoveInTransaction,
    RemoveReferences,
    RenumberEndpoint,
    SaveArchived,
    SaveEndpoint,
    SavePoint,
    SaveReplay,
    SaveSubscription,
    TrimLog,
)
from gateway.core.log.point import Point
from gateway.core.replay.states import Replay, ReplayState
from tests.store.vpn_file import MADE_MS, empty_model
from tests.support.naive_store import NaiveStore

TOPICS = ("a", "a/b", "#queue/q", "ä/€", "x//")
NAMES = ("q", "r", "s", "t")
PATTERNS = ("a/>", "*", "ä/€")

# Around what statements are cut by: eight for a run, powers of two up to 256 for an insert.
_counts = st.sampled_from([1, 1, 2, 3, 7, 8, 9, 10, 33, 255, 256, 257, 300])
_headers = [bytes.fromhex("005370c004024050") + bytes((priority,)) for priority in (0, 9, 20)]
_contents = st.sampled_from([b"", b"\0", b"content", b"\xff" * 40, b"0123456789" * 60, *_headers])
_settings = st.sampled_from(['{"quota": 1}', "{}", '{"priorities": true}'])
_replays = st.one_of(
    st.none(),
    st.builds(
        Replay,
        position=st.sampled_from([1, 7, 300]),
        state=st.sampled_from([ReplayState.ACTIVE, ReplayState.COMPLETE]),
    ).map(Replay.to_json),
    st.builds(
        Replay,
        position=st.just(300),
        state=st.sampled_from([ReplayState.ACTIVE, ReplayState.PENDING_COMPLETE]),
        live_from=st.sampled_from([7, 300]),
    ).map(Replay.to_json),
)


def publication(
    first: int,
    contents: Sequence[bytes],
    *,
    topic: str = "a",
    endpoints: tuple[int, ...] = (),
    logged: bool = True,
    time_ms: int,
    bares: Sequence[int] | None = None,
    ranked: tuple[int, ...] = (),
) -> Publication:
    """Messages as the broker would publish them, with ids from `first` on; `ranked` endpoints go by priority."""
    rows = list(
        zip(
            range(first, first + len(contents)),
            repeat(time_ms),
            repeat(topic),
            bares or repeat(0),
            repeat(None if logged else len(endpoints)),
            contents,
            strict=False,
        )
    )
    by_priority = Ranked(ranked, priorities_of(contents, bares or repeat(0))) if ranked else None
    return Publication(rows, topic, endpoints, logged, sum(map(len, contents)), None, by_priority)


@st.composite
def histories(draw: st.DrawFn, max_batches: int = 10) -> list[list[Effect]]:
    """Batches of effects, valid one after the other on an empty file; the first makes two queues."""
    model = empty_model()
    made: list[Effect] = [
        SaveEndpoint(1, "q", "queue", "{}", None),
        SaveEndpoint(2, "r", "queue", '{"priorities": true}', None),
    ]
    for effect in made:
        model.apply(effect)
    return [made, *[_batch(draw, model) for _ in range(draw(st.integers(1, max_batches)))]]


def _batch(draw: st.DrawFn, model: NaiveStore) -> list[Effect]:
    before, end = set(model.messages), model.last_id + 1
    if draw(st.integers(0, 3)) == 0:
        return _transaction(draw, model, before)
    effects: list[Effect] = []
    for _ in range(draw(st.integers(1, 4))):
        effect = _effect(draw, model, before, end)
        if effect is not None:
            model.apply(effect)
            effects.append(effect)
    return effects


def _transaction(draw: st.DrawFn, model: NaiveStore, before: set[int]) -> list[Effect]:
    """What a client did in one: publications of several topics, and acknowledgements on several endpoints."""
    effects: list[Effect] = []
    numbers = sorted(model.endpoints)
    for _ in range(draw(st.integers(0, 3))):
        effects.append(_publish(draw, model, numbers))
        model.apply(effects[-1])
    for number in numbers:
        ids = sorted(_some(draw, [i for i in model.on(number) if i in before]))
        if ids and draw(st.booleans()):
            effects.append(RemoveInTransaction(number, ids, model.size_of(ids)))
            model.apply(effects[-1])
    return effects


def _effect(draw: st.DrawFn, model: NaiveStore, before: set[int], end: int) -> Effect | None:
    numbers = sorted(model.endpoints)
    kind = draw(
        st.sampled_from(
            [*["publish", "settle"] * 3, *["replay", "other"] * 2, "trim", "archived", "attempts", "define"]
        )
    )
    if kind == "publish":
        return _publish(draw, model, numbers)
    if kind == "trim":
        stop = draw(st.integers(model.first_id, end))
        return TrimLog(model.first_id, stop) if stop > model.first_id else None
    if kind == "archived":
        return SaveArchived(draw(st.integers(0, end - 1)))
    if kind == "define" or not numbers:
        free = [name for name in NAMES if name not in {e.definition.name for e in model.endpoints.values()}]
        if not free:
            return None
        return SaveEndpoint(model.next_number, draw(st.sampled_from(free)), "queue", draw(_settings), None)
    number = draw(st.sampled_from(numbers))
    lies_on = [i for i in model.on(number) if i in before]
    if kind == "settle":
        ids = _some(draw, lies_on)
        return RemoveReferences(number, ids, model.size_of(ids)) if ids else None
    if kind == "replay":
        free_ids = [
            i
            for i in sorted(before & set(model.messages))
            if model.messages[i][4] is None and i not in lies_on
        ]
        ids = sorted(_some(draw, free_ids))
        return added(model, number, ids, draw(_replays)) if ids else None
    if kind == "attempts":
        ids = _some(draw, lies_on)[:5]
        return CountAttempts(number, [(i, draw(st.integers(0, 9))) for i in ids]) if ids else None
    return _definition(draw, model, number, end)


def _publish(draw: st.DrawFn, model: NaiveStore, numbers: list[int]) -> Publication:
    endpoints = draw(st.sampled_from([tuple(numbers), tuple(numbers[:1]), tuple(numbers[-1:]), ()]))
    logged = draw(st.booleans()) or not endpoints
    count = draw(_counts)
    contents = draw(st.lists(_contents, min_size=1, max_size=3))
    mixed = draw(st.booleans())
    published = [contents[k % len(contents)] for k in range(count)]
    ranked = [number for number in endpoints if is_ranked(model.endpoints[number].definition)]
    return publication(
        model.last_id + 1 + draw(st.sampled_from([0, 0, 0, 5])),  # a failed commit leaves a hole
        published,
        topic=draw(st.sampled_from(TOPICS)),
        endpoints=endpoints,
        logged=logged,
        time_ms=model.last_time_ms + draw(st.sampled_from([0, 0, 1, 1_000])),
        bares=[min(k % 3, len(content)) if mixed else 0 for k, content in enumerate(published)],
        ranked=tuple(ranked),
    )


def is_ranked(endpoint: SaveEndpoint) -> bool:
    """Whether an endpoint delivers by priority."""
    return bool(json.loads(endpoint.settings).get("priorities"))


def added(model: NaiveStore, number: int, ids: list[int], replay: str | None) -> AddReferences:
    """Messages put on an endpoint by a replay."""
    rows = [model.messages[i] for i in ids]
    priorities = priorities_of([row[5] for row in rows], [row[3] for row in rows])
    ranked = priorities if is_ranked(model.endpoints[number].definition) else None
    return AddReferences(number, ids, model.size_of(ids), replay, ranked)


def _definition(draw: st.DrawFn, model: NaiveStore, number: int, end: int) -> Effect:
    found = model.endpoints[number].definition
    pattern, replay = draw(st.sampled_from(PATTERNS)), draw(_replays)
    cut = draw(st.sampled_from([0, 1, 20]))
    changed = json.dumps({**json.loads(found.settings), "changed": True})
    return draw(
        st.sampled_from(
            [
                SaveEndpoint(number, found.name, "queue", changed, found.replay),
                SaveReplay(number, replay),
                RenumberEndpoint(number, model.next_number, replay),
                DropReplayed(number, end - cut, replay),
                DeleteEndpoint(number),
                SaveSubscription(number, pattern),
                DeleteSubscription(number, pattern),
                SavePoint(Point(found.name, model.last_id + 1, MADE_MS, MADE_MS)),
                DeletePoint(found.name),
            ]
        )
    )


def _some(draw: st.DrawFn, ids: list[int]) -> list[int]:
    """Some of them, in the order a consumer may settle them: all, a run, every other one, backwards."""
    if not ids:
        return []
    start = draw(st.integers(0, len(ids) - 1))
    stop = draw(st.integers(start + 1, len(ids)))
    return ids[start : stop : draw(st.sampled_from([1, 1, 2]))][:: draw(st.sampled_from([1, 1, -1]))]
