"""Records of replays: named, numbered, changed, and dropped past a bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.effects import DropReplayRecords, SaveReplayRecord
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import COPY, ENDPOINT, ReplayRecord
from gateway.core.replay.records import ReplayRecords

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
