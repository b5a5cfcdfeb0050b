"""
A table that recovers by itself: its position in the log is committed together with what it read.

This is recovery without XA. Only the database remembers the position; the log keeps nothing for its reader and gives
any part again. A crash between two commits costs nothing, a table restored from a backup catches up from the backup's
position, a dropped one from the log's beginning, and no message counts twice.

    python -m spark_bridge.examples.recovery balances.db url=amqp://127.0.0.1:5672 'subscribe=payments/>'

Messages are JSON, such as {"account": "ann", "amount": 5}. SQLite here; for PostgreSQL call ``catch_up`` with a
connection of psycopg or pg8000, and ``mark="%s"``.
"""

from __future__ import annotations

import sqlite3
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_bridge.examples import options, session

TABLES = (
    "create table if not exists balance (account text primary key, amount bigint not null)",
    "create table if not exists place (one integer primary key check (one = 1), replay_id text not null)",
    "insert into place values (1, '') on conflict do nothing",
)
ADD = """insert into balance values (?, ?)
    on conflict (account) do update set amount = balance.amount + excluded.amount"""
MOVE = "update place set replay_id = ? where replay_id = ?"


def catch_up(spark: SparkSession, database: Any, mark: str = "?", **of: str) -> int:
    """
    Add to the table what the log has beyond the table's position, in one transaction; how many accounts have changed.

    ``database`` is a DB-API connection, ``mark`` its sign for a parameter. The position is a replay id, which has the
    log's generation: a recreated log is refused, as is one whose messages beyond the position were trimmed. Raises
    RuntimeError if another run moved the position meanwhile.
    """
    cursor = database.cursor()
    for statement in TABLES:
        cursor.execute(statement)
    cursor.execute("select replay_id from place")
    [place] = cursor.fetchone()
    database.commit()  # reading takes its time: no transaction is open meanwhile
    log = spark.read.format("rewind").options(replayStart=place or "beginning", **of)
    rows = log.schema("replayId string, body binary").load()
    paid = rows.select(
        "replayId", F.from_json(F.col("body").cast("string"), "account string, amount bigint").alias("p")
    )
    # Spark does the large part.
    sums = paid.groupBy("p.account").agg(F.sum("p.amount"), F.max("replayId")).collect()
    changed = [(account, amount) for account, amount, _ in sums if account is not None and amount is not None]
    if sums:
        cursor.executemany(ADD.replace("?", mark), changed)
        cursor.execute(MOVE.replace("?", mark), (max(newest for _, _, newest in sums), place))
        if cursor.rowcount != 1:
            database.rollback()
            raise RuntimeError("Another run has moved the table's position; this run added nothing.")
        database.commit()
    return len(changed)


def main() -> None:
    """Catch up once, for example from cron."""
    if len(sys.argv) < 3:
        raise SystemExit("usage: recovery FILE url=amqp://HOST:PORT [NAME=VALUE...]")
    database = sqlite3.connect(sys.argv[1])
    print(f"{catch_up(session('recovery'), database, **options(sys.argv[2:]))} accounts have changed")
    for account, amount in database.execute("select account, amount from balance order by account"):
        print(f"{account:20} {amount:12}")


if __name__ == "__main__":
    main()
