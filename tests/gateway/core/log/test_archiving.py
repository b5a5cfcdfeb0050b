"""What the core lets be trimmed where a log keeps what is not archived."""

from __future__ import annotations

import pytest

from gateway.core.broker import Broker
from gateway.core.effects import TrimLog
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import LogPolicy
from gateway.core.model import LogState
from gateway.core.trimming import TRIM_IDS


def broker_of(*, keeps: bool, archived_id: int = 0) -> Broker:
    """A log of ids 1 to 3,000 whose generation is 7."""
    log = LogState(7, 1, 3_001, 0, 0, archived_id=archived_id)
    return Broker(log, LogPolicy(keep_until_archived=keeps), window=10, create_queues=True)


def trimmed(broker: Broker) -> int:
    """The first id of the log once all that may be is trimmed."""
    while effect := broker.trimming.next_piece(broker.log.next_id):
        assert isinstance(effect, TrimLog)
        assert effect.stop - effect.first <= TRIM_IDS
        broker.trimming.trimmed(effect)
    assert not broker.trimming.is_possible
    return broker.log.first_id


@pytest.mark.parametrize(
    ("keeps", "archived_id", "first_id"),
    [(False, 0, 3_001), (True, 0, 1), (True, 1_500, 1_501), (True, 3_000, 3_001)],
)
def test_trimming_stops_at_what_is_not_archived(keeps: bool, archived_id: int, first_id: int) -> None:
    """However much is asked for; without the setting the archive is not looked at."""
    assert trimmed(broker_of(keeps=keeps, archived_id=archived_id)) == first_id


def test_what_is_reported_moves_the_bound_once_it_is_durable() -> None:
    """Not before the commit, and never back."""
    broker = broker_of(keeps=True)
    effect = broker.trimming.report_archived(100, 7)
    assert effect is not None
    assert trimmed(broker) == 1
    broker.trimming.archive_saved(effect)
    assert trimmed(broker) == 101
    assert broker.trimming.report_archived(50, 7) is None
    assert broker.log.archived_id == 100


def test_an_order_beyond_the_archive_is_refused() -> None:
    """Up to what is archived it is none too many; a log that keeps nothing refuses nothing."""
    broker = broker_of(keeps=True, archived_id=10)
    broker.trimming.check(11)
    with pytest.raises(Refused) as caught:
        broker.trimming.check(12)
    assert caught.value.code is ErrorCode.PRECONDITION_FAILED
    broker_of(keeps=False).trimming.check(3_001)


@pytest.mark.parametrize(
    ("last_id", "generation", "code"),
    [(10, 8, ErrorCode.LOG_MODIFIED), (3_001, 7, ErrorCode.PRECONDITION_FAILED)],
)
def test_a_report_that_cannot_be_of_this_log_is_refused(
    last_id: int, generation: int, code: ErrorCode
) -> None:
    """Another generation, or an id that was not given out: believing it would trim what nobody has."""
    with pytest.raises(Refused) as caught:
        broker_of(keeps=True).trimming.report_archived(last_id, generation)
    assert caught.value.code is code
