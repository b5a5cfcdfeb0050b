"""
The types of settings' values, each with its check.

A check raises ValueError with the second half of a sentence whose first half is the setting's path:
"vpn.default.queue.orders.subscriptions[0]: " + "``a//b`` ...". Nothing here knows which setting it checks.
"""

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, NamedTuple, TypeVar, dataclass_transform
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, with_config

from amqp_ext.addresses.address import AddressKind
from amqp_ext.addresses.patterns import AddressPattern
from amqp_ext.replay_start import StartKind, parse_text
from amqp_ext.sasl import normalise
from amqp_ext.sasl import parse as parse_password
from amqp_ext.selector.selector import compile_selector
from amqp_ext.topics import TopicPattern

T = TypeVar("T")

_PREFIX: Final = "sha256$"
_TOKEN_BYTES: Final = 32


def new_token() -> str:
    """A fresh token, of the letters, digits, ``-`` and ``_`` that a header takes (RFC 6750 section 2.1)."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def token_hash(token: str) -> str:
    """The hash of a token, as the configuration holds it."""
    return _PREFIX + hashlib.sha256(token.encode()).hexdigest()


def spelled(pattern: str, otherwise: str) -> Callable[[str], str]:
    """A check that a text is of a form; ``otherwise`` is the error, with ``{}`` for the text if it may be shown."""
    form = re.compile(pattern)

    def check(text: str) -> str:
        if not form.fullmatch(text):
            raise ValueError(otherwise.format(text))
        return text

    return check


check_token_hash = spelled(
    r"sha256\$[0-9a-f]{64}",
    "not a token's hash, `sha256$` and 64 hexadecimal digits; make both with `rewind new-token`",
)


INT_MAX = 2**31 - 1
UINT_MAX = 2**32 - 1
USHORT_MAX = 2**16 - 1


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def table(kind: type[T]) -> type[T]:
    """Make a table of settings: a frozen dataclass, without coercion ("5" is not 5, true is not 1) or unknown keys."""
    made = dataclass(frozen=True, slots=True, kw_only=True)(kind)
    return with_config(ConfigDict(strict=True, extra="forbid"))(made)


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach ``host``. A name other than ``localhost`` counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_host(host: str) -> str:
    """``host`` as it is, if a socket can be bound to it by that text.

    Raises:
        ValueError: No socket can.
    """
    if host in {"", "*"}:
        raise ValueError("name a host; for every address of this machine write `0.0.0.0` or `::`")
    if re.search(r"[\s\[\]/@]", host):
        raise ValueError(f"`{host}` is not a host; write a name or an address, without scheme or brackets")
    return host


def _collector_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"`{text.rpartition('@')[2]}` is not the URL of a collector; write `http://HOST:4318/v1/traces`"
        )
    if "@" in parts.netloc:
        raise ValueError("has a key in it; put keys into the file of headers, `telemetry.headers_file`")
    return text


def check_provider_url(text: str) -> str:
    """``text`` as it is, if only the provider can answer there.

    Raises:
        ValueError: It is no URL, or uses plain HTTP over a network, where an attacker could put in keys of his own.
    """
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.fragment:
        raise ValueError(
            "is not a URL that can be used; write `https://HOST/PATH`, without a user and a fragment"
        )
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ValueError("is `http://` to another machine; what it answers must come over `https://`")
    return text


def _topic_filter(text: str) -> str:
    TopicPattern.parse(text)
    return text


def _replay_start(text: str) -> str:
    start = parse_text(text)
    if start.kind is StartKind.MATCH:
        compile_selector(str(start.value))
    return text


def _archive_place(text: str) -> str:
    if not text.strip():
        raise ValueError("name a folder or a URI")
    if "@" in urlsplit(text).netloc:
        raise ValueError("has a key in it; put keys into the environment, as for the bucket's own tools")
    return text


def check_password_hash(text: str) -> str:
    """``text`` as it is, if a password can be checked against it.

    Raises:
        ValueError: No password can; the sentence does not quote it.
    """
    try:
        parse_password(text)
    except ValueError as error:
        raise ValueError(f"{error}; make one with `rewind hash-password`") from None
    return text


def _user_name(name: str) -> str:
    if not name or normalise(name) != name:
        # A client's name is compared after SASLprep, so another spelling would never match.
        raise ValueError("a user's name is not empty and is spelled as SASLprep (RFC 4013) leaves it")
    return name


def _rule(action: str, *kinds: AddressKind) -> Callable[[str], str]:
    """A check that a text is a pattern of addresses on which ``action`` makes sense."""

    def check(text: str) -> str:
        if AddressPattern.parse(text).kind not in kinds:
            schemes = " or ".join(f"`{kind.value}://`" for kind in kinds)
            raise ValueError(
                f"{text!r} is not an address to {action}; what can be permitted here is {schemes}"
            )
        return text

    return check


Host = Annotated[str, AfterValidator(check_host)]
CollectorUrl = Annotated[str, AfterValidator(_collector_url)]
ServiceName = Annotated[str, Field(min_length=1, max_length=255)]
ProviderUrl = Annotated[str, AfterValidator(check_provider_url)]
Word = Annotated[str, AfterValidator(spelled(r"\S(?:.*\S)?", "must not be empty, nor have spaces around it"))]
Port = Annotated[int, Field(ge=0, le=USHORT_MAX)]
Count = Annotated[int, Field(ge=1, le=INT_MAX)]
Bytes = Annotated[int, Field(ge=1, le=2**40)]
Quota = Annotated[int, Field(ge=0, le=2**40)]
# Compared as a whole with what a browser sends, so another spelling would never match.
_origin = spelled(
    r"[a-z][a-z0-9+.-]*://[^\s/?#@A-Z]+",
    "`{}` is not an origin; write `https://HOST` or `https://HOST:PORT`, without a path",
)
WebOrigin = Annotated[str, AfterValidator(_origin)]


def _label(what: str) -> Callable[[str], str]:
    """A check of a name in a narrow alphabet: a VPN's becomes a file name and is compared with host names."""
    return spelled(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
        f"a {what} has 1 to 64 characters of A-Z a-z 0-9 . _ - and begins with a letter or digit",
    )


