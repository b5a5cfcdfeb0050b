"""
The schema of a DataFrame, as Spark spells it, and the check of one that the user brings.

Spark 4 has no column pruning for Python sources, so a user who wants few columns names them with
``.schema("offset bigint, body binary")``; only those are then decoded. Any order, any subset; every column is
nullable.
"""

from __future__ import annotations

import difflib

from pyspark.sql.types import StructType

from spark_bridge.errors import SchemaError
from store.archive.columns import COLUMNS

_TYPES = COLUMNS | {
    "enqueuedTime": "timestamp_ltz"
}  # `timestamp` is what spark.sql.timestampType makes of it
DDL = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
HEADERS = "systemProperties"
"""The column that the option includeHeaders is about."""
DDL_WITHOUT_HEADERS = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items() if name != HEADERS)
_BY_LOWER = {name.lower(): name for name in COLUMNS}


def chosen(schema: StructType) -> tuple[tuple[str, str], ...]:
    """
    The columns a schema asks for, as pairs of our name and the name the user gave it (case may differ).

    Raises:
        SchemaError: A name is unknown, a type another, or a column NOT NULL.
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
