"""
Settings of one Message VPN: its queues, its topics, its replay log, its store, and the peers that copies may go to.

The queues here exist when the gateway starts; clients and administrators may create more. A queue's table has a key for
each setting of an endpoint, which is defined once, in ``gateway.core.endpoint.settings``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field

from amqp_ext.topics import MAX_TOPIC_BYTES, MAX_TOPIC_LEVELS
from gateway.config.setting_types import (
    ArchivePlace,
    Count,
    PropertyName,
    QueueName,
    Quota,
    StartText,
    TargetLabel,
    TopicFilter,
    VpnName,
    parse_address,
    table,
)
from gateway.core.endpoint.settings import (
    MOST_IDS,
    MOST_PARTITIONS,
    SETTINGS,
    EndpointSettings,
    Exclusivity,
    RetryType,
    Setting,
    SettingType,
    Unit,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueKey:
    """A setting's key in the file."""

    setting: Setting
    key: str
    unit: Unit | None
    default: Any

    def value_of(self, settings: EndpointSettings) -> Any:
        """The value in the file for an endpoint with these settings."""
        return self.setting.told(getattr(settings, self.setting.name), self.unit)


SETTING_TYPES: Final[dict[SettingType, Any]] = {
    SettingType.FLAG: bool,
    SettingType.NUMBER: Annotated[int, Field(ge=0)],
    SettingType.QUOTA: Quota,
    SettingType.WINDOW: Annotated[int, Field(ge=0, le=MOST_IDS)],
    SettingType.QUEUE: Annotated[str, Field(max_length=200)],
    SettingType.PROPERTY: Annotated[str, Field(max_length=200)],
    SettingType.START: StartText,
    SettingType.EXCLUSIVITY: Literal[tuple(one.value for one in Exclusivity)],
    SettingType.RETRY: Literal[tuple(one.value for one in RetryType)],
    SettingType.PARTITIONS: Annotated[int, Field(ge=0, le=MOST_PARTITIONS)],
}

_SPELLED_OTHERWISE: Final = {"quota_bytes": ("quota_mb", Unit.MEGABYTES)}
"""Keys and units that differ from those of the setting."""

_DEFAULTS: Final = {"default_start": "live"}
"""Defaults that are a word in the file, and no value in the endpoint's settings."""


def _keys() -> Iterator[QueueKey]:
    for name, setting in SETTINGS.items():
        key, unit = _SPELLED_OTHERWISE.get(name, (name, setting.unit))
        default = _DEFAULTS.get(name, setting.told(setting.default, unit))
        yield QueueKey(setting, key, unit, default)


QUEUE_KEYS: Final = tuple(_keys())
"""Every setting of an endpoint, in the order of the documents."""


def with_queue_settings(table: type[T]) -> type[T]:
    """Give a table of the configuration a field for each setting of an endpoint, before it is made a dataclass."""
    for found in QUEUE_KEYS:
        described = Field(description=found.setting.described(found.unit))
        table.__annotations__[found.key] = Annotated[SETTING_TYPES[found.setting.type], described]
        setattr(table, found.key, field(default=found.default))
    return table


def endpoint_settings(queue: object) -> EndpointSettings:
    """The endpoint settings that such a table gives."""
    return EndpointSettings(
        **{k.setting.name: k.setting.read(getattr(queue, k.key), k.unit) for k in QUEUE_KEYS}
    )


SCHEMES: Final = ("postgresql", "postgres")
"""Schemes of URLs that there is an engine for."""

_PASSWORD_IN_FRONT: Final = re.compile(r"(://[^:/?#@\s]*):(\S*)@")
_PASSWORD_BEHIND: Final = re.compile(r"([?&](?:ssl)?password=)[^&#\"\s]*", re.IGNORECASE)


