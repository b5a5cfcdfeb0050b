"""Something that ends in the middle, at each of its steps, as by `kill -9`: nothing is cleaned up."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

from store.copies import Step

KILLED = 9
FAILED = 1


def ended_at(wanted: str, run: Callable[[Step], object]) -> bool:
    """
    Run something in a process of its own that ends at a step.

    Returns:
        Whether the step came; else it ran to its end.
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
    """The steps that something has, in this process."""
    names: list[str] = []
    run(names.append)
    return names
