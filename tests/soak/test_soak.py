"""
A soak run of seconds accounts for everything; the account finds what is planted in it; verdicts on curves whose
growth is known.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.__main__ import Soak
from tests.soak.account import Account, Consumption, Delivery, Numbers
from tests.soak.curves import CURVES, LEAST_SAMPLES, Bound, verdict


def consumed(account: Account, *numbers: int, count: int = 0) -> Consumption:
    """A consumer that took these in one life, acknowledged them, and closed."""
    consumer = account.consumer()
    take(consumer, *numbers, count=count)
    consumer.ended(reset=False)
    return consumer


def batch(*numbers: int, count: int = 0) -> list[Delivery]:
    """Deliveries with this delivery count; the id of a message is ten times its number."""
    return [Delivery(0, number, 10 * number, "", count) for number in numbers]


def take(consumer: Consumption, *numbers: int, count: int = 0) -> None:
    """A life in which these are delivered and acknowledged."""
    consumer.begun()
    consumer.delivered(batch(*numbers, count=count))
    consumer.acknowledged(batch(*numbers))


def test_what_was_accepted_and_acknowledged_is_settled() -> None:
    """All came once and in order: nothing is owed, nothing is wrong."""
    account = Account("q")
    account.accepted(0, 9)
    consumed(account, *range(10))
    assert (account.lost(), account.faults) == ([], [])
    assert (account.accepted_count, account.received_count) == (10, 10)


def test_a_planted_loss_is_found() -> None:
    """One that never came is owed at the end."""
    account = Account("q")
    account.accepted(0, 9)
    consumed(account, *(n for n in range(10) if n != 6))
    assert account.lost() == [6]


def test_one_that_came_but_was_never_acknowledged_is_owed() -> None:
    """A consumer's death does not make a message delivered: it must come again."""
    account = Account("q")
    account.accepted(0, 0)
    consumer = account.consumer()
    consumer.begun()
    consumer.delivered(batch(0))
    consumer.ended(reset=True)
    assert account.lost() == [0]


def test_a_delivery_may_be_ahead_of_its_acceptance() -> None:
    """The consumer may hear of a message before its publisher does."""
    account = Account("q")
    consumed(account, 0, 1)
    account.accepted(0, 1)
    assert (account.lost(), account.faults) == ([], [])


def test_what_is_in_doubt_may_come_or_not() -> None:
    """A publisher that died never heard of some: neither is wrong."""
    account = Account("q")
    account.in_doubt(0, 1)
    consumed(account, 1)
    assert (account.lost(), account.faults) == ([], [])


def test_order_within_a_life_is_kept() -> None:
    """A lower number after a higher one on one link is a fault, and so is a lower id."""
    account = Account("q")
    account.accepted(0, 2)
    consumed(account, 0, 2, 1)
    assert account.faults == ["q: 1 (id 10) came after 2 (id 20) on one link"]


def test_a_redelivery_has_to_say_so() -> None:
    """What was delivered before comes with a delivery-count; more than was seen is allowed, less is a fault."""
    account = Account("q")
    account.accepted(0, 1)
    consumer = account.consumer()
    for count in (0, 2, 1):
        consumer.begun()
        consumer.delivered(batch(0, count=count))
        consumer.ended(reset=True)
    assert account.faults == ["q: 0 was delivered 2 times before, its header says 1"]


@pytest.mark.parametrize("reset", [True, False])
def test_an_acknowledgement_may_be_lost_with_its_connection_alone(reset: bool) -> None:
    """After a reset an acknowledged message may come again, with a count; after a clean close it may not."""
    account = Account("q")
    account.accepted(0, 1)
    consumer = account.consumer()
    take(consumer, 0, 1)
    consumer.ended(reset=reset)
    take(consumer, 1, count=1)
    assert bool(account.faults) is not reset
    assert account.lost() == []


def test_it_comes_again_at_once_or_not_at_all() -> None:
    """Redeliveries are at the front: one that was passed over has been taken off, and is a fault later."""
    account = Account("q")
    account.accepted(0, 2)
    consumer = account.consumer()
    take(consumer, 0, 1)
    consumer.ended(reset=True)
    take(consumer, 2)
    consumer.ended(reset=True)
    take(consumer, 1, count=1)
    assert account.faults == ["q: 1 came again after it was acknowledged"]


def test_a_replay_brings_everything_behind_its_start_again() -> None:
    """What a rewound queue does not bring is lost; what it brings is delivered as if for the first time."""
    account = Account("q")
    account.accepted(0, 4)
    consumer = account.consumer()
    take(consumer, *range(5))
    consumer.ended(reset=True)
    consumer.rewound(10)
    consumer.delivered(batch(2, 4))
    consumer.acknowledged(batch(2, 4))
    assert (account.lost(), account.faults) == ([3], [])


def test_a_rejected_message_is_nowhere() -> None:
    """Its delivery is a fault, whoever hears of it first."""
    account = Account("q")
    account.rejected(0)
    consumed(account, 0)
    assert "q: 0 was rejected, and delivered" in account.faults
    other = Account("r")
    consumed(other, 0)
    other.rejected(0)
    assert other.faults == ["r: 0 was delivered, and rejected"]


def test_two_consumers_with_selectors_share_an_account() -> None:
    """Each has an order of its own."""
    account = Account("q")
    account.accepted(0, 3)
    even, odd = account.consumer(), account.consumer()
    for consumer, numbers in ((even, (0, 2)), (odd, (1, 3))):
        take(consumer, *numbers)
    assert (account.lost(), account.faults) == ([], [])


def test_an_account_of_hours_keeps_what_is_open() -> None:
    """What is done and can not come again weighs nothing."""
    account = Account("q")
    consumer = account.consumer()
    for number in range(5_000):
        account.accepted(number, number)
        take(consumer, number)
        consumer.ended(reset=False)
    assert not account.owed and not account.deliveries and not account.early
    assert len(consumer.recent) == 1_000


def test_numbers_out_of_order() -> None:
    """A number is in the set from when it was added, whatever its order."""
    numbers = Numbers()
    for number in (2, 0, 3):
        numbers.add(number)
    assert [n for n in range(6) if n in numbers] == [0, 2, 3]


BOUND = Bound(name="resident_bytes", share=0.1, allowance=5)


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
    """How a run begins does not count; what its end has over its second quarter does."""
    assert verdict(BOUND, curve).is_flat is is_flat


def test_too_few_samples_are_no_verdict() -> None:
    """A run that is too short to tell is not called flat."""
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
