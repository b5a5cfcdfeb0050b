"""Where else than at a broker a log may lie: a gateway's data folder on this host, PostgreSQL, or an archive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_VPN = "default"  # whose file is read where no Message VPN is named


@dataclass(frozen=True, slots=True)
class Folder:
    """The data folder of a gateway on this host, and whose log in it."""

    path: str
    vpn: str = DEFAULT_VPN

    @property
    def file(self) -> Path:
        """The Message VPN's file."""
        return Path(self.path) / f"{self.vpn}.db"

    @property
    def url(self) -> str:
        """The file, as messages name it."""
        return str(self.file)


@dataclass(frozen=True, slots=True)
class Schema:
    """A database of PostgreSQL, and whose log in it."""

    dsn: str
    """libpq's connection string, or URI, without a password."""
    vpn: str = DEFAULT_VPN
    password_file: str | None = None
    """Holds the password and nothing else."""


@dataclass(frozen=True, slots=True)
class Archived:
    """No log at all: what its archive holds."""

    url: str
