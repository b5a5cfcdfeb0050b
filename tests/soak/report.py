"""The end of a run: a table of its curves, the same as a picture, and the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from .flatness import BOUNDS, LEAST_SAMPLES, MEGABYTE, Verdict, verdict
from .sample import Sample

ROWS = 24
"""Of the table: each is the mean of as many samples, its waits and lags the longest of them."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One of a sample's fields, as it is shown."""

    field: str
    title: str
    unit: float = 1.0
    of: Callable[[Sequence[float]], float] = lambda values: sum(values) / len(values)


CURVES = (
    Curve("resident_bytes", "memory MB", MEGABYTE),
    Curve("file_bytes", "file MB", MEGABYTE),
    Curve("wal_bytes", "WAL MB", MEGABYTE),
    Curve("descriptors", "descriptors"),
    Curve("threads", "threads"),
    Curve("processor_share", "processor %", 0.01),
    Curve("loop_lag_mean_ms", "lag ms"),
    Curve("loop_lag_most_ms", "most lag ms <", of=max),
    Curve("longest_wait_ms", "most wait ms", of=max),
    Curve("published_per_second", "in/s"),
    Curve("settled_per_second", "settled/s"),
    Curve("replayed_per_second", "replayed/s"),
    Curve("trimmed_per_second", "trimmed/s"),
)

WIDTH, HEIGHT, GAP = 900, 90, 26
"""Of a panel of the picture, in pixels, and what its title takes."""


def verdicts(samples: Sequence[Sample]) -> list[Verdict]:
    """One for each bound; none where the run was too short."""
    if len(samples) < LEAST_SAMPLES:
        return []
    return [verdict(bound, [sample.fields()[bound.name] for sample in samples]) for bound in BOUNDS]


def table(samples: Sequence[Sample]) -> str:
    """The curves as text: a row for a stretch of time."""
    rows = [["minute", *(curve.title for curve in CURVES)]]
    each = max(1, -(-len(samples) // ROWS))
    for start in range(0, len(samples), each):
        stretch = [sample.fields() for sample in samples[start : start + each]]
        cells = [f"{stretch[-1]['seconds'] / 60:.1f}"]
        for curve in CURVES:
            value = curve.of([fields[curve.field] for fields in stretch]) / curve.unit
            cells.append(f"{value:.1f}" if value < 10 else f"{value:,.0f}")
        rows.append(cells)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )


def picture(samples: Sequence[Sample]) -> str:
    """The curves as SVG: a panel each, from 0 to the highest value."""
    end = max((sample.seconds for sample in samples), default=0.0) or 1.0
    panels = []
    for index, curve in enumerate(CURVES):
        values = [sample.fields()[curve.field] / curve.unit for sample in samples]
        values = [value if value < float("inf") else 0.0 for value in values]
        most = max(values, default=0.0) or 1.0
        top = index * (HEIGHT + GAP) + GAP
        points = " ".join(
            f"{WIDTH * sample.seconds / end:.1f},{top + HEIGHT * (1 - value / most):.1f}"
            for sample, value in zip(samples, values, strict=True)
        )
        panels.append(
            f'<text x="0" y="{top - 6}">{escape(curve.title)}: 0 to {most:,.1f}</text>'
            f'<rect x="0" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#ccc"/>'
            f'<polyline points="{points}" fill="none" stroke="#06c"/>'
        )
    height = len(CURVES) * (HEIGHT + GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-10 0 {WIDTH + 20} {height + 10}" '
        f'font-family="sans-serif" font-size="13">{"".join(panels)}</svg>\n'
    )


def sentences(found: Sequence[Verdict]) -> list[str]:
    """What each verdict says."""
    return [
        f"{one.bound.name}: {_number(one.second)} in the second quarter, {_number(one.last)} in the last: "
        f"{'flat' if one.is_flat else 'NOT FLAT'}"
        for one in found
    ]


def _number(value: float) -> str:
    return f"{value / MEGABYTE:,.1f} MB" if value >= MEGABYTE else f"{value:,.1f}"
