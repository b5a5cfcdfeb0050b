"""The states of an endpoint's replay: one table, what it says, and where it is shown."""

from pathlib import Path

import pytest

from gateway.core.replay.states import (
    TRANSITIONS,
    Replay,
    ReplayEvent,
    ReplayState,
    ReplayTotals,
    state_diagram,
)

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
