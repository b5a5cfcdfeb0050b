"""The series of ``/metrics`` that each endpoint has, written as text at once.

With 10,000 queues they are 50,000 numbers: as the library's samples, objects of which each is made, walked by the
garbage collector and written, they cost ten times as much as this and kept the loop waiting. Here an endpoint's labels
are written once, and what is kept until the end is text.

Source: Prometheus, "Exposition formats": the lines of one metric stand together, under one ``HELP`` and one ``TYPE``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.core.endpoint.endpoint import Endpoint

PIECE: Final = 500
"""Lines that are sent at once."""

_GAUGES: Final = (
    ("rewind_endpoint_messages", "Messages on an endpoint."),
    ("rewind_endpoint_bytes", "Their content."),
    ("rewind_endpoint_unsettled_messages", "Those at consumers, unsettled."),
    ("rewind_endpoint_flows", "Consumers bound to it."),
    ("rewind_endpoint_demand_messages", "Room at its consumers."),
)

_OF_REPLAYED: Final = (
    ("rewind_replay_remaining_ids", "gauge", "Ids a replay has to look at."),
    ("rewind_replay_starts_total", "counter", "Replays begun."),
    ("rewind_replay_successes_total", "counter", "Replays completed."),
    ("rewind_replay_failures_total", "counter", "Replays failed or cancelled."),
    ("rewind_replayed_messages_total", "counter", "Replayed messages sent."),
)

_FAMILIES: Final = (*((name, "gauge", text) for name, text in _GAUGES), *_OF_REPLAYED)


class EndpointSeries:
    """One scrape's lines: endpoints are added in any order, then all of it is read."""

    def __init__(self) -> None:
        self._lines: list[list[str]] = [[] for _ in _FAMILIES]

    def add(self, vpn: str, endpoint: Endpoint, next_id: int) -> None:
        """Add what an endpoint of Message VPN ``vpn`` is like now; ``next_id`` is the one its log gives next."""
        labels = f'{{vpn="{vpn}",endpoint="{_escaped(endpoint.name)}"}}'
        unsettled = demand = 0
        for flow in (*endpoint.flows, *endpoint.suspended):
            unsettled += len(flow.unsettled)
            demand += flow.demand
        values = [endpoint.depth, endpoint.size_bytes, unsettled, len(endpoint.flows), demand]
        replay = endpoint.replay
        if replay is not None:
            record = replay.totals
            values.append(replay.progress(next_id, 0).remaining)
            values += (record.started, record.succeeded, record.failed, record.transmitted)
        # An endpoint that was never replayed has the first five alone.
        for lines, value in zip(self._lines, values, strict=False):
            lines.append(f"{labels} {value}\n")

    def text(self) -> Iterator[str]:
        """All of it, in pieces of some ten kilobytes; metrics that no endpoint has are left out."""
        for (name, kind, text), lines in zip(_FAMILIES, self._lines, strict=True):
            if lines:
                yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
            for first in range(0, len(lines), PIECE):
                yield name + name.join(lines[first : first + PIECE])


def _escaped(label: str) -> str:
    if "\\" in label or '"' in label or "\n" in label:
        return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return label
