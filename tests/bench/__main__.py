"""``python -m tests.bench [ROW...]``: measure what the chosen rows need, print the table."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from .measured.sizes import FULL, QUICK, Figures, Sizes
from .report import disturbances, judge, table
from .rows import ONCE, Row, beside_before, chosen
from .turns import say, take_turns


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 if every requirement holds, 1 if one is missed or a run failed, 2 for bad usage."""
    parser = argparse.ArgumentParser(
        prog="./run bench",
        description="Benchmarks of a gateway. Each figure is compared with a limit that is measured in the same run. "
        "`./run bench peers` compares Rewind with other brokers.",
    )
    parser.add_argument(
        "rows",
        nargs="*",
        metavar="ROW",
        help="a row of the table, or the beginning of its name; default: all that need neither Spark nor the archive",
    )
    parser.add_argument(
        "--quick", action="store_true", help="one small round: shows that it works, not how fast it is"
    )
    parser.add_argument("--rounds", type=int, help="rounds; each figure is their median")
    parser.add_argument(
        "--keep-in", type=Path, metavar="DIR", help="folder for the data, on the disk to be measured"
    )
    parser.add_argument("--minutes", type=float, help="minutes of the mixed load (5)")
    parser.add_argument(
        "--before",
        type=Path,
        metavar="DIR",
        help="another checkout: compare the processor time per message of its gateway and of this one",
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
    figures = [dict(chain.from_iterable(found.items() for found in measured.values())) for measured in rounds]
    lines = [judge(row, figures) for row in rows if any(row.name in found for found in figures)]
    print(table(lines))
    if disturbed := disturbances(rounds):
        say(
            f"Figures and verdicts are worth less: other processes were at work during {', '.join(disturbed)}."
        )
    return 1 if failures or any(line.verdict == "short" for line in lines) else 0


def measure(rows: tuple[Row, ...], sizes: Sizes, parent: Path | None) -> tuple[list[dict[str, Figures]], int]:
    """The figures of each round by measurement, and the number of failed measurements."""
    needed = dict.fromkeys(need for row in rows for need in row.needs)
    works = {need.__name__: partial(need, sizes=sizes) for need in needed}
    return take_turns(sizes.rounds, parent, works, {need.__name__ for need in ONCE})


if __name__ == "__main__":
    sys.exit(main())
