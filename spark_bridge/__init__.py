"""
The replay log as Spark DataFrames: ``spark.read.format("rewind").option("url", "amqp://...").load()``.

Call ``spark_bridge.register(spark)`` once per session. Reading order: ``source`` and ``stream`` (what Spark calls),
``options``, ``places`` (where a log may be, and how it is read from there), ``columns`` (messages to Arrow), then
``amqp_client`` underneath. ``writer`` publishes DataFrames. ``source``, ``stream`` and ``writer`` need Spark; nothing
else does.

Nothing heavy is imported here: Spark's workers import this package each time one starts.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "set_worker_python"]


def set_worker_python() -> None:
    """
    Make Spark's workers run this interpreter; call it before the session is made.

    Without ``PYSPARK_PYTHON`` Spark runs whatever ``python3`` is first on the PATH, which rarely has this
    package.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def register(spark: SparkSession) -> None:
    """Make ``format("rewind")`` known to a session. The package must be importable in Spark's workers too."""
    if importlib.util.find_spec("cproton_ffi") is None:
        raise ModuleNotFoundError("The Spark bridge needs python-qpid-proton; install it beside pyspark.")
    source = importlib.import_module("spark_bridge.source")  # imports pyspark, so not before it is asked for
    spark.dataSource.register(source.RewindSource)
