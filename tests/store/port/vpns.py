"""A Message VPN in any engine, for the tests of the port to fill and inspect."""

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
    """The module with the bounds of pages, for tests to change."""
    search_module: ModuleType
    """The module with the bounds of searches."""
    promises: tuple[Promise, ...]
    """The promises that the check of this engine tests."""

    def write(self, batches: Iterable[Sequence[Effect]]) -> NaiveStore:
        """Commit batches to an empty store; returns the naive store that holds the same."""

    def commit(self, effects: Sequence[Effect], index: Sequence[str] | None = None) -> None:
        """Commit one batch; ``index``: the properties indexed from now on, as after a start with them."""

    def stored(self) -> list[Row]:
        """The stored messages, including those that only a dropped cursor still holds."""

    def open_reader(self, *, rows: int = 1_000, page_bytes: int = 1 << 22, largest_bytes: int = 64) -> Reader:
        """Open a reader, which is closed together with this object."""

    def check(self) -> list[str]:
        """The broken promises."""

    def execute(self, *statements: str) -> None:
        """Execute SQL as an operator would, or to do damage."""

    def save(self) -> None:
        """Save the contents for ``restore``."""

    def restore(self) -> None:
        """Replace the contents by the saved ones."""

    def count(self, table: str) -> int:
        """The number of rows of a table."""

    def close(self) -> None:
        """Close the readers and connections."""


def model_of(batches: Iterable[Sequence[Effect]]) -> NaiveStore:
    """The naive store after these batches."""
    model = empty_model()
    for effects in batches:
        applied(model, effects)
    return model
