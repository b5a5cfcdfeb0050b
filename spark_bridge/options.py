"""
The options of ``spark.read.format("rewind")``: names, meanings, defaults, the sentences for bad ones, and the values
that they become: which log is read, and what is selected of it.

Invariant: an ``Options`` value is complete and consistent; nothing after this module checks an option
again. Names and rules follow Spark's Kafka source where it has the same option: ``startingOffsets`` is inclusive,
``endingOffsets`` is exclusive, a batch refuses ``startingOffsets=latest`` and a stream an end. Spark asks for
the schema before it says whether it reads a batch or a stream: ``parse`` without a ``mode`` leaves those rules to the
call with one.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit

from amqp_ext.replay_start import parse_text
from amqp_ext.topics import TopicPattern
from spark_bridge.amqp_client.wire import Broker
from spark_bridge.errors import OptionError

T = TypeVar("T")
Mode: TypeAlias = Literal["batch", "stream"]

DEFAULT_PORT = 5672  # IANA's port for AMQP
DEFAULT_TLS_PORT = 5671  # IANA's port for AMQP over TLS
LAST_DATE = 253_402_300_799_999  # ms; the last moment of the year 9999
MAX_PARTITIONS = 10_000  # each is one Spark task and one connection; more is a typing error

# Option name -> what a good value looks like; the whole of what the source understands.
MEANINGS: dict[str, str] = {
    "url": "amqp://host:port or amqps://host:port of the broker; several, separated by commas",
    "path": "the data folder of a gateway on this host, in place of url",
    "dsn": (
        "the PostgreSQL database of a gateway, as a URI or in libpq's key=value form, without a "
        "password, in place of url"
    ),
    "archive": "the archive of the log, a folder or a URI; with url, path or dsn it is read first, or alone",
    "subscribe": "topic patterns, separated by commas (default >, every topic)",
    "startingOffsets": 'earliest, latest (streams), the first offset to read, or {"<partition>": offset}',
    "endingOffsets": 'latest, the offset to stop before, or {"<partition>": offset}',
    "startingTimestamp": "milliseconds since 1970; reading starts at the first message from then on",
    "endingTimestamp": "milliseconds since 1970; reading stops before the first message from then on",
    "replayStart": "any replay start: beginning, 10m, an RFC 3339 date, rmid1:..., #123, point:<name>, ...",
    "maxOffsetsPerTrigger": "the most offsets in one micro-batch of a stream, 1 or more (default: all there are)",
    "minPartitions": (
        f"the number of partitions, 1 to {MAX_PARTITIONS} (default: the number of cores, fewer for few ids)"
    ),
    "failOnDataLoss": "true, or false to skip what the log no longer has (default true)",
    "includeHeaders": "true, or false to leave out the column systemProperties (default true)",
    "messageVpn": "the Message VPN to read from (default: the broker's own default)",
    "user": "user name for SASL PLAIN (default: SASL ANONYMOUS)",
    "passwordFile": "a file holding the password, the url's or the dsn's, readable on every worker",
    "tlsCa": "a PEM file of the authorities trusted with amqps (default: the system's), readable on every worker",
}
_NAMES = {name.lower(): name for name in MEANINGS}

DEFAULT_VPN = "default"  # whose file is read where no Message VPN is named


@dataclass(frozen=True, slots=True)
class Folder:
    """The data folder of a gateway on this host, and the Message VPN whose log is read."""

    path: str
    vpn: str = DEFAULT_VPN

    @property
    def file(self) -> Path:
        """The Message VPN's file."""
        return Path(self.path) / f"{self.vpn}.db"


@dataclass(frozen=True, slots=True)
class Schema:
    """A database of PostgreSQL, and the Message VPN whose log is read."""

    dsn: str
    """libpq's connection string, or URI, without a password."""
    vpn: str = DEFAULT_VPN
    password_file: str | None = None
    """A file with the password and nothing else."""


@dataclass(frozen=True, slots=True)
class Archived:
    """An archive that is read alone, without its log."""

    url: str


EVERY_TOPIC: Final[tuple[str, ...]] = (">",)


@dataclass(frozen=True, slots=True)
class Selection:
    """
    A part of one log.

    ``start`` is a replay start text (``beginning``, ``#17``, ``10m``, ...); ``stop`` the first offset not to read, or
    None for everything there was when the read was planned. ``since`` and ``before`` are the same as times, in ms, and
    take precedence. ``partition`` is the value of the column of that name.
    """

    patterns: tuple[str, ...] = EVERY_TOPIC
    start: str = "beginning"
    stop: int | None = None
    since: int | None = None
    before: int | None = None
    fail_on_data_loss: bool = True
    partition: int = 0


WHOLE_LOG = Selection()


Address: TypeAlias = Broker | Folder | Schema | Archived


