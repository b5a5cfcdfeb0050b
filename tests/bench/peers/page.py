"""The table in Markdown, and writing it into a page of the documentation."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from textwrap import fill

from tests.bench.measured.sizes import Figures
from tests.bench.neighbours import QUIET
from tests.bench.peers.broker import WARM, Broker
from tests.bench.processes import ROOT
from tests.bench.turns import OTHERS

from .measuring import COMMIT

PAGE = ROOT / "docs" / "explanation" / "figures.md"
NONE = "–"

_MARKED = r"(<!-- measured: {} -->\n)(.*?)(<!-- end -->)"
_GIB = 2**30

Rounds = Mapping[str, Sequence[Figures]]
"""The figures of each round, by broker."""


def table(brokers: Sequence[Broker], rounds: Rounds) -> str:
    """One column for each broker: medians, and the minimum and maximum of the rates."""
    rows = [
        ["", *(broker.title for broker in brokers)],
        ["---"] * (len(brokers) + 1),
        ["synced to disk before `accepted`", *(broker.storage for broker in brokers)],
    ]

    def add(what: str, cell: Callable[[Sequence[Figures]], str]) -> None:
        rows.append([what, *(cell(rounds[broker.name]) for broker in brokers)])

    add("publish, msg/s", lambda found: _range(found, "publish"))
    add("consume, each accepted, msg/s", lambda found: _range(found, "consume"))
    add("replay from the first message, msg/s", lambda found: _range(found, "replay"))
    add(
        "one message outstanding, p50 / p99, ms",
        lambda found: _joined(found, ("single-p50", "single-p99"), ".2f"),
    )
    names = ("publish", "consume", "replay")
    add(
        "processor, µs a message, publish / consume / replay",
        lambda found: _joined(found, [f"{name}-cpu" for name in names], ".0f"),
    )
    add("memory after each, MB", lambda found: _joined(found, [f"{name}-memory" for name in names], ",.0f"))
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows)


def conditions(rounds: Rounds, count: int, single: int, today: date) -> str:
    """The conditions under which the table was measured."""
    every = [figures for found in rounds.values() for figures in found]
    commit = median(figures[COMMIT] for figures in every)
    turns = max(map(len, rounds.values()))
    disturbed = sum(figures[OTHERS] > QUIET for figures in every)
    words = [
        f"{today.isoformat()}, {_machine()}.",
        f"One raw commit of SQLite's write-ahead log took {commit:.2f} ms (p50).",
        f"Durable messages of 256 bytes, {count:,} for rates and {single:,} one by one, one connection, one link, "
        "1,000 in flight; every one checked at the receiver for its number and for being durable.",
        f"Medians [least to most], rounds: {turns}; in each of them every broker had its turn alone, new and "
        f"warmed up with {len(WARM) * count:,} messages. “{NONE}”: the broker does not do that.",
    ]
    if disturbed:
        words.append(f"In {disturbed} of {len(every)} turns other processes were at work on the machine.")
    return fill(" ".join(words), 120)


def write(text: str, page: Path = PAGE, mark: str = "peers") -> None:
    """Write the text between the page's marks of this name."""
    before = page.read_text(encoding="utf-8")
    marked = re.compile(_MARKED.format(mark), re.DOTALL)
    after, found = marked.subn(lambda mark: f"{mark[1]}\n{text}\n\n{mark[3]}", before)
    if found != 1:
        raise ValueError(f"{page} has {found} places that are marked `measured: {mark}`")
    page.write_text(after, encoding="utf-8")


def _range(found: Sequence[Figures], name: str) -> str:
    values = [figures[name] for figures in found if name in figures]
    if not values:
        return NONE
    middle = f"{_rounded(median(values)):,}"
    if len(values) == 1:
        return middle
    return f"{middle} [{_rounded(min(values)):,} to {_rounded(max(values)):,}]"


def _rounded(rate: float) -> int:
    return round(rate / 100) * 100 if rate >= 1_000 else round(rate)


def _joined(found: Sequence[Figures], names: Sequence[str], form: str) -> str:
    cells = []
    for name in names:
        values = [figures[name] for figures in found if name in figures]
        cells.append(format(median(values), form) if values else NONE)
    return " / ".join(cells)


def _machine() -> str:
    processors = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = int(re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())[1]) * 1024  # type: ignore[index]
    system = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    model = processors[0] if processors else platform.machine()
    return (
        f"{len(processors)} processors ({model}) that broker and generator share, {memory / _GIB:.0f} GiB, {system}, "
        f"Linux {'.'.join(platform.release().split('.')[:2])}"
    )