def masked(text: str) -> str:
    """A text, such as a store's URL, without the passwords of URLs in it, for logs and pages."""
    return _PASSWORD_BEHIND.sub(r"\1***", _PASSWORD_IN_FRONT.sub(r"\1:***@", text))


def has_password(url: str) -> bool:
    """Whether a store's URL contains a password."""
    return masked(url) != url


def without_password(url: str) -> tuple[str, str | None]:
    """A store's URL without the password before its hosts; and that password, decoded, or None."""
    found = _PASSWORD_IN_FRONT.search(url)
    if found is None:
        return url, None
    return url[: found.end(1)] + url[found.end(2) :], unquote(found[2])


def _store_url(url: str) -> str:
    scheme, marker, rest = url.partition("://")
    if not marker or scheme not in SCHEMES:
        raise ValueError(
            "it is not the URL of a store; write `postgresql://HOST/DATABASE`, for several hosts "
            "`postgresql://A,B/DATABASE?target_session_attrs=read-write`"
        )
    if not rest.partition("?")[0].partition("/")[2]:
        raise ValueError("it names no database; write `postgresql://HOST/DATABASE`")
    return url


def _advertised(text: str) -> str:
    address = parse_address(text)
    if "://" in text or address.port == 0 or address.host in ("0.0.0.0", "::"):
        raise ValueError(
            f"`{text}` is not an address that clients can connect to; write HOST:PORT, without a scheme"
        )
    return text


StoreUrl = Annotated[str, AfterValidator(_store_url)]
Advertised = Annotated[str, AfterValidator(_advertised)]


@table
class VpnStore:
    """A Message VPN whose messages are in PostgreSQL (15 or later) instead of a file in the data folder. Several
    gateways may name the same database: one of them is active, the others wait to take over. Needs the extra
    `rewind-gateway[postgresql]`."""

    url: StoreUrl
    """The database, as libpq writes it; with several hosts and `target_session_attrs=read-write` the current primary.
    The Message VPN has a schema of its own in it, `rewind_NAME`. A password in the URL is never shown."""

    password_file: Path | None = None
    """A file that holds the password, instead of one in `url`, where secrets are mounted as files. Read at each
    connect."""

    read_url: StoreUrl | None = None
    """The same database on a hot standby, for reading history: replays then cost the primary nothing. Messages that the
    standby does not have yet are read from the primary. Without it, history is read from the primary."""

    standby_reads: bool = False
    """Whether this gateway, while another one is active, serves readers of the log and of streams from the standby
    at `read_url`. They get the messages that the active gateway has confirmed, at most a second or two later if the
    standby keeps up. All other clients are sent to the active gateway."""

    require_standby: bool = False
    """Whether messages are refused while no synchronous standby answers, because a commit would then be on one machine
    only. Off accepts them and raises an alarm, so that the loss of a standby stops no client."""

    lease_seconds: Annotated[int, Field(ge=2, le=3_600)] = 5
    """Seconds since the newest commit after which nothing is delivered until a commit succeeds: another gateway may
    have taken over. A waiting gateway takes over from a hung one shortly after this time. The writer commits each
    second, so less than 2 would stop deliveries needlessly; more makes a takeover slower. Must be the same on all
    gateways."""

    advertise: Advertised | None = None
    """HOST:PORT to which waiting gateways send clients while this one is active. By default the first listener's;
    if that is bound to every address, this machine's name."""


def _peer_url(text: str) -> str:
    if "@" in text:
        raise ValueError(
            "has a user in it; name the user in `user`, and the file of the password in `password_file`"
        )
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname or port == 0:
        raise ValueError(
            f"`{text[:60]}` is not the URL of a peer; write `amqps://HOST:PORT`, or `amqp://HOST:PORT`"
        )
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("has more than host and port; each copy names the address there")
    return text


PeerUrl = Annotated[str, AfterValidator(_peer_url)]


