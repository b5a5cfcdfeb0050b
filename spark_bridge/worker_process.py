"""
The process that Spark runs this package in: what it has imported is no garbage.

Spark's daemon forks a worker for each kind of work, keeps it for the next query, and collects garbage in it after each
task: every object of every module is looked at, 15 ms with those that are imported here, four times a query.
"""

from __future__ import annotations

import gc
import sys
from functools import cache

DAEMON = "pyspark.daemon"


@cache
def settle() -> None:
    """
    Have the collector leave alone what there is now; the first call does so, and only in a worker of Spark's daemon.

    Call it where a task begins, when all is imported. What is made later is collected as ever.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name == DAEMON:
        gc.freeze()
