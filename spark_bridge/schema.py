"""The columns of the log and their types, as Spark spells them, and the check of a schema the user brings.

Spark 4 has no column pruning for Python sources, so a user who wants few columns names them with
``.schema("offset bigint, body binary")``; only those are then decoded. Any order, any subset; every column is
nullable.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from spark_bridge.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS: dict[str, str] = {
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
"""Column name to Spark type, in the order of the DataFrame."""

_TYPES = COLUMNS | {
    "enqueuedTime": "timestamp_ltz"
}  # `timestamp` is what spark.sql.timestampType makes of it
DDL = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
HEADERS = "systemProperties"
"""The column that the option includeHeaders is about."""
DDL_WITHOUT_HEADERS = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items() if name != HEADERS)
_BY_LOWER = {name.lower(): name for name in COLUMNS}


def chosen(schema: StructType) -> tuple[tuple[str, str], ...]:
    """The columns a schema asks for, as pairs of our name and the name the user gave it (case may differ).

    Raises SchemaError for an unknown name, another type, or a NOT NULL.
    """
    problems: list[str] = []
    columns: list[tuple[str, str]] = []
    for field in schema.fields:
        name = _BY_LOWER.get(field.name.lower())
        kind = field.dataType.simpleString()
        if name is None:
            close = difflib.get_close_matches(field.name, COLUMNS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COLUMNS)}."
            problems.append(f"The log has no column {field.name}; {hint}")
        elif kind != COLUMNS[name]:
            problems.append(f"Column {name} is {COLUMNS[name]}, not {kind}; cast it after loading.")
        elif not field.nullable or not getattr(field.dataType, "valueContainsNull", True):
            problems.append(f"Column {name} can be null; write it without NOT NULL.")
        else:
            columns.append((name, field.name))
    if not schema.fields:
        problems.append("The schema names no column.")
    if problems:
        raise SchemaError(" ".join(problems))
    return tuple(columns)