@dataclass(frozen=True, slots=True)
class Options:
    """
    One read of one log or of several, as asked for.

    ``partitions`` None means one for each core; ``per_trigger`` is the most offsets of a micro-batch.
    """

    addresses: tuple[Address, ...]
    selections: tuple[Selection, ...]
    """What is read at each address."""
    partitions: int | None = None
    per_trigger: int | None = None
    headers: bool = True
    archive: str | None = None
    """The archive, which may have what the log no longer has."""

    @property
    def broker(self) -> Broker:
        """The first of the brokers."""
        first = self.addresses[0]
        if not isinstance(first, Broker):
            raise OptionError("Option url is missing: this needs a broker.")
        return first


def parse(given: Mapping[str, str], mode: Mode | None = None) -> Options:
    """
    The options of one read; case in names is ignored.

    Raises:
        OptionError: One error for all problems.
    """
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
            reason = f" ({str(error).rstrip('.')})" if str(error) else ""
            # What may have a password in it is not repeated.
            given = name if name == "dsn" or "@" in values[name] else f"{name}={values[name]!r}"
            problems.append(f"Option {given} is not {MEANINGS[name]}{reason}.")
            return default

    vpn, user = read("messageVpn", _filled, None), read("user", _filled, None)
    password_file, tls_ca = read("passwordFile", _filled, None), read("tlsCa", _filled, None)
    no_urls: tuple[tuple[str, int, bool], ...] = ()
    urls, path, dsn = read("url", _urls, no_urls), read("path", _folder, None), read("dsn", _dsn, None)
    addresses: tuple[Address, ...] = tuple(
        Broker(host, port, vpn, user, password_file, tls, tls_ca) for host, port, tls in urls
    )
    archive = read("archive", _filled, None)
    if archive is not None and len(urls) > 1:
        problems.append("Option archive goes with one url: each log has an archive of its own.")
    if path is None and dsn is None and not urls and archive is not None:
        addresses = (Archived(archive),)
    if path is not None:
        addresses = (Folder(path, vpn or DEFAULT_VPN),)
    elif dsn is not None:
        addresses = (Schema(dsn, vpn or DEFAULT_VPN, password_file),)
    if "dsn" in values:
        problems += [
            f"Option {name} belongs to a url; dsn says {said} by itself."
            for name, said in (("user", "who reads"), ("tlsCa", "whom to trust (sslrootcert)"))
            if name in values
        ]
    elif path is not None or "url" not in values:
        for name in ("user", "passwordFile", "tlsCa"):
            if name in values:
                problems.append(
                    f"Option {name} belongs to a url; files are read with this user's own rights."
                )
    if not {"url", "path", "dsn", "archive"} & set(values):
        problems.append(f"Option url is missing: {MEANINGS['url']}.")
    named = [name for name in ("url", "path", "dsn") if name in values]
    if len(named) > 1:
        both = "both" if len(named) == 2 else "all"
        problems.append(f"Options {' and '.join(named)} {both} name a log; give one of them.")
    if vpn is not None and (vpn in {".", ".."} or "/" in vpn):
        problems.append(f"Option messageVpn={vpn!r} is not a name of a Message VPN.")
    if tls_ca is not None and urls and not any(tls for _, _, tls in urls):
        problems.append("Option tlsCa needs a url with amqps://.")
    if "dsn" not in values and ("user" in values) != ("passwordFile" in values):
        problems.append(
            "Options user and passwordFile belong together; give both, or neither for SASL ANONYMOUS."
        )
    problems += [
        f"Options replayStart and {name} both name a start; give one of them."
        for name in ("startingOffsets", "startingTimestamp")
        if "replayStart" in values and name in values
    ]
    since, before = read("startingTimestamp", _time, None), read("endingTimestamp", _time, None)
    if since is not None and before is not None and since > before:
        problems.append(f"Option endingTimestamp={before} is before startingTimestamp={since}.")
    count = len(addresses)
    earliest = "live" if mode == "stream" else "beginning"
    starts = read("startingOffsets", lambda text: _starting(text, count), (earliest,) * count)
    everything: tuple[int | None, ...] = (None,) * count
    stops = read("endingOffsets", lambda text: _ending(text, count), everything)
    if mode == "batch":
        if "live" in starts:
            problems.append(
                "Option startingOffsets=latest is for streams; a batch that starts there reads nothing."
            )
        if "maxOffsetsPerTrigger" in values:
            problems.append(
                "Option maxOffsetsPerTrigger is for streams; leave it out, or use spark.readStream."
            )
    if mode == "stream":
        problems += [
            f"Option {name} is for batches; a stream has no end."
            for name in ("endingOffsets", "endingTimestamp")
            if name in values
        ]
    patterns = read("subscribe", _patterns, WHOLE_LOG.patterns)
    asked = read("replayStart", _start_text, None)
    is_plain = not any("?" in text or text[0] == "!" for text in patterns)
    if urls and asked == "last" and not is_plain:
        problems.append(
            "Over a url replayStart=last cannot be looked up where subscribe has an exception or a question mark; "
            "start at an offset or a time."
        )
    if urls and (asked or "").lower().startswith("last:") and not (is_plain and len(patterns) == 1):
        problems.append(
            "Over a url replayStart=last:N takes one topic in subscribe, without an exception or a question mark; "
            "start at an offset or a time."
        )
    loses_nothing = read("failOnDataLoss", _flag, True)
    options = Options(
        addresses,
        tuple(
            Selection(patterns, asked or start, stop, since, before, loses_nothing, number)
            for number, (start, stop) in enumerate(zip(starts, stops, strict=True))
        ),
        partitions=read("minPartitions", _partitions, None),
        per_trigger=read("maxOffsetsPerTrigger", _positive, None),
        headers=read("includeHeaders", _flag, True),
        archive=archive,
    )
    if problems:
        raise OptionError(" ".join(problems))
    return options


