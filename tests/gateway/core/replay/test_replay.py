"""The pace of a replay, with a clock of the test's own."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.effects import DropReplayRecords, SaveReplayRecord
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import COPY, ENDPOINT, ReplayRecord, Row
from gateway.core.replay.reading import CATCH_UP_MS, SHORTEST_WAIT_MS, Pacer
from gateway.core.replay.records import ReplayRecords
from gateway.core.replay.states import (
    TRANSITIONS,
    Replay,
    ReplayEvent,
    ReplayState,
    ReplayTotals,
    state_diagram,
)

# --- The pace of a replay, with a clock of the test's own -----------------------------------------------------------


def rows(*times_ms: int) -> list[Row]:
    return [(number, time_ms, "a", 0, 0, None, b"") for number, time_ms in enumerate(times_ms, 1)]


def test_a_rate_lets_so_many_go_in_a_second() -> None:
    """At 10 messages a second one goes every 100 ms, however they lay in the log."""
    pacer, log = Pacer(None, 10.0), rows(*[0] * 100)
    sent = 0
    for now_ms in range(1_000_000, 1_002_000, 10):
        sent += pacer.due(log[sent:], now_ms)
    assert sent == 20


@pytest.mark.parametrize("rate", [1.0, 90.0, 1_000.0, 20_000.0, 1e6])
@pytest.mark.parametrize("pause_ms", [SHORTEST_WAIT_MS, 30, CATCH_UP_MS - 20])
def test_a_rate_is_kept_up_however_seldom_one_asks(rate: float, pause_ms: int) -> None:
    """A gateway that is busy, and commits that take their time, are made up for."""
    pacer, log = Pacer(None, rate), rows(*[0] * int(rate))
    asked = range(1_000_000, 1_002_000, pause_ms)
    sent = sum(pacer.due(log, now_ms) for now_ms in asked)
    assert abs(sent - rate * (asked[-1] - asked[0]) / 1_000) <= 1


def test_time_not_used_is_not_saved_up() -> None:
    """After a pause, and at the beginning, there is no burst."""
    pacer, log = Pacer(None, 10.0), rows(*[0] * 100)
    assert pacer.due(log, 1_000_000) == 1
    assert pacer.due(log, 1_060_000) == 1
    pacer, log = Pacer(None, 2_000.0), rows(*[0] * 1_000)
    assert pacer.due(log, 1_000_000) == 1
    assert pacer.due(log, 1_060_000) == 2_000 * CATCH_UP_MS / 1_000


@given(
    st.lists(st.integers(0, 400), min_size=1, max_size=60),
    st.floats(0.5, 5_000),
    st.sampled_from([0, CATCH_UP_MS, 1_000]),
)
def test_no_second_has_more_than_the_rate_and_what_is_made_up_for(
    pauses_ms: list[int], rate: float, catch_up_ms: int
) -> None:
    pacer, log = Pacer(None, rate, catch_up_ms), rows(*[0] * 10_000)
    asked = [1_000_000 + passed for passed in accumulate(pauses_ms)]
    sent = [pacer.due(log, now_ms) for now_ms in asked]
    for first, began_ms in enumerate(asked):
        within = sum(
            count
            for now_ms, count in zip(asked[first:], sent[first:], strict=True)
            if now_ms < began_ms + 1_000
        )
        assert within <= rate * (1_000 + catch_up_ms) / 1_000 + 2


def test_what_is_not_due_is_asked_for_again_when_it_is() -> None:
    """Not for each message by itself, where many go in a moment."""
    pacer, log = Pacer(None, 10.0), rows(0, 0)
    assert pacer.due(log, 1_000_000) == 1
    assert pacer.wait_s(log[1], 1_000_040) == pytest.approx(0.06)
    pacer = Pacer(None, 2_000.0)
    assert pacer.due(log, 1_000_000) == 1
    assert pacer.wait_s(log[1], 1_000_000) == SHORTEST_WAIT_MS / 1_000


def test_speed_keeps_the_distances_of_the_original() -> None:
    """At speed 10 a message published a minute after the first goes six seconds after it."""
    pacer, log = Pacer(10.0, None), rows(500_000, 500_000, 560_000)
    assert pacer.due(log, 9_000_000) == 2
    assert pacer.due_ms(log[2], 9_000_000) == 9_006_000
    assert pacer.due(log[2:], 9_005_999) == 0
    assert pacer.due(log[2:], 9_006_000) == 1


def test_speed_and_rate_hold_together() -> None:
    """Both bounds apply: the later one decides."""
    pacer, log = Pacer(1.0, 2.0), rows(0, 0, 0)
    assert pacer.due(log, 1_000) == 1
    assert pacer.due(log[1:], 1_499) == 0
    assert pacer.due(log[1:], 1_500) == 1


# --- Records of replays ---------------------------------------------------------------------------------------------

NOW_MS = 1_700_000_000_123


def asked(name: str = "", kind: str = ENDPOINT, requester: str = "ops") -> ReplayRecord:
    return ReplayRecord(0, name, kind, requester, started_ms=NOW_MS)


def test_a_name_is_made_of_who_asked_and_when() -> None:
    """And is another for each, though they come in the same millisecond."""
    records = ReplayRecords()
    names = [records.begin(asked(requester="alice@c\n1"))[0].name for _ in range(3)]
    when = "2023-11-14T22:13:20.123Z"
    assert names == [f"alice@c?1 {when}", f"alice@c?1 {when} 2", f"alice@c?1 {when} 3"]
    long = records.begin(asked(requester="x" * 4_000))[0]
    assert len(long.name) <= 200


def test_a_name_is_taken_while_its_record_is_kept() -> None:
    """A second one is refused, and so is a name that cannot be read."""
    records = ReplayRecords()
    records.begin(asked("monday"))
    with pytest.raises(Refused) as taken:
        records.begin(asked("monday"))
    assert taken.value.code is ErrorCode.ALREADY_EXISTS
    for name in (" ", "a\n", "x" * 201):
        with pytest.raises(Refused) as bad:
            records.begin(asked(name))
        assert bad.value.code is ErrorCode.INVALID_FIELD
    assert len(records) == 1


def test_the_oldest_that_ended_go_past_the_bound() -> None:
    """What is under way stays, however old it is; what began later is not touched."""
    records = ReplayRecords(most=2)
    first, _ = records.begin(asked("first", COPY))
    second, effects = records.begin(asked("second"))
    assert effects == [SaveReplayRecord(second)]
    third, effects = records.begin(asked("third"))
    assert effects == [SaveReplayRecord(third)]
    ended = replace(second, state="complete", ended_ms=NOW_MS)
    assert records.put(ended) == [SaveReplayRecord(ended), DropReplayRecords((second.number,))]
    assert list(records) == [first, third]
    assert records.put(ended) == []
    with pytest.raises(Refused) as gone:
        records.get("second")
    assert gone.value.code is ErrorCode.NOT_FOUND


def test_numbers_go_on_after_a_start() -> None:
    """None is given twice, whatever order the store has them in."""
    records = ReplayRecords()
    records.restore([replace(asked("b"), number=9), replace(asked("a"), number=4)])
    assert [record.name for record in records] == ["a", "b"]
    assert records.begin(asked("c"))[0].number == 10


def test_a_record_comes_back_from_its_text() -> None:
    """With every field of its type."""
    record = ReplayRecord(1, "n", COPY, "u@c", subscriptions=("a", "b"), rate=1.5, outcome="\0\N{SNOWMAN}")
    assert ReplayRecord.from_json(record.to_json()) == record


# --- The states of an endpoint's replay -----------------------------------------------------------------------------

PAGE = Path(__file__).parents[4] / "docs" / "explanation" / "replay-states.md"


def test_the_documentation_shows_the_table() -> None:
    """The diagram in the documentation is what the table of transitions gives."""
    assert f"```mermaid\n{state_diagram()}\n```" in PAGE.read_text(encoding="utf-8")


def test_every_state_is_reached_and_left() -> None:
    """From never replayed, every state is reached; a replay can be asked for in each; two of them are ends."""
    reached = {ReplayState.NONE}
    while True:
        after = reached | {state for before in reached for state in TRANSITIONS[before].values()}
        if after == reached:
            break
        reached = after
    assert reached == set(ReplayState) == set(TRANSITIONS)
    assert {t[ReplayEvent.REQUESTED] for t in TRANSITIONS.values()} == {ReplayState.INITIALIZING}
    ends = {state for state, found in TRANSITIONS.items() if set(found) == {ReplayEvent.REQUESTED}}
    assert ends == {ReplayState.NONE, ReplayState.COMPLETE, ReplayState.FAILED}


@pytest.mark.parametrize("event", ReplayEvent)
@pytest.mark.parametrize("state", ReplayState)
def test_only_the_tables_moves_are_made(state: ReplayState, event: ReplayEvent) -> None:
    """A replay goes where the table says, and what the table does not say is a mistake in the program."""
    replay = Replay(1, state=state)
    if event in TRANSITIONS[state]:
        replay.move(event)
        assert replay.state is TRANSITIONS[state][event]
    else:
        with pytest.raises(AssertionError, match=state.value):
            replay.move(event)


def test_a_replay_is_kept_as_text() -> None:
    """What is stored of a replay is all there is of it; what an older version stored is still read."""
    replay = Replay(7, first=3, started_ms=5, live_from=9, put=4, acknowledged=1, end_id=8)
    replay.totals = ReplayTotals(started=2, failed=1, last_failure="it was cancelled")
    replay.move(ReplayEvent.REQUESTED)
    assert Replay.from_json(replay.to_json()) == replay
    old = (
        '{"position": 4, "state": "active", "started_ms": 1, "live_from": null, "put": 2, "acknowledged": 0}'
    )
    assert Replay.from_json(old) == Replay(4, state=ReplayState.ACTIVE, started_ms=1, put=2)


@pytest.mark.parametrize(
    ("state", "position", "live_from", "remaining", "eta_ms"),
    [
        (ReplayState.ACTIVE, 100, None, 900, 9_000),
        (ReplayState.ACTIVE, 100, 1_000, 900, 9_000),
        (ReplayState.ACTIVE, 0, None, 1_000, None),
        (ReplayState.ACTIVE, 1_000, 1_000, 0, None),
        (ReplayState.PENDING_COMPLETE, 1_000, 1_000, 0, None),
        (ReplayState.FAILED, 500, None, 0, None),
    ],
)
def test_progress(
    state: ReplayState, position: int, live_from: int | None, remaining: int, eta_ms: int | None
) -> None:
    """What is left is counted in ids of the log, and the time for it is reckoned from the pace so far."""
    replay = Replay(
        position, first=0, state=state, started_ms=2_000, live_from=live_from, put=5, acknowledged=2
    )
    progress = replay.progress(next_id=1_000, now_ms=3_000)
    outstanding = 0 if state is ReplayState.FAILED else 3
    assert progress == (position, remaining, outstanding, eta_ms)
