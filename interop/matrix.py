"""The results of a run: client × behaviour, as lines on the terminal and as JSON; ``interop.page`` makes the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from interop.client import Line

MARKS = {"pass": "✓", "fail": "✗", "cannot": "–"}


@dataclass(frozen=True, slots=True)
class Result:
    """One behaviour with one client."""

    client: str
    behaviour: str
    status: str
    """``pass``; ``fail``; ``cannot``, where the client's API has no way to ask for it."""
    note: str = ""
    seconds: float = 0.0
    seen: dict[str, Line] = field(default_factory=dict)
    """By refusal: the error that the client's user saw."""


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The results for other programs."""
    return [asdict(result) for result in results]


def summary(results: Sequence[Result]) -> str:
    """One line for each client."""
    lines = []
    for name in dict.fromkeys(result.client for result in results):
        of_client = [result.status for result in results if result.client == name]
        counts = ", ".join(f"{of_client.count(status)} {status}" for status in MARKS if status in of_client)
        lines.append(f"{name:<18} {counts}")
    return "\n".join(lines)
