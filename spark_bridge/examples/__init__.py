"""
Jobs for a replay log, each short enough to be read and changed in one go.

``recovery`` brings a database table up to date with the log, also after the table was lost; ``last_values`` finds the
newest message of each topic; ``windows`` counts by time, through the history and then live; ``differences`` compares
two replays. Options are those of ``format("rewind")``, written ``name=value``:

    python -m spark_bridge.examples.last_values url=amqp://127.0.0.1:5672 'subscribe=orders/>'

``spark-submit`` runs the same files on a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession

from spark_bridge import register, set_worker_python

SHUFFLE = "spark.sql.shuffle.partitions"


def session(name: str) -> SparkSession:
    """A quiet Spark that knows the format: on all cores here, or where ``spark-submit`` says."""
    set_worker_python()
    spark = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false").getOrCreate()
    context = spark.sparkContext
    context.setLogLevel("ERROR")
    if not context.getConf().contains(SHUFFLE):
        spark.conf.set(SHUFFLE, str(2 * context.defaultParallelism))  # Spark's 200 are for hundreds of cores
    register(spark)
    return spark


def options(arguments: Iterable[str]) -> dict[str, str]:
    """
    The options of ``name=value`` arguments.

    Raises:
        SystemExit: One is of another form; the sentence says which.
    """
    found: dict[str, str] = {}
    for argument in arguments:
        name, is_there, value = argument.partition("=")
        if not is_there:
            raise SystemExit(
                f"{argument} is not an option; write name=value, such as url=amqp://127.0.0.1:5672."
            )
        found[name] = value
    return found