@table
class ReplayTarget:
    """Another gateway, or any AMQP 1.0 broker, to which `rewind replay copy --at LABEL` may publish copies. Only the
    configuration can name one, so that users who may copy cannot make the gateway connect anywhere else."""

    url: PeerUrl
    """`amqp://HOST:PORT` or, with TLS, `amqps://HOST:PORT`; by default port 5672 or 5671. `amqp://` sends the password
    in clear."""

    vpn: VpnName | None = None
    """The Message VPN there. Without it the peer decides."""

    user: Annotated[str, Field(min_length=1)] | None = None
    """The user who publishes the copies there, by SASL PLAIN. Without it the gateway connects anonymously."""

    password_file: Path | None = None
    """A file that holds the password. Read at each connect, and never shown."""

    tls_ca: Path | None = None
    """Authorities, in PEM, that must have signed the peer's certificate. Without it, those that this machine trusts."""


@table
class Retention:
    """A retention rule for some topics of the replay log. The first rule that matches a topic applies; topics
    without a rule have the log's own limits only. Messages that leave the log are still delivered from the queues
    that have them."""

    topics: Annotated[tuple[TopicFilter, ...], Field(min_length=1)]
    """Topic subscriptions, `!` before an exception."""

    max_age_hours: Quota = 0
    """Hours after which their messages are trimmed, checked once a minute. 0 sets no limit."""

    quota_mb: Quota = 0
    """Megabytes of the disk that their messages may take. Beyond it the oldest are trimmed soon after, and no publisher
    waits for that. 0 sets no limit."""


@table
class ReplayLog:
    """The replay log of a Message VPN: every Guaranteed message in publish order, kept to be replayed."""

    enabled: bool = True
    """Whether there is a replay log. Off, messages exist only as long as an endpoint holds them, and every replay is
    refused with subcode 134."""

    write: bool = True
    """Whether messages are added to it. Off keeps its messages, which can be replayed, and adds no new ones."""

    read: bool = True
    """Whether it can be replayed and read. Off, messages are still added, to be read later."""

    quota_mb: Quota = 0
    """Megabytes of the disk that the log may take: each message counts with its share of the file's pages. 0 sets no
    limit but the disk's. From 90 % on the oldest messages are trimmed. Those still on a queue are delivered, but no
    longer count."""

    wait_for_room_seconds: Quota = 10
    """Seconds that a publisher waits at the quota while trimming makes no room at all; then its message is refused. 10,
    because a burst ends sooner and a client's own timeout comes later. 0 refuses immediately."""

    max_age_hours: Quota = 0
    """Hours after which a message is trimmed, checked once a minute. 0 sets no limit but the quota."""

    topics: tuple[TopicFilter, ...] = ()
    """Topics that are logged, as subscriptions, `!` before an exception; empty logs every topic. A log of some topics
    reaches further back on the same disk."""

    keep_until_archived: bool = False
    """Whether messages are trimmed, by quota, age or an administrator, only after they are archived. A log that is full
    then refuses new messages. Off, because it needs an archiver that keeps up."""

    filtered: bool = True
    """Whether `topics` is applied. Off keeps the list for later, and logs every topic."""

    promote_direct: bool = False
    """Whether pre-settled (Direct) messages are logged, too. Off, because their senders chose speed over keeping
    them."""

    retention: Annotated[tuple[Retention, ...], Field(max_length=100)] = ()
    """Rules for some topics. At most 100, because all are checked for each topic that was not seen lately."""

    replay_temporary: bool = True
    """Whether temporary endpoints can be replayed. On, because a short-lived reader is a common use; Solace
    refuses it."""

    max_replays: Count = 1_000
    """Endpoint replays at the same time. Each has a reader's page in memory; the next is refused with subcode 147."""

    index: tuple[PropertyName, ...] = ()
    """Properties by which replay starts are looked up: `message-id`, `correlation-id`, `group-id`, `subject`, or an
    application property's name. Empty, because each costs about 15 us per message. A start by any other property reads
    the log from its beginning; so does a start at a message that is older than the property's entry here."""


