"""The address of a broker, and who logs in there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from store.archive.errors import ConnectionFailed


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the log is and who reads it. The password is not kept: plans and tasks are seen by many."""

    host: str
    port: int
    vpn: str | None = None
    user: str | None = None
    password_file: str | None = None
    tls: bool = False
    tls_ca: str | None = None

    @property
    def url(self) -> str:
        """The address as the user wrote it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'amqps' if self.tls else 'amqp'}://{host}:{self.port}"

    def password(self) -> str:
        """The first line of the password file, or an empty text without one; raises ConnectionFailed."""
        if self.password_file is None:
            return ""
        try:
            text = Path(self.password_file).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConnectionFailed(
                f"The passwordFile {self.password_file} cannot be read: {reason}."
            ) from error
        return text.split("\n", 1)[0].rstrip("\r")
