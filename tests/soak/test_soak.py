"""A short soak run accounts for everything; an account finds planted faults; known curves get the right verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench.processes import LoadFailed
from tests.soak import keys
from tests.soak.__main__ import Soak
from tests.soak.account import Account, Consumption, Delivery
from tests.soak.curves import CURVES, LEAST_SAMPLES, Curve, verdict


def batch(*numbers: int, count: int = 0) -> list[Delivery]:
    """Deliveries with this delivery count; a message's id is ten times its number."""
    return [Delivery(0, number, 10 * number, "", count) for number in numbers]


def take(consumer: Consumption, *numbers: int, count: int = 0) -> None:
    """A life in which these messages are delivered and acknowledged."""
    consumer.begun()
    consumer.delivered(batch(*numbers, count=count))
    consumer.acknowledged(batch(*numbers))


Step = tuple[Any, ...]


def account_of(*steps: Step) -> Account:
    """The account after steps of its publisher and its consumer; ``see`` is a delivery without acknowledgement."""
    account = Account("q")
    consumer = account.consumer()
    for what, *numbers in steps:
        match what:
            case "take" | "redelivered":
                take(consumer, *numbers, count=int(what == "redelivered"))
            case "see":
                consumer.begun()
                consumer.delivered(batch(numbers[0], count=numbers[1]))
            case "replay":
                consumer.rewound(10 * numbers[0])
                consumer.delivered(batch(*numbers[1:]))
                consumer.acknowledged(batch(*numbers[1:]))
            case "close" | "reset":
                consumer.ended(reset=what == "reset")
            case _:
                getattr(account, what)(*numbers)
    return account


ACCEPTED: Step = ("accepted", 0, 4)
CLOSE, RESET = ("close",), ("reset",)


@pytest.mark.parametrize(
    ("steps", "lost", "faults"),
    [
        # All messages came once and in order.
        ([ACCEPTED, ("take", 0, 1, 2, 3, 4), CLOSE], [], []),
        # One message never came.
        ([ACCEPTED, ("take", 0, 1, 2, 4), CLOSE], [3], []),
        # A consumer's death does not settle a message: it must come again.
        ([("accepted", 0, 0), ("see", 0, 0), RESET], [0], []),
        # The consumer may get a message before its publisher hears of it.
        ([("take", 0, 1), CLOSE, ("accepted", 0, 1)], [], []),
        # A publisher died before it heard of some messages: they may come or not.
        ([("in_doubt", 0, 1), ("take", 1), CLOSE], [], []),
        # A lower number, and so a lower id, after a higher one on one link.
        (
            [("accepted", 0, 2), ("take", 0, 2, 1), CLOSE],
            [],
            ["q: 1 (id 10) came after 2 (id 20) on one link"],
        ),
        # A redelivery has a delivery-count; one above the deliveries that were seen is allowed, one below is a fault.
        (
            [("accepted", 0, 0), ("see", 0, 0), RESET, ("see", 0, 2), RESET, ("see", 0, 1), RESET],
            [0],
            ["q: 0 was delivered 2 times before, its header says 1"],
        ),
        # After a reset an acknowledged message may come again, with a delivery-count; after a clean close it may not.
        ([("accepted", 0, 1), ("take", 0, 1), RESET, ("redelivered", 1)], [], []),
        (
            [("accepted", 0, 1), ("take", 0, 1), CLOSE, ("redelivered", 1)],
            [],
            ["q: 1 came again after it was acknowledged"],
        ),
        # Redeliveries come first: one that is passed over has been consumed, and is a fault if it comes later.
        (
            [("accepted", 0, 2), ("take", 0, 1), RESET, ("take", 2), RESET, ("redelivered", 1)],
            [],
            ["q: 1 came again after it was acknowledged"],
        ),
        # Messages that a rewound queue replays count as new; those that it does not replay are lost.
        ([ACCEPTED, ("take", 0, 1, 2, 3, 4), RESET, ("replay", 1, 2, 4)], [3], []),
        # A rejected message must not be delivered, before or after its publisher hears of it.
        (
            [("rejected", 0), ("take", 0), CLOSE],
            [],
            ["q: 0 was rejected, and delivered", "q: 0 came again after it was acknowledged"],
        ),
        ([("take", 0), CLOSE, ("rejected", 0)], [], ["q: 0 was delivered, and rejected"]),
    ],
)
def test_an_account_tells_what_is_owed_and_what_is_wrong(
    steps: list[Step], lost: list[int], faults: list[str]
) -> None:
    """An account reports everything that no gateway may do, and nothing that a gateway may do."""
    account = account_of(*steps)
    assert (account.lost(), account.faults) == (lost, faults)


