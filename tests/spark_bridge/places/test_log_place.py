"""What every place of a log has in common: a read that may leave out what is lost."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_bridge.options import Selection
from spark_bridge.places.log_place import read_live
from store.archive.columns import Columns
from store.archive.errors import DataLoss
from store.archive.source import IdRange, LogWatch

pytestmark = pytest.mark.spark
OFFSET = (("offset", "offset"),)
LENIENT = Selection(fail_on_data_loss=False)


class TrimmedLog:
    """A log of the ids 1 to 9 that gives two rows of a read, and has lost the next two when it goes on."""

    name = "trimmed"

    def __init__(self, *, changes: bool) -> None:
        self._first = 1
        self._changes = changes

    def extent(self, selection: Selection) -> IdRange:
        return IdRange(self._first, 9, 1)

    def plan(self, selection: Selection) -> IdRange:
        return self.extent(selection)

    def read(self, selection: Selection, columns: Columns, ids: IdRange) -> Iterator[pa.RecordBatch]:
        return read_live(self, selection, columns, ids)

    def batches(
        self, selection: Selection, columns: Columns, ids: IdRange
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        if ids.first < self._first:
            raise DataLoss("Gone.")
        for first in range(ids.first, ids.last + 1, 2):
            stop = min(first + 2, ids.last + 1)
            yield pa.record_batch({"offset": pa.array(range(first, stop), pa.int64())}), stop
            if self._first == 1:
                if self._changes:
                    self._first = 5
                raise DataLoss("Gone.")

    def watch(self, selection: Selection = LENIENT) -> LogWatch:
        raise NotImplementedError


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    """All of them."""
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_read_goes_on_behind_what_is_lost_with_each_row_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that were given stay so; what the log lost before it came to them is left out, and told."""
    log = TrimmedLog(changes=True)
    assert offsets(log.read(LENIENT, OFFSET, IdRange(1, 9, 1))) == [1, 2, 5, 6, 7, 8, 9]
    assert "Offsets 3 to 4 are no longer in the log" in capsys.readouterr().err


@pytest.mark.parametrize(("selection", "changes"), [(LENIENT, False), (Selection(), True)])
def test_a_loss_is_told_where_the_log_has_not_changed_or_nothing_may_be_lost(
    selection: Selection, changes: bool
) -> None:
    """Reading again and again would give the same; and a strict read is never short."""
    with pytest.raises(DataLoss):
        offsets(TrimmedLog(changes=changes).read(selection, OFFSET, IdRange(1, 9, 1)))
