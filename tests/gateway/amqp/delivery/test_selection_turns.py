"""Selectors keep the loop for so long in one of its turns, whoever asks them, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from amqp_ext.message.sections import MessageView
from gateway.core.replay import reading
from gateway.vpn.runtime import Runtime, SystemClock
from gateway.vpn.turns import SelectionTurns
from tests.gateway.amqp.conftest import Connect, Start
from tests.gateway.core.machines.step_loop import StepLoop
from tests.support.client import SELECTOR, browsing, numbered, texts
from tests.support.messages import selectable

MESSAGES = 300


class SlowClock(SystemClock):
    """A clock that goes on when a selector is asked, and then by more than a turn may last."""

    def __init__(self) -> None:
        self.now = 100.0

    def seconds(self) -> float:  # type: ignore[override]
        return self.now


@pytest.fixture
def asked(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many messages selectors were asked of, by turns of the loop; each of them is slow."""
    clock = given["clock"] = SlowClock()
    asked: Counter[int] = Counter()
    turn = 0

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(next_turn)

    class SlowView(MessageView):
        def __init__(self, content: bytes, bare: int) -> None:
            if not turn:
                next_turn()
            clock.now += 1.0
            asked[turn] += 1
            super().__init__(content, bare)

    monkeypatch.setattr(reading, "MessageView", SlowView)
    return asked


def test_a_slow_selector_is_asked_once_in_a_turn(start: Start, connect: Connect, asked: Counter[int]) -> None:
    """A consumer, a log reader and a browser each get all that is theirs, in order; together they take turns."""
    gateway = start()
    client = connect(gateway)
    client.sender("orders").send_all(selectable(i) for i in range(MESSAGES))
    options: dict[str, Any] = {"filters": {SELECTOR: "n >= 100"}, "credit": MESSAGES}
    reader = client.receiver("log://>?replay-start=beginning", **options)
    viewer = client.receiver("orders", set_up=browsing, **options)
    consumer = client.receiver("orders", **options)
    for link in (reader, viewer, consumer):
        assert texts(link.take(200)) == numbered(100, MESSAGES)
    assert asked.total() >= 3 * MESSAGES
    # One begins before the time is over, and one may begin in the turn before it is known.
    assert max(asked.values()) <= 2


def test_feeds_take_turns() -> None:
    """Of many feeds that each use up a turn, each gets one before any gets two."""
    loop, clock = StepLoop(), SlowClock()
    turns = SelectionTurns(Runtime(loop, None, clock))
    ran: list[str] = []

    def feed(name: str) -> None:
        if turns.is_over():
            turns.wait(lambda: feed(name))
            return
        ran.append(name)
        clock.now += 1.0
        if len(ran) < 12:
            turns.wait(lambda: feed(name))

    with loop.running():
        for name in "abcd":
            feed(name)
    loop.run()
    # The first one had a turn before the others came.
    assert ran[0] == "a"
    assert [sorted(ran[i : i + 4]) for i in (1, 5)] == [list("abcd")] * 2


def test_what_takes_too_long_is_told_once_for_each_link(start: Start, connect: Connect) -> None:
    """Messages of which a selector is unknown stay where they are; the log says so once, with the link's name."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    client = connect(start())
    client.sender("orders").send_all(selectable(i, x="ab" * 150_000) for i in range(3))
    client.sender("orders").send_all([selectable(3, x="acb")])
    with capture_logs() as lines:
        consumer = client.receiver("orders", filters={SELECTOR: "x LIKE '%a_b%'"}, credit=10)
        assert texts(consumer.take(1)) == ["3"]
    told = [line for line in lines if line["event"] == "selection_too_costly"]
    assert [line["first"] for line in told] == [1]
    assert told[0]["link"] == consumer.link.name
