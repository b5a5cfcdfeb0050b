"""Where a Message VPN's messages are, if not in a file of the data folder: an engine on other machines, by its URL."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from gateway.config.listen_addresses import parse_address
from gateway.config.setting_types import table

SCHEMES: Final = ("postgresql", "postgres")
"""Of URLs whose engines there are."""

_PASSWORD_IN_FRONT: Final = re.compile(r"(://[^:/?#@\s]*):\S*@")
_PASSWORD_BEHIND: Final = re.compile(r"([?&](?:ssl)?password=)[^&#\"\s]*", re.IGNORECASE)


def masked(text: str) -> str:
    """A text, such as a store's URL, with the passwords of URLs in it taken out: for logs, and whoever looks on."""
    return _PASSWORD_BEHIND.sub(r"\1***", _PASSWORD_IN_FRONT.sub(r"\1:***@", text))


def has_password(url: str) -> bool:
    """Whether a store's URL says the password."""
    return masked(url) != url


def _store_url(url: str) -> str:
    scheme, marker, rest = url.partition("://")
    if not marker or scheme not in SCHEMES:
        raise ValueError(
            "it is no URL of a store; write `postgresql://HOST/DATABASE`, for several hosts "
            "`postgresql://A,B/DATABASE?target_session_attrs=read-write`"
        )
    if not rest.partition("?")[0].partition("/")[2]:
        raise ValueError("it names no database; write `postgresql://HOST/DATABASE`")
    return url


def _advertised(text: str) -> str:
    address = parse_address(text)
    if "://" in text or address.port == 0 or address.host in ("0.0.0.0", "::"):
        raise ValueError(
            f"`{text}` is nothing that clients can connect to; write HOST:PORT, without a scheme"
        )
    return text


StoreUrl = Annotated[str, AfterValidator(_store_url)]
Advertised = Annotated[str, AfterValidator(_advertised)]


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class VpnStore:
    """A Message VPN whose messages are in PostgreSQL (15 or later) in place of a file in the data folder. Several
    gateways may name the same one: one of them is active, the others wait for it. Needs the extra
    `rewind[postgresql]`."""

    url: StoreUrl
    """The database, as libpq writes it; with several hosts and `target_session_attrs=read-write` whichever is the
    primary. The Message VPN has a schema of its own in it, `rewind_NAME`. A password in here is shown nowhere."""

    password_file: Path | None = None
    """A file that holds the password, in place of one in `url`, for where secrets are mounted as files. Read at each
    connect."""

    read_url: StoreUrl | None = None
    """The same database on a hot standby, where history is read then: replays cost the primary nothing. What the
    standby has not replayed, or does not give, is read from the primary. None reads where it writes."""

    standby_reads: bool = False
    """Whether this gateway, while another one is active, serves readers of the log and of streams from the standby at
    `read_url`. They get what the active gateway has told of, a second or two later at most where the standby keeps up.
    Whoever wants anything else is sent to the active gateway, as without it."""

    require_standby: bool = False
    """Whether messages are refused while a commit would be on one machine only, as no synchronous standby answers.
    Off takes them and raises an alarm, so that the loss of a standby stops nobody."""

    lease_seconds: Annotated[int, Field(ge=2, le=3_600)] = 5
    """Seconds since the newest commit after which nothing more is delivered until one succeeds: another gateway may
    have taken over. One that waits takes over a second later from one that was stopped. The writer commits each second,
    so less than 2 would stop deliveries for nothing; more makes others wait longer. The same for all gateways."""

    advertise: Advertised | None = None
    """HOST:PORT that clients of gateways which wait are sent to while this one is active. The first listener's, if
    none is named: of one that is bound to every address, this machine's name."""
