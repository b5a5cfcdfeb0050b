"""Measurements in turn, so that each sees the same machine as the others, on the disk that is to be measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.processes import LoadFailed, ServerFailed
from tests.support.postgresql import NoServer

from .measured.sizes import Figures
from .neighbours import Neighbours

OTHERS = "others-cores"
"""The figure of each measurement that says how many processors other processes used during it."""

Works = Mapping[str, Callable[[Path], Figures]]
"""The measurements by name; each gets a folder of its own."""


def take_turns(
    rounds: int, parent: Path | None, works: Works, once: Container[str] = ()
) -> tuple[list[dict[str, Figures]], int]:
    """
    The figures of each round by measurement, and the number of failed measurements.

    Args:
        parent: Where the folders are made.
        once: Names of measurements that run in the first round only.
    """
    results: list[dict[str, Figures]] = []
    failures = 0
    for number in range(1, rounds + 1):
        results.append({})
        for name, work in works.items():
            if name in once and number > 1:
                continue
            say(f"round {number} of {rounds}: {name}")
            try:
                with (
                    TemporaryDirectory(prefix="rewind-bench-", dir=parent) as folder,
                    Neighbours() as neighbours,
                ):
                    found = work(Path(folder).resolve())
            except NoServer as lack:
                say(f"  left out: {lack}")
            except (LoadFailed, ServerFailed, OSError) as error:
                failures += 1
                say(f"  failed: {error}")
            else:
                say("  " + ", ".join(f"{figure} {value:,.6g}" for figure, value in found.items()))
                results[-1][name] = found | {OTHERS: neighbours.cores}
    return results, failures


def say(text: str) -> None:
    """Print a line about the progress."""
    print(text, file=sys.stderr, flush=True)
