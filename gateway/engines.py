"""
The engines that Message VPNs can be kept in, and which of them a Message VPN's settings name.

This is the one place in the gateway that knows them. An engine that comes with an extra of the package is loaded where
a Message VPN names it, and nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gateway.config import VpnStore, masked
from store.errors import StoreError
from store.following import FollowableStores, Followed
from store.ports import StoreOptions, Stores
from store.sqlite.store import SqliteStores

files_in: Final = SqliteStores
"""Those that a Message VPN has whose settings name no engine: a file each in the data folder."""


@contextmanager
def with_extra(extra: str, cannot: str, place: str, hidden: Collection[str] = ()) -> Iterator[None]:
    """
    Say what to install where a library is missing that comes with an extra of the package.

    Args:
        cannot: What cannot be done without it.
        place: With what: a URL, a folder.
        hidden: What it uses, or looks for, of what `rewind serve` hides from those who would load it for nothing
            (``gateway.cli.command.NEVER_USED``).

    Raises:
        StoreError: It is missing, or cannot be loaded.
    """
    for name in hidden:
        if sys.modules.get(name) is None:
            sys.modules.pop(name, None)
    try:
        yield
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError)
        raise StoreError(
            cannot,
            place,
            f"it needs {error.name}, which is not installed" if is_missing else str(error),
            f"Install it with: pip install 'rewind-gateway[{extra}]'",
        ) from None


def engine_of(settings: VpnStore) -> FollowableStores:
    """
    Stores on other machines: PostgreSQL's, whatever the scheme of the URL calls it.

    Raises:
        StoreError: The engine is not installed.
    """
    # psycopg takes numpy for loaded where it is hidden, and then sends no number in a copy.
    with with_extra("postgresql", "cannot use", masked(settings.url), hidden=("numpy",)):
        from store.postgresql.store import PostgresStores  # noqa: PLC0415 - comes with an extra
    return PostgresStores(
        settings.url,
        password_file=settings.password_file,
        read_url=settings.read_url,
        lease_seconds=settings.lease_seconds,
    )


class ChosenStores:
    """
    The stores of a gateway: of files in its data folder, and of each engine that is named, made once.

    Args:
        folder: The data folder.
        files: Makes the former.
        engine: Makes the latter.
    """

    def __init__(
        self,
        folder: Path,
        files: Callable[[Path], Stores],
        engine: Callable[[VpnStore], FollowableStores],
    ) -> None:
        self._files = files(folder)
        self._engine = engine
        self._made: dict[tuple[object, ...], FollowableStores] = {}

    def of(self, settings: VpnStore | None) -> Stores:
        """
        Those that a Message VPN's settings name. From any thread.

        Raises:
            StoreError: The engine is not installed.
        """
        return self._files if settings is None else self._engine_of(settings)

    def follow(self, vpn: str, settings: VpnStore, options: StoreOptions) -> Followed:
        """
        Read a Message VPN's store on a standby, whoever has it. Blocks; from any thread.

        Raises:
            StoreError: It cannot be read.
        """
        return self._engine_of(settings).follow(vpn, options)

    def _engine_of(self, settings: VpnStore) -> FollowableStores:
        key = (settings.url, settings.password_file, settings.read_url, settings.lease_seconds)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._engine(settings)
        return found
