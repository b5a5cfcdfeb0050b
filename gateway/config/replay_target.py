"""Where copies of a Message VPN's history may go beside itself: AMQP peers, each by the label that jobs name it by."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from gateway.config.setting_types import VpnName, table


def _peer_url(text: str) -> str:
    if "@" in text:
        raise ValueError("has a user in it; give him by `user`, and the password by `password_file`")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname or port == 0:
        raise ValueError(
            f"`{text[:60]}` is no URL of a peer; write `amqps://HOST:PORT`, or `amqp://HOST:PORT`"
        )
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("has more than host and port; the address there is said by each copy")
    return text


def _label(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise ValueError(
            "a label has 1 to 64 characters of A-Z a-z 0-9 . _ - and begins with a letter or digit"
        )
    return text


PeerUrl = Annotated[str, AfterValidator(_peer_url)]
TargetLabel = Annotated[str, AfterValidator(_label)]


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTarget:
    """Another gateway, or any AMQP 1.0 broker, that `rewind replay copy --at LABEL` may publish copies to. Named here
    alone: nobody who may ask for a copy makes the gateway connect anywhere else."""

    url: PeerUrl
    """`amqp://HOST:PORT` or, with TLS, `amqps://HOST:PORT`; 5672 and 5671 where no port is named. A password goes over
    `amqp://` in clear."""

    vpn: VpnName | None = None
    """The Message VPN there. None leaves that to the peer."""

    user: Annotated[str, Field(min_length=1)] | None = None
    """As whom copies are published there, by SASL PLAIN. None comes without a name."""

    password_file: Path | None = None
    """A file that holds the password. Read at each connect, and shown nowhere."""

    tls_ca: Path | None = None
    """Authorities, in PEM, that the peer's certificate has to come from. None trusts those of this machine."""
