"""Ends a process at a step of its work, as ``kill -9`` would: nothing is cleaned up."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

from store.copies import Step

KILLED = 9
FAILED = 1


def ended_at(wanted: str, run: Callable[[Step], object]) -> bool:
    """
    Run a function in a forked process that ends at the step ``wanted``.

    Returns:
        Whether the process reached the step; otherwise the function ran to its end.
    """

    def step(name: str) -> None:
        if name == wanted:
            os._exit(KILLED)

    child = os.fork()
    if child == 0:
        status = FAILED
        try:
            run(step)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in {0, KILLED}
    return code == KILLED


def steps_of(run: Callable[[Step], object]) -> list[str]:
    """Run a function in this process, and return the names of its steps."""
    names: list[str] = []
    run(names.append)
    return names
