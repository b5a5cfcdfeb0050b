"""Columns: what Spark and the reader agree on, and what a user's own schema may say."""

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType

from spark_bridge.errors import SchemaError
from spark_bridge.source import chosen
from store.archive.columns import COLUMNS, arrow_schema
from tests.spark_bridge.spark_types import struct

pytestmark = pytest.mark.spark


def columns(*names: str) -> StructType:
    """A Spark schema of columns of the log."""
    return struct(", ".join(f"{name} {COLUMNS[name]}" for name in names))


@pytest.mark.parametrize("names", [tuple(COLUMNS), tuple(reversed(COLUMNS)), ("topic", "offset")])
def test_the_arrow_schema_is_the_one_spark_derives(names: tuple[str, ...]) -> None:
    """Spark compares a batch's schema for equality with its own: order, types, time zone, nullability."""
    spark = columns(*names)
    assert arrow_schema(chosen(spark)) == to_arrow_schema(spark, timezone="UTC")


def test_a_subset_in_any_order_is_taken_as_asked() -> None:
    """The columns come in the user's order and under the user's spelling."""
    schema = StructType([StructField("BODY", BinaryType()), StructField("offset", LongType())])
    assert chosen(schema) == (("body", "BODY"), ("offset", "offset"))


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (StructType([StructField("ofset", LongType())]), "no column ofset; did you mean offset?"),
        (StructType([StructField("zz", LongType())]), "no column zz; there are offset, enqueuedTime"),
        (StructType([StructField("offset", StringType())]), "Column offset is bigint, not string; cast it"),
        (StructType([StructField("topic", StringType(), False)]), "write it without NOT NULL"),
        (
            StructType([StructField("properties", MapType(StringType(), StringType(), False))]),
            "write it without NOT NULL",
        ),
        (StructType([]), "The schema names no column."),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(schema: StructType, sentence: str) -> None:
    """Each way a schema can differ from the log gets its own sentence."""
    with pytest.raises(SchemaError) as caught:
        chosen(schema)
    assert sentence in str(caught.value)