@table
class ArchivedLog:
    """The archive of a Message VPN's replay log. Log readers, streams and replays read trimmed messages from the
    archive, as if they were still in the log. Needs the extra `archive`."""

    place: Annotated[ArchivePlace | None, Field(alias="from")] = None
    """Where the archive is read: a folder, or a URI that pyarrow's file systems accept, such as
    `s3://bucket/folder?region=eu-west-1`: the `--to` of `rewind archive`. Without it, the place in `to`. Keys of a
    bucket belong in the environment, not here."""

    to: ArchivePlace | None = None
    """Where the gateway writes the archive, by an archiver process of its own, of some 150 MB, which runs as long as
    the gateway is active. Without it, `rewind archive` writes."""

    age_seconds: Annotated[int, Field(ge=1, le=3_600)] = 60
    """Seconds after which that archiver has archived a message, however few there are. It writes a file each time; at
    the end of a day the day's files become one."""

    @property
    def read_at(self) -> str:
        """Where it is read."""
        place = self.place or self.to
        assert place is not None
        return place


@table
@with_queue_settings
class Queue:
    """A queue that the gateway creates when it starts."""

    kind: Literal["queue", "stream", "last-value"] = "queue"
    """`queue`: holds messages until they are consumed. `stream`: a named view of the replay log, for any number of
    readers, each from its own start; reading removes nothing. `last-value`: a stream whose readers first get the newest
    message of each key (`value_key`)."""

    subscriptions: tuple[TopicFilter, ...] = ()
    """Topics that the queue attracts, in addition to messages sent to it by name; `!` before an exception."""

    @property
    def settings(self) -> EndpointSettings:
        """The endpoint settings of the queue: all keys except these two."""
        return endpoint_settings(self)


@table
class Vpn:
    """A Message VPN: its own queues, topics, ids and file. `default` is used by clients that name none."""

    enabled: bool = True
    """Whether clients can connect. Off keeps the data and refuses them."""

    create_queues: bool = True
    """Whether a queue is created when a client first sends to it or consumes from it. On, so that a fresh gateway works
    immediately; turn it off where a mistyped name must be an error."""

    max_topic_bytes: Annotated[int, Field(ge=1, le=MAX_TOPIC_BYTES)] = MAX_TOPIC_BYTES
    """Longest topic, in bytes of UTF-8. 250, as in Solace, so that topics can be taken over; it can only be reduced."""

    max_topic_levels: Annotated[int, Field(ge=1, le=MAX_TOPIC_LEVELS)] = MAX_TOPIC_LEVELS
    """Most levels in a topic. 128, as in Solace; matching compares them one by one."""

    max_endpoints: Count = 20_000
    """Queues, streams and topic endpoints, including temporary ones. Each costs some kilobytes of memory, and clients
    can create them; those that the configuration names are always created."""

    max_subscriptions_per_user: Count = 2_000
    """Durable subscriptions of one user. Messages are kept for them whether or not the user comes back."""

    subscription_expiry_hours: Quota = 0
    """Hours after which a topic endpoint without a consumer is deleted, with its messages; the count begins again when
    the gateway starts. 0 keeps it without limit, because messages that wait for a consumer must not be lost by
    default."""

    replay_log: ReplayLog = field(default_factory=ReplayLog)
    """Its replay log."""

    store: VpnStore | None = None
    """Where messages are stored, if not in a file of the data folder."""

    archive: ArchivedLog | None = None
    """Where replays read messages that the log no longer has."""

    replay_targets: Annotated[
        dict[TargetLabel, ReplayTarget], Field(alias="replay_target", max_length=100)
    ] = field(default_factory=dict)
    """Other places for copies of history, by label. At most 100."""

    queues: Annotated[dict[QueueName, Queue], Field(alias="queue")] = field(default_factory=dict)
    """Queues by name."""