VpnName = Annotated[str, AfterValidator(_label("name"))]
TargetLabel = Annotated[str, AfterValidator(_label("label"))]
_queue_name = spelled("[^*>?]+", "a queue's name is not empty and has none of the characters `*`, `>`, `?`")
QueueName = Annotated[str, AfterValidator(_queue_name)]
TopicFilter = Annotated[str, AfterValidator(_topic_filter)]
ArchivePlace = Annotated[str, AfterValidator(_archive_place)]
PropertyName = Annotated[str, AfterValidator(spelled(r"(?s).*\S.*", "a property's name is not empty"))]
StartText = Annotated[str, AfterValidator(_replay_start)]
PasswordHash = Annotated[str, AfterValidator(check_password_hash)]
TokenHash = Annotated[str, AfterValidator(check_token_hash)]
UserName = Annotated[str, AfterValidator(_user_name)]
CommonName = Annotated[str, Field(min_length=1)]

_QUEUE, _TOPIC, _LOG = AddressKind.QUEUE, AddressKind.TOPIC, AddressKind.LOG
PublishRule = Annotated[str, AfterValidator(_rule("publish to", _QUEUE, _TOPIC))]
ConsumeRule = Annotated[str, AfterValidator(_rule("consume", _QUEUE, _TOPIC, _LOG))]
BrowseRule = Annotated[str, AfterValidator(_rule("browse", _QUEUE))]
ReplayRule = Annotated[str, AfterValidator(_rule("replay", _QUEUE, _TOPIC))]
AdministerRule = Annotated[str, AfterValidator(_rule("administer", _QUEUE, _TOPIC, _LOG))]

Mechanism = Literal[
    "ANONYMOUS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "EXTERNAL", "OAUTHBEARER", "XOAUTH2"
]


class ListenAddress(NamedTuple):
    """Where to listen: a host without brackets, a port from 0 to 65535, and whether TLS was asked for."""

    host: str
    port: int
    secure: bool


def parse_address(text: str) -> ListenAddress:
    """The address in ``127.0.0.1:5672``, ``[::1]:5672``, ``amqp://…`` or ``amqps://…``.

    Raises:
        ValueError: It is no address; the text says what is wrong.
    """
    scheme, marker, rest = text.rpartition("://")
    if marker and scheme not in {"amqp", "amqps", "http", "https"}:
        raise ValueError(f"`{scheme}://` is not a scheme to listen for; write `amqp://`, `amqps://` or none")
    host, colon, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address needs brackets, as in `[::1]:5672`")
    if not colon:
        raise ValueError("the port is missing; write HOST:PORT, as in `127.0.0.1:5672`")
    if not (port.isascii() and port.isdigit() and int(port) <= USHORT_MAX):
        raise ValueError(f"`{port}` is not a port; write a number from 0 (a free one) to {USHORT_MAX}")
    return ListenAddress(check_host(host), int(port), scheme in {"amqps", "https"})
