"""A pool of threads that read: when all that was asked of it is done."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress


def drain(pool: ThreadPoolExecutor, threads: int) -> None:
    """
    Wait until all that was submitted to a pool before is done. Each of its threads comes to a barrier; none of them
    does so before it is through with what came earlier, as a pool takes things in their order.

    Args:
        threads: Those of the pool.

    Raises:
        RuntimeError: The pool is shut down.
    """
    barrier = threading.Barrier(threads)

    def meet() -> None:
        with suppress(threading.BrokenBarrierError):
            barrier.wait()

    for met in [pool.submit(meet) for _ in range(threads)]:
        try:
            met.result()
        except CancelledError:
            # It was shut down meanwhile: those that are at the barrier wait for nobody.
            barrier.abort()
