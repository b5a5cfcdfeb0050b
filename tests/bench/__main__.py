"""``python -m tests.bench [ROW...]``: measure what the chosen rows need, print the table."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.processes import LoadFailed, ServerFailed
from tests.support.postgresql import NoServer

from .measured.sizes import FULL, QUICK, Figures, Sizes
from .neighbours import Neighbours
from .report import OTHERS, disturbances, judge, table
from .rows import ONCE, Row, beside_before, chosen


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 where every requirement holds, 1 where one is short or a run failed, 2 for bad usage."""
    parser = argparse.ArgumentParser(
        prog="bench", description="Benchmarks of a gateway, each beside its own limit."
    )
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help="names of rows, or how they begin; all without"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one small round: does it work, not how fast is it"
    )
    parser.add_argument("--rounds", type=int, help="rounds; the figures are medians over them")
    parser.add_argument(
        "--keep-in", type=Path, metavar="DIR", help="folder for the data; on the disk that is to be measured"
    )
    parser.add_argument("--minutes", type=float, help="minutes of mixed load (5)")
    parser.add_argument(
        "--before",
        type=Path,
        metavar="DIR",
        help="another checkout, whose gateway's processor time a message is measured in turn with ours",
    )
    options = parser.parse_args(arguments)
    try:
        rows = chosen(options.rows)
    except ValueError as error:
        parser.error(str(error))
    sizes = QUICK if options.quick else FULL
    sizes = replace(
        sizes,
        rounds=options.rounds or sizes.rounds,
        minutes=options.minutes or sizes.minutes,
        before=options.before and options.before.resolve(),
    )
    if sizes.before:
        rows = tuple(map(beside_before, rows))
    rounds, failures = measure(rows, sizes, options.keep_in)
    lines = [judge(row, rounds) for row in rows if any(row.name in figures for figures in rounds)]
    print(table(lines))
    if disturbed := disturbances(rounds):
        _say(
            f"Figures and verdicts are worth less: other processes were at work during {', '.join(disturbed)}."
        )
    return 1 if failures or any(line.verdict == "short" for line in lines) else 0


def measure(rows: tuple[Row, ...], sizes: Sizes, parent: Path | None) -> tuple[list[Figures], int]:
    """The figures of each round, and how many measurements failed.

    A round runs every measurement once, so that limits, baseline and gateway take turns.
    """
    needed = list(dict.fromkeys(need for row in rows for need in row.needs))
    rounds: list[Figures] = []
    failures = 0
    for number in range(1, sizes.rounds + 1):
        figures: Figures = {}
        for need in needed:
            if need in ONCE and number > 1:
                continue
            _say(f"round {number} of {sizes.rounds}: {need.__name__}")
            try:
                with (
                    TemporaryDirectory(prefix="rewind-bench-", dir=parent) as folder,
                    Neighbours() as neighbours,
                ):
                    found = need(Path(folder).resolve(), sizes)
            except NoServer as lack:
                _say(f"  left out: {lack}")
                continue
            except (LoadFailed, ServerFailed, OSError) as error:
                failures += 1
                _say(f"  failed: {error}")
                continue
            found[OTHERS + need.__name__] = neighbours.cores
            _say("  " + ", ".join(f"{name} {value:,.6g}" for name, value in found.items()))
            figures |= found
        rounds.append(figures)
    return rounds, failures


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
