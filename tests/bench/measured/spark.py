"""A log read by Spark."""

from __future__ import annotations

from pathlib import Path

from tests.bench.filled import fill_log
from tests.bench.processes import gateway
from tests.bench.spark_log import SparkReads, raw_seconds

from .company import live
from .sizes import Figures, Sizes


def spark(folder: Path, sizes: Sizes) -> Figures:
    """Seconds in which Spark reads all rows of a log in each way, and what live traffic keeps while it does by url."""
    data = folder / "data"
    fill_log(data, sizes.read)
    figures = {"spark_raw": raw_seconds(data)}
    with SparkReads("path", str(data), sizes.read) as reads:
        figures |= {f"spark_path_{name}": value for name, value in reads.line().items()}
    with gateway(data) as server:
        url = f"amqp://{server.address}"
        with SparkReads("url", url, sizes.read) as reads:
            figures |= {f"spark_url_{name}": value for name, value in reads.line().items()}
        live(server.address, sizes.history // 4)
        alone = live(server.address, sizes.history)
        with SparkReads("url", url, sizes.read, "--forever") as reads:
            reads.line()
            # Its next query begins at full speed, until it sees live traffic.
            live(server.address, sizes.history // 4)
            figures["spark_live_beside"] = live(server.address, sizes.history)
        # Before and after: a machine with other guests is not the same from one minute to the next.
        figures["spark_live_alone"] = (alone + live(server.address, sizes.history)) / 2
    return figures
