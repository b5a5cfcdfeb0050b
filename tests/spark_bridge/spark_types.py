"""Spark's schemas from text without a session, which Spark's own parser needs."""

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

TYPES = {
    "bigint": LongType(),
    "int": IntegerType(),
    "string": StringType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "timestamp_ltz": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}
"""The types of the log's columns, by their names in DDL."""


def struct(ddl: str) -> StructType:
    """The schema of a text such as ``offset bigint, body binary``."""
    return StructType(
        [StructField(name, TYPES[kind]) for name, kind in (column.split(" ") for column in ddl.split(", "))]
    )
