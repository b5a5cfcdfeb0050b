"""From rounds of figures to the table and its verdicts.

Ratios are taken within a round, where both sides saw the same machine, and their median is what counts;
figures are medians too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median

from .measured.sizes import Figures
from .neighbours import QUIET
from .rows import CONTAINER, Against, Row

HEADER = ("row", "figure", "limit", "ratio", "/container", "required", "verdict", "what")


OTHERS = "others_cores_"
"""Begins the name of a figure that says how many processors others used during a measurement."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row with its results, None where nothing is compared; ``verdict`` is ok, short or empty."""

    row: str
    title: str
    unit: str
    figure: float
    limit: float | None
    ratio: float | None
    container_ratio: float | None
    required: str
    verdict: str


def judge(row: Row, rounds: list[Figures]) -> Line:
    """The line of ``row`` over all rounds that measured it."""
    figure = median(figures[row.figure] for figures in rounds if row.figure in figures)
    ratio = _ratio(rounds, row.figure, row.limit)
    container_ratio = _ratio(rounds, row.figure, CONTAINER if row.beside_container else None)
    found = {Against.LIMIT: ratio, Against.CONTAINER: container_ratio, Against.NOTHING: figure}
    held = [(value := found[bound.against]) is not None and bound.holds(value) for bound in row.bounds]
    return Line(
        row=row.name,
        title=row.title,
        unit=row.unit,
        figure=figure,
        limit=median(figures[row.limit] for figures in rounds if row.limit in figures) if row.limit else None,
        ratio=ratio,
        container_ratio=container_ratio,
        required=", ".join(map(str, row.bounds)),
        verdict="" if not held else "ok" if all(held) else "short",
    )


def _ratio(rounds: list[Figures], figure: str, other: str | None) -> float | None:
    ratios = (
        [figures[figure] / figures[other] for figures in rounds if figure in figures and other in figures]
        if other
        else []
    )
    return median(ratios) if ratios else None


def disturbances(rounds: list[Figures]) -> list[str]:
    """The measurements others disturbed, in words: name, round, cores the others used."""
    return [
        f"{name.removeprefix(OTHERS)} in round {number} ({cores:.1f} cores)"
        for number, figures in enumerate(rounds, 1)
        for name, cores in figures.items()
        if name.startswith(OTHERS) and cores > QUIET
    ]


def table(lines: list[Line]) -> str:
    """The lines as text, columns aligned."""
    cells = [HEADER, *(_cells(line) for line in lines)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADER))]
    text = []
    for row in cells:
        numbers = [cell.rjust(width) for cell, width in zip(row[1:5], widths[1:5], strict=True)]
        words = [cell.ljust(width) for cell, width in zip(row[5:], widths[5:], strict=True)]
        text.append("  ".join([row[0].ljust(widths[0]), *numbers, *words]).rstrip())
    text.insert(1, "-" * max(map(len, text)))
    return "\n".join(text)


def document(lines: list[Line], rounds: list[Figures]) -> dict[str, object]:
    """The same for a program, with every figure of every round."""
    return {"rows": [asdict(line) for line in lines], "rounds": rounds}


def _cells(line: Line) -> tuple[str, ...]:
    return (
        line.row,
        f"{_number(line.figure)} {line.unit}",
        _number(line.limit),
        _number(line.ratio),
        _number(line.container_ratio),
        line.required or "-",
        line.verdict or "-",
        line.title,
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
