"""How ranges are shared among workers."""

import pytest

from spark_bridge.options import parse
from spark_bridge.stream import shares
from store.archive.source import IdRange

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("ids", "asked", "expected"), [(10_000, None, 1), (50_000, None, 1), (50_001, None, 2), (10_000, 3, 3)]
)
def test_few_ids_are_one_partition_unless_more_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, ids: int, asked: int | None, expected: int
) -> None:
    """A task more costs more than it saves where there is little to read; minPartitions is heeded all the same."""
    monkeypatch.setattr("spark_bridge.stream._cores", lambda: 4)
    options = parse({"url": "amqp://127.0.0.1"} | ({"minPartitions": str(asked)} if asked else {}))
    assert len(shares(options.partitions, (IdRange(1, ids, 7),))) == expected
