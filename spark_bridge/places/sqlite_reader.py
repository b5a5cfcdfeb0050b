"""
A gateway's SQLite file, asked read-only through ADBC's driver, which answers in Arrow: no row becomes a Python object.

The driver brings an SQLite of its own. Two copies of SQLite in one process must never have the same file open at once:
when one closes it, the kernel drops the other's locks. So whatever the Spark bridge asks a gateway's file, is asked
through this driver alone.

Invariant: between two calls no statement is open, so that nothing keeps the gateway's WAL from being begun anew.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from adbc_driver_manager import Error
from adbc_driver_sqlite import StatementOptions, dbapi

BUSY_MS = 10_000  # how long to wait for a lock; a gateway that starts holds one for a moment


class SqliteReader:
    """
    A connection to one file.

    Every method raises ``SqliteReader.Failed``, a tuple of exceptions, where the file cannot be read.
    """

    Failed = (Error, pa.ArrowException)

    def __init__(self, path: Path) -> None:
        self._connection = dbapi.connect(f"{path.absolute().as_uri()}?mode=ro", autocommit=True)
        try:
            self.row(f"pragma busy_timeout = {BUSY_MS}")
            self.row("pragma query_only = on")
        except BaseException:
            self.close()
            raise

    def rows(self, query: str, limit: int, *values: str) -> pa.RecordBatch | None:
        """The first ``limit`` rows of an answer, as a batch; None where there are none."""
        with self._connection.cursor() as cursor:
            # The driver tells types from the rows of its first batch, and takes those of the others for the same.
            cursor.adbc_statement.set_options(**{StatementOptions.BATCH_ROWS.value: str(limit)})
            cursor.execute(query, list(values) or None)
            for batch in cursor.fetch_record_batch():
                if batch.num_rows:
                    return batch
        return None

    def row(self, query: str, *values: str) -> tuple[int, ...] | None:
        """The first row of an answer of numbers."""
        batch = self.rows(query, 1, *values)
        return None if batch is None else tuple(column[0].as_py() for column in batch.columns)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
