"""From rounds of figures to the table and its verdicts.

A ratio compares two figures of the same round, in which the machine was the same; the verdict uses the median of
the rounds' ratios. Figures in the table are medians, too.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from statistics import median

from tests.bench.measured import rates

from .measured.sizes import Figures
from .neighbours import QUIET
from .rows import CONTAINER, Row
from .turns import OTHERS

HEADER = ("row", "figure", "limit", "ratio", "/container", "required", "verdict", "what")


@dataclass(frozen=True, slots=True)
class Line:
    """A row with its results, which are None if nothing is compared; ``verdict`` is ok, short or empty."""

    row: Row
    figure: float
    limit: float | None
    ratio: float | None
    container_ratio: float | None
    verdict: str


def judge(row: Row, rounds: list[Figures]) -> Line:
    """The line of ``row`` over all rounds that measured it."""
    figure = median(_all(rounds, row.name))
    ratio = _ratio(rounds, row.name, row.limit)
    container_ratio = _ratio(rounds, row.name, CONTAINER if rates.container in row.needs else None)
    holds = row.holds(ratio if row.limit else figure, container_ratio)
    return Line(
        row=row,
        figure=figure,
        limit=median(limits) if (limits := _all(rounds, row.limit)) else None,
        ratio=ratio,
        container_ratio=container_ratio,
        verdict="" if not row.required else "ok" if holds else "short",
    )


def _all(rounds: list[Figures], name: str | None) -> list[float]:
    """A figure in all rounds that have it; empty if its measurement failed or ``name`` is None."""
    return [figures[name] for figures in rounds if name in figures] if name else []


def _ratio(rounds: list[Figures], figure: str, other: str | None) -> float | None:
    both = [figures for figures in rounds if figure in figures and other in figures]
    return median(figures[figure] / figures[other] for figures in both) if other and both else None


def disturbances(rounds: list[dict[str, Figures]]) -> list[str]:
    """The measurements that other processes disturbed, in words: name, round, cores that the others used."""
    return [
        f"{name} in round {number} ({figures[OTHERS]:.1f} cores)"
        for number, measured in enumerate(rounds, 1)
        for name, figures in measured.items()
        if figures[OTHERS] > QUIET
    ]


def table(lines: list[Line]) -> str:
    """The lines as text, columns aligned."""
    text = columns([HEADER, *map(_cells, lines)], right=range(1, 5))
    text.insert(1, "-" * max(map(len, text)))
    return "\n".join(text)


def columns(rows: Sequence[Sequence[str]], right: Container[int]) -> list[str]:
    """Lines of text whose columns are as wide as their widest cell; columns of numbers are aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _cells(line: Line) -> tuple[str, ...]:
    row, figure = line.row, f"{_number(line.figure)} {line.row.unit}"
    compared = map(_number, (line.limit, line.ratio, line.container_ratio))
    return (row.name, figure, *compared, row.required or "-", line.verdict or "-", row.title)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
