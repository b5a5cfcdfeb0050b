"""
Message VPNs for the tests of what every engine's store does: filled by a test, and looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Protocol

from gateway.core.effects import Effect
from gateway.core.model import Row
from store.ports import Reader
from store.promises import Promise
from tests.store.effects import applied
from tests.store.vpn_file import empty_model
from tests.support.naive_store import NaiveStore


class StoredVpn(Protocol):
    """One Message VPN in an engine."""

    reader_module: ModuleType
    """Where the bounds of its pages are constants."""
    search_module: ModuleType
    """Where those of searches are."""
    promises: tuple[Promise, ...]
    """Which its check looks for."""

    def write(self, batches: Iterable[Sequence[Effect]]) -> NaiveStore:
        """Commit batches to what is empty; the naive store that holds the same."""

    def commit(self, effects: Sequence[Effect], index: Sequence[str] | None = None) -> None:
        """One batch; ``index``: properties that are indexed from now on, as at a start with them."""

    def stored(self) -> list[Row]:
        """Its messages, with those that only a dropped cursor still holds."""

    def open_reader(self, *, rows: int = 1_000, page_bytes: int = 1 << 22, largest_bytes: int = 64) -> Reader:
        """A reader, closed with this."""

    def check(self) -> list[str]:
        """What of the promises is broken."""

    def execute(self, *statements: str) -> None:
        """SQL of an operator, or of something that does damage."""

    def save(self) -> None:
        """Remember what it has, for ``restore``."""

    def restore(self) -> None:
        """Have that again, whatever was done to it."""

    def count(self, table: str) -> int:
        """How many rows a table has."""

    def close(self) -> None:
        """End what was opened."""


def model_of(batches: Iterable[Sequence[Effect]]) -> NaiveStore:
    """What a store that is dictionaries holds after these."""
    model = empty_model()
    for effects in batches:
        applied(model, effects)
    return model
