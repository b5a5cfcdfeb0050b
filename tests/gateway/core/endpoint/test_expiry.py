"""When messages expire: the header's ttl, the endpoint's, and history, which does not."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.endpoint.endpoint import NEVER_MS, Endpoint, expiries
from gateway.core.endpoint.settings import EndpointSettings
from gateway.core.model import Row
from gateway.core.replay.states import Replay, ReplayState
from tests.support.core import new_endpoint

ARRIVED_MS = 1_000
ID = 5


def endpoint(max_ttl_ms: int = 0, replay: Replay | None = None) -> Endpoint:
    settings = EndpointSettings(max_ttl_ms=max_ttl_ms)
    return new_endpoint(settings, replay=replay)


def message(ttl_ms: int | None) -> Row:
    """A message whose content is its ttl; without one it has no header."""
    return (
        ID,
        ARRIVED_MS,
        "t",
        0 if ttl_ms is None else 1,
        0,
        None,
        b"" if ttl_ms is None else b"%d" % ttl_ms,
    )


def ttl_of(content: bytes) -> int:
    return int(content)


@given(
    ttls=st.lists(st.none() | st.integers(1, 3), min_size=1, max_size=5),
    fresh_from=st.integers(1, 6),
    longest_ms=st.integers(0, 2),
)
@example(ttls=[None, 2], fresh_from=1, longest_ms=0)
@example(ttls=[2, 2], fresh_from=1, longest_ms=0)
@example(ttls=[1, 3], fresh_from=1, longest_ms=0)
def test_each_of_many_messages_expires_by_its_own_header(
    ttls: list[int | None], fresh_from: int, longest_ms: int
) -> None:
    """However alike their headers are."""
    rows = [(i, ARRIVED_MS, "t", *message(ttl)[3:]) for i, ttl in enumerate(ttls, 1)]
    found = expiries(rows, fresh_from, longest_ms, ttl_of)
    expected = {}
    for i, ttl in enumerate(ttls, 1):
        lives = [ms for ms in (ttl, longest_ms or None) if ms is not None]
        if lives and i >= fresh_from:
            expected[i] = ARRIVED_MS + min(lives)
    assert found == expected


TTL = st.none() | st.integers(0, 1_000)
REPLAYS = st.sampled_from(
    [
        None,
        Replay(ID, state=ReplayState.ACTIVE),
        Replay(ID, state=ReplayState.PENDING_COMPLETE, live_from=ID + 1),
        Replay(ID, state=ReplayState.COMPLETE, live_from=ID),
        Replay(ID, state=ReplayState.FAILED),
    ]
)


@given(ttl_ms=TTL, max_ttl_ms=st.integers(0, 1_000), after_ms=st.integers(0, 2_000), replay=REPLAYS)
@example(ttl_ms=None, max_ttl_ms=10, after_ms=11, replay=None)
@example(ttl_ms=10, max_ttl_ms=0, after_ms=10, replay=None)
def test_what_is_dead_has_expired(
    ttl_ms: int | None, max_ttl_ms: int, after_ms: int, replay: Replay | None
) -> None:
    """A message is dead for a delivery exactly when its time is over, whoever of header and endpoint says so."""
    lying = endpoint(max_ttl_ms, replay)
    row = message(ttl_ms)
    now_ms = ARRIVED_MS + after_ms
    is_over = lying.expires_ms(row, ttl_of) < now_ms
    assert lying.dead([row], now_ms, ttl_of) == ({ID: "expired"} if is_over else {})


@given(ttl_ms=TTL, max_ttl_ms=st.integers(1, 1_000))
def test_the_shorter_of_two_lives_counts(ttl_ms: int | None, max_ttl_ms: int) -> None:
    """No message outlives its endpoint's max_ttl_ms, with a header or without, and an earlier end stays one."""
    lives_ms = endpoint(max_ttl_ms).expires_ms(message(ttl_ms), ttl_of) - ARRIVED_MS
    assert lives_ms == min(max_ttl_ms, max_ttl_ms if ttl_ms is None else ttl_ms)


@given(ttl_ms=TTL)
def test_without_a_limit_the_header_decides(ttl_ms: int | None) -> None:
    """An endpoint without max_ttl_ms leaves it to the header; a message without ttl lives for ever."""
    expected = NEVER_MS if ttl_ms is None else ARRIVED_MS + ttl_ms
    assert endpoint().expires_ms(message(ttl_ms), ttl_of) == expected


@given(ttl_ms=TTL, max_ttl_ms=st.integers(0, 1_000))
def test_replayed_history_lives_for_ever(ttl_ms: int | None, max_ttl_ms: int) -> None:
    """What a replay has put was asked for, however old; the first live message after it expires again."""
    for replay in (
        Replay(ID, state=ReplayState.ACTIVE),
        Replay(ID, state=ReplayState.COMPLETE, live_from=ID + 1),
    ):
        assert endpoint(max_ttl_ms, replay).expires_ms(message(ttl_ms), ttl_of) == NEVER_MS
    live = Replay(ID, state=ReplayState.COMPLETE, live_from=ID)
    assert endpoint(50, live).expires_ms(message(None), ttl_of) == ARRIVED_MS + 50
