"""
A gateway's SQLite file, asked read-only through ADBC's driver, which answers in Arrow: no row becomes a Python object.

The driver brings an SQLite of its own. Two copies of SQLite in one process must never have the same file open at once:
when one closes it, the kernel drops the other's locks. So whatever the Spark bridge asks a gateway's file, is asked
through this driver alone.

Invariant: between two calls no statement is open, so that nothing keeps the gateway's WAL from being begun anew.

What the driver offers as DB-API is left alone: importing that imports pandas where it is installed, half a second of
each of Spark's workers.
"""

from __future__ import annotations

from pathlib import Path

import adbc_driver_sqlite
import pyarrow as pa
from adbc_driver_manager import AdbcConnection, AdbcStatement, Error
from adbc_driver_sqlite import StatementOptions

BUSY_MS = 10_000  # how long to wait for a lock; a gateway that starts holds one for a moment


class SqliteReader:
    """
    A connection to one file.

    Every method raises ``SqliteReader.Failed``, a tuple of exceptions, where the file cannot be read.
    """

    Failed = (Error, pa.ArrowException, OSError)

    def __init__(self, path: Path) -> None:
        self._database = adbc_driver_sqlite.connect(f"{path.absolute().as_uri()}?mode=ro")
        try:
            self._connection = AdbcConnection(self._database)
        except BaseException:
            self._database.close()
            raise
        try:
            self.row(f"pragma busy_timeout = {BUSY_MS}")
            self.row("pragma query_only = on")
        except BaseException:
            self.close()
            raise

    def rows(self, query: str, limit: int, *values: str) -> pa.RecordBatch | None:
        """The first ``limit`` rows of an answer, as a batch; None where there are none."""
        with AdbcStatement(self._connection) as statement:
            # The driver tells types from the rows of its first batch, and takes those of the others for the same.
            statement.set_options(**{StatementOptions.BATCH_ROWS.value: str(limit)})
            statement.set_sql_query(query)
            if values:
                names = [str(number) for number in range(len(values))]
                statement.prepare()
                statement.bind(pa.RecordBatch.from_arrays([pa.array([value]) for value in values], names))
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as batches:
                for batch in batches:
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
        self._database.close()