def _unknown(key: str) -> str:
    close = difflib.get_close_matches(key.lower(), _NAMES, n=1, cutoff=0.6)
    hint = f"did you mean {_NAMES[close[0]]}?" if close else "known options are " + ", ".join(MEANINGS) + "."
    return f"Option {key} is unknown; {hint}"


def _urls(text: str) -> tuple[tuple[str, int, bool], ...]:
    urls = tuple(_url(part.strip()) for part in text.split(","))
    if len(set(urls)) < len(urls):
        raise ValueError("one of them is given twice")
    return urls


def _url(text: str) -> tuple[str, int, bool]:
    parts = urlsplit(text)
    if parts.username is not None or parts.password is not None:
        raise ValueError("credentials go into the options user and passwordFile")
    is_whole = parts.hostname and parts.path in {"", "/"} and not parts.query and not parts.fragment
    if parts.scheme not in {"amqp", "amqps"} or not parts.hostname or not is_whole:
        raise ValueError("for example amqp://127.0.0.1:5672")
    if parts.port == 0:
        raise ValueError("port 0 is not a port to connect to")
    tls = parts.scheme == "amqps"
    return parts.hostname, parts.port or (DEFAULT_TLS_PORT if tls else DEFAULT_PORT), tls


def _filled(text: str) -> str | None:
    if not text:
        raise ValueError("it is empty")
    return text


def _folder(text: str) -> str | None:
    if "://" in text:
        raise ValueError("it is a URI; a broker's goes into the option url, an archive's into archive")
    return _filled(text)


def _dsn(text: str) -> str | None:
    found = re.match(r"postgres(?:ql)?://(?:([^/@]*)@)?", text)
    if re.search(r"(?:^|[\s?&])(?:ssl)?password\s*=", text) or (found and ":" in (found[1] or "")):
        raise ValueError("passwords go into the option passwordFile")
    if "://" in text and not found:
        raise ValueError("for example postgresql://reader@a,b/rewind?target_session_attrs=prefer-standby")
    return _filled(text)


def _start_text(text: str) -> str | None:
    if not text:
        raise ValueError("it is empty")
    start = parse_text(text)  # raises ReplayStartError, a ValueError
    return start.kind.value if start.value is None else text


def _patterns(text: str) -> tuple[str, ...]:
    patterns = tuple(part.strip() for part in text.split(","))
    for pattern in patterns:
        TopicPattern.parse(pattern)
    return patterns


def _whole(least: int, most: int, meaning: str = "") -> Callable[[str], int]:
    """Reads a whole number within bounds; ``meaning`` says what one is."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,19}", text) or not least <= int(text) <= most:
            raise ValueError(meaning)
        return int(text)

    return read


_offset = _whole(0, (1 << 63) - 1, "an offset is a whole number below 2^63")
_time = _whole(0, LAST_DATE, "a time is a whole number of milliseconds, up to the year 9999")
_positive = _whole(1, 10**18 - 1)
_partitions = _whole(1, MAX_PARTITIONS)


def _starting(text: str, count: int) -> tuple[str, ...]:
    """A start for each partition."""
    if text.startswith("{"):
        words = {-2: "beginning", -1: "live"}
        return tuple(words.get(offset, f"#{offset}") for offset in _each(text, count))
    word = {"earliest": "beginning", "latest": "live"}.get(text.lower())
    return (word or f"#{_offset(text)}",) * count


def _ending(text: str, count: int) -> tuple[int | None, ...]:
    """An exclusive end for each partition; None for all there is."""
    if text.startswith("{"):
        offsets = _each(text, count)
    else:
        offsets = [{"earliest": -2, "latest": -1}.get(text.lower()) or _offset(text)] * count
    if -2 in offsets or text.lower() == "earliest":
        raise ValueError("a batch that ends at the beginning would read nothing")
    return tuple(None if offset == -1 else offset for offset in offsets)


def _each(text: str, count: int) -> list[int]:
    """The offsets of ``{"0": 17, "1": -1}``, by partition; -2 is earliest and -1 latest, as with Kafka."""
    found = json.loads(text)
    if sorted(found) != sorted(map(str, range(count))):
        raise ValueError(f"it has to name each partition, 0 to {count - 1}")
    for offset in found.values():
        if type(offset) is not int or not -2 <= offset < 1 << 63:
            raise ValueError("an offset is a whole number below 2^63; -2 is earliest, -1 latest")
    return [found[str(number)] for number in range(count)]


def _flag(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError
    return text.lower() == "true"
