"""The options of ``spark.read.format("rewind")``: names, meanings, defaults, and the sentences for bad ones.

Invariant: an ``Options`` value is complete and consistent; nothing after this module checks an option
again. Names and rules follow Spark's Kafka source where it has one: ``startingOffsets`` is inclusive,
``endingOffsets`` is exclusive, and a batch refuses ``startingOffsets=latest``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from amqp_ext.topics import TopicPattern
from spark_bridge.errors import ConnectionFailed, OptionError

T = TypeVar("T")

DEFAULT_PORT = 5672  # IANA's port for AMQP
MAX_PARTITIONS = 10_000  # each is one Spark task and one connection; more is a slip of the finger

# Option name -> what a good value looks like; the whole of what the source understands.
MEANINGS: dict[str, str] = {
    "url": "amqp://host:port of the broker",
    "subscribe": "topic patterns, separated by commas (default >, every topic)",
    "startingOffsets": "earliest, or the first offset to read",
    "endingOffsets": "latest, or the offset to stop before",
    "replayStart": "any replay start: beginning, 10m, an RFC 3339 date, rmid1:..., #123, point:<name>, ...",
    "minPartitions": f"the number of partitions, 1 to {MAX_PARTITIONS} (default: the cores of the driver)",
    "messageVpn": "the Message VPN to read from (default: the broker's own default)",
    "user": "user name for SASL PLAIN (default: SASL ANONYMOUS)",
    "passwordFile": "a file holding the user's password, readable on every worker",
}
_NAMES = {name.lower(): name for name in MEANINGS}


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the log is and who reads it. The password is not kept: plans and tasks are seen by many."""

    host: str
    port: int
    vpn: str | None = None
    user: str | None = None
    password_file: str | None = None

    @property
    def url(self) -> str:
        """The address as the user wrote it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"amqp://{host}:{self.port}"

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


@dataclass(frozen=True, slots=True)
class Options:
    """One read of the log, as asked for.

    ``start`` is a replay start text (``beginning``, ``#17``, ``10m``, ...); ``stop`` the first offset not
    to read, or None for everything there was when the read was planned; ``partitions`` None means one for
    each core.
    """

    broker: Broker
    patterns: tuple[str, ...] = (">",)
    start: str = "beginning"
    stop: int | None = None
    partitions: int | None = None


def parse(given: Mapping[str, str]) -> Options:
    """The options of one read; case in names is ignored. Raises one OptionError for all problems."""
    problems: list[str] = []
    values: dict[str, str] = {}
    for key, value in given.items():
        name = _NAMES.get(key.lower())
        if name is None:
            problems.append(_unknown(key))
        else:
            values[name] = value.strip()

    def read(name: str, parser: Callable[[str], T], default: T) -> T:
        if name not in values:
            return default
        try:
            return parser(values[name])
        except ValueError as error:
            reason = f" ({error})" if str(error) else ""
            problems.append(f"Option {name}={values[name]!r} is not {MEANINGS[name]}{reason}.")
            return default

    host, port = read("url", _url, ("", 0))
    if "url" not in values:
        problems.append(f"Option url is missing: {MEANINGS['url']}.")
    if "replayStart" in values and "startingOffsets" in values:
        problems.append("Options replayStart and startingOffsets both name a start; give one of them.")
    if ("user" in values) != ("passwordFile" in values):
        problems.append(
            "Options user and passwordFile belong together; give both, or neither for SASL ANONYMOUS."
        )
    start = read("startingOffsets", _starting, "beginning")
    options = Options(
        broker=Broker(
            host,
            port,
            read("messageVpn", _filled, None),
            read("user", _filled, None),
            read("passwordFile", _filled, None),
        ),
        patterns=read("subscribe", _patterns, (">",)),
        start=read("replayStart", _filled, None) or start,
        stop=read("endingOffsets", _ending, None),
        partitions=read("minPartitions", _partitions, None),
    )
    if problems:
        raise OptionError(" ".join(problems))
    return options


def _unknown(key: str) -> str:
    close = difflib.get_close_matches(key.lower(), _NAMES, n=1, cutoff=0.6)
    hint = f"did you mean {_NAMES[close[0]]}?" if close else "known options are " + ", ".join(MEANINGS) + "."
    return f"Option {key} is unknown; {hint}"


def _url(text: str) -> tuple[str, int]:
    parts = urlsplit(text)
    if parts.username is not None or parts.password is not None:
        raise ValueError("credentials go into the options user and passwordFile")
    if parts.scheme == "amqps":
        raise ValueError("TLS is not supported here; use a plain listener on a trusted network")
    if (
        parts.scheme != "amqp"
        or not parts.hostname
        or parts.path not in {"", "/"}
        or parts.query
        or parts.fragment
    ):
        raise ValueError("for example amqp://127.0.0.1:5672")
    return parts.hostname, DEFAULT_PORT if parts.port is None else parts.port


def _filled(text: str) -> str | None:
    if not text:
        raise ValueError("it is empty")
    return text


def _patterns(text: str) -> tuple[str, ...]:
    patterns = tuple(part.strip() for part in text.split(","))
    for pattern in patterns:
        TopicPattern.parse(pattern)
    return patterns


def _offset(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) >= 1 << 63:
        raise ValueError("an offset is a whole number below 2^63")
    return int(text)


def _starting(text: str) -> str:
    if text.lower() == "latest":
        raise ValueError("a batch that starts at the end would read nothing")
    return "beginning" if text.lower() == "earliest" else f"#{_offset(text)}"


def _ending(text: str) -> int | None:
    if text.lower() == "earliest":
        raise ValueError("a batch that ends at the beginning would read nothing")
    return None if text.lower() == "latest" else _offset(text)


def _partitions(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= MAX_PARTITIONS:
        raise ValueError
    return int(text)