BOUND = Curve("resident_bytes", "memory", share=0.1, allowance=5)


@pytest.mark.parametrize(
    ("curve", "is_flat"),
    [
        ([100.0] * 40, True),
        ([0.0] * 10 + [100.0] * 30, True),
        ([100.0 + n for n in range(40)], False),
        ([90.0, 110.0] * 20, True),
        ([100.0] * 30 + [114.0] * 10, True),
        ([100.0] * 30 + [116.0] * 10, False),
        ([100.0] * 40 + [1000.0], False),
    ],
    ids=[
        "level",
        "filled at first",
        "rising",
        "a saw",
        "within the bound",
        "past the bound",
        "a jump at the end",
    ],
)
def test_the_last_quarter_is_held_against_the_second(curve: list[float], is_flat: bool) -> None:
    """A run's first quarter does not count; its last quarter is compared with the second."""
    assert verdict(BOUND, curve).is_flat is is_flat


def test_too_few_samples_are_no_verdict() -> None:
    """A run that is too short is not called flat."""
    with pytest.raises(ValueError, match="say nothing"):
        verdict(BOUND, [1.0] * (LEAST_SAMPLES - 1))


@pytest.mark.system
@pytest.mark.slow
def test_a_short_run_accounts_for_everything(tmp_path: Path) -> None:
    """All kinds of clients have done something, nothing is lost, and the folder has samples, summary and picture."""
    soak = Soak(tmp_path / "soak", queues=3, rate=200, sample_seconds=1)
    try:
        soak.last(8)
        is_well = soak.write()
    finally:
        if soak.gateway.is_running:
            soak.gateway.kill()
    assert soak.run.faults() == []
    assert is_well or len(soak.samples) >= 8
    assert all(account.accepted_count for account in soak.run.accounts)
    done = ("deaths", "read", "purges", "queues_made", "reloads", "scrapes", "subscriptions", "transactions")
    assert {name for name in done if not soak.run.counts.get(name)} == set()
    assert len((tmp_path / "soak" / "samples.jsonl").read_text().splitlines()) == len(soak.samples)
    assert (tmp_path / "soak" / "curves.svg").read_text().count("<polyline") == len(CURVES)


Coming = tuple[str, *tuple[int, ...]]


@pytest.mark.parametrize(
    ("steps", "fault"),
    [
        # Three groups: place 0 of each, then place 1 of the first, an acceptance by another consumer, a death.
        ([("a", 0, 1, 2, 3), ("accept a", 4), ("b", 6, 4)], ""),
        ([("a", 0, 3), ("die a",), ("b", 0, 3)], ""),
        ([("a", 0, 3), ("accept a", 1), ("die a",), ("b", 3, 6)], ""),
        ([("a", 0, 3), ("accept a", 2), ("die a",), ("b", 3, 6)], ""),
        ([("a", 0), ("b", 3)], "two consumers"),
        ([("a", 3)], "was the last before"),
        ([("a", 0, 3), ("die a",), ("b", 3)], "was the last before"),
        ([("a", 0, 3, 0)], "came behind"),
    ],
)
def test_what_is_wrong_with_the_order_by_key_is_found(steps: list[Coming], fault: str) -> None:
    """Faults: a message that is skipped, comes late, or goes to a second consumer. A redelivery is no fault."""
    found, crew = keys.Keys(3, 3), {name: keys.Holder() for name in "ab"}
    try:
        for what, *numbers in steps:
            member = crew[what[-1]]
            if what.startswith("accept"):
                found.accepted([member.held.popleft() for _ in range(numbers[0])])
            elif what.startswith("die"):
                found.died(member)
            else:
                for number in numbers:
                    found.came(member, number)
    except LoadFailed as failed:
        assert fault and fault in str(failed)
    else:
        assert not fault


@pytest.mark.system
@pytest.mark.slow
def test_order_by_key_holds_through_deaths(tmp_path: Path) -> None:
    """A short run: groups and partitions, consumed and replayed, by consumers that die; the gateway is killed, too."""
    soak = keys.Soak(tmp_path / "soak", groups=150, each=8, crew=8)
    try:
        for number in range(3):
            soak.round(list(keys.QUEUES)[number % 2], is_replayed=number > 1)
    finally:
        soak.close()
    assert soak.deaths > 4 and soak.again
