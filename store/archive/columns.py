"""
A logged message as a row of a table: the columns, which an archive's files and Spark's DataFrames share.

Types are written as in Spark SQL; ``arrow_schema`` gives the Arrow types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

Columns: TypeAlias = "Sequence[tuple[str, str]]"
"""Chosen columns in their order: our name of each column, and the name that the user gave it."""

COLUMNS: Final[dict[str, str]] = {
    "offset": "bigint",  # the broker's integer for the message: log position and total order
    "enqueuedTime": "timestamp",  # when the broker took it, to the millisecond
    "topic": "string",
    "body": "binary",  # data sections joined; other body kinds as they are encoded, descriptor included
    "bodyType": "string",  # data, value, sequence
    "messageId": "string",
    "correlationId": "string",
    "subject": "string",
    "contentType": "string",
    "groupId": "string",
    "replyTo": "string",
    "properties": "map<string,string>",  # application properties; what is not text, as JSON
    "systemProperties": "map<string,string>",  # header and message annotations
    "partition": "int",  # which of several urls; 0 with one: its log is one sequence
    "replayId": "string",  # rmid1:..., what a replay start takes
}
"""Column name to type, in the order of the table."""

ALL: Final = tuple((name, name) for name in COLUMNS)
"""Every column under its own name."""

ARROW_TYPES: Final[dict[str, pa.DataType]] = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of a column, by our name."""
    return ARROW_TYPES[COLUMNS[name]]


def arrow_schema(columns: Columns) -> pa.Schema:
    """The Arrow schema of a record batch with these columns."""
    return pa.schema([pa.field(label, arrow_type(name)) for name, label in columns])


def matching(topics: Any, matches: Callable[[str], bool]) -> Any:
    """Which of the topics in an Arrow array match, as an Arrow array; each distinct topic is matched once."""
    found = topics.dictionary_encode()
    wanted = pa.array([matches(topic or "") for topic in found.dictionary.to_pylist()], pa.bool_())
    return wanted.take(found.indices)
