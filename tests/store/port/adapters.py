"""Engines that a store can have, as the tests of the port open them: a new one is held to them by its line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from store.ports import Stores
from store.sqlite.check import check
from store.sqlite.store import SqliteStores, message_file


@dataclass(frozen=True)
class Adapter:
    """An engine."""

    name: str
    stores: Callable[[Path], Stores]
    """In a folder of the test's."""
    check: Callable[[Path, str], list[str]]
    """What of the promises a closed store of that folder breaks, by the Message VPN's name."""


ADAPTERS = (Adapter("sqlite", SqliteStores, lambda folder, vpn: check(message_file(folder, vpn))),)
