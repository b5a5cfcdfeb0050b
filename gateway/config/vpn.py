"""Settings of one Message VPN: its queues, its topics, its replay log.

What is said here of a queue holds when the gateway starts; clients and administrators may create more.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from amqp_ext.topics import MAX_TOPIC_BYTES, MAX_TOPIC_LEVELS
from gateway.config.queue_settings import endpoint_settings, with_queue_settings
from gateway.config.replay_target import ReplayTarget, TargetLabel
from gateway.config.setting_types import (
    ArchivePlace,
    Count,
    PropertyName,
    QueueName,
    Quota,
    TopicFilter,
    table,
)
from gateway.config.vpn_store import VpnStore
from gateway.core.endpoint.settings import EndpointSettings


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """A rule of retention, for some topics of the replay log. Of the rules that match a topic the first one holds; what
    none matches is under the log's own bounds alone. What leaves the log is delivered where it lies on a queue."""

    topics: Annotated[tuple[TopicFilter, ...], Field(min_length=1)]
    """Topic subscriptions, `!` before an exception."""

    max_age_hours: Quota = 0
    """Hours after which a message of theirs is trimmed, looked at once a minute. 0 is no bound but the others."""

    quota_mb: Quota = 0
    """Megabytes of the disk that theirs may take; the oldest are trimmed behind, and no publisher waits for it. 0 is
    no bound but the others."""


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLog:
    """The replay log of a Message VPN: every Guaranteed message in publish order, kept to be replayed."""

    enabled: bool = True
    """Whether there is one. Off, messages live only as long as an endpoint holds them, and every replay is
    refused with subcode 134."""

    write: bool = True
    """Whether messages are added to it. Off keeps what it has, to be replayed, and takes nothing new."""

    read: bool = True
    """Whether it can be replayed and read. Off, it is filled all the same, for a time when it can."""

    quota_mb: Quota = 0
    """Megabytes the log may take of the disk: each message counts with its share of the file's pages. 0 is no
    bound but the disk. The oldest messages are trimmed near it; those still on a queue are delivered all the same, and
    count no longer."""

    wait_for_room_seconds: Quota = 10
    """Seconds for which a publisher waits at the quota while trimming makes no room at all; then it is refused. 10,
    because a burst ends sooner and a client's own timeout comes later. 0 refuses at once."""

    max_age_hours: Quota = 0
    """Hours after which a message is trimmed, looked at once a minute. 0 is no bound but the quota."""

    topics: tuple[TopicFilter, ...] = ()
    """Topic subscriptions the log takes, `!` before an exception; none takes every topic. A log for some
    topics only lasts longer on the same disk."""

    keep_until_archived: bool = False
    """Whether nothing is trimmed, by quota, age or an administrator, before `rewind archive` has it. A log that
    is full then takes nothing new, and publishers are told. Off, because it needs an archiver that keeps up."""

    filtered: bool = True
    """Whether `topics` are heeded, where there are any. Off keeps the list for later, and takes every topic."""

    promote_direct: bool = False
    """Whether pre-settled (Direct) messages are logged too. Off, because their senders asked for speed, not
    for keeping."""

    retention: Annotated[tuple[Retention, ...], Field(max_length=100)] = ()
    """Rules for some topics. At most 100, as each is looked at for a topic that was not seen lately."""

    replay_temporary: bool = True
    """Whether temporary endpoints can be replayed. On, because a short-lived reader is a common use; Solace
    refuses it."""

    max_replays: Count = 1_000
    """Endpoint replays under way at once. Each has a reader's page in memory; the next is refused with
    subcode 147."""

    index: tuple[PropertyName, ...] = ()
    """Properties by which replay starts are looked up: `message-id`, `correlation-id`, `group-id`, `subject`, or
    an application property's name. None, because each takes about 15 us of every message; a start by another
    reads the log from its beginning, and so it does for messages from before the property was named here."""


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedLog:
    """The archive of a Message VPN's replay log, which `rewind archive` keeps. What was trimmed from the log is read
    from there, by log readers, streams and replays, as if it were in the log still. Needs the extra `archive`."""

    place: Annotated[ArchivePlace, Field(alias="from")]
    """A folder, or a URI that pyarrow's file systems take, such as `s3://bucket/folder?region=eu-west-1`; what
    `rewind archive` has as `--to`. Keys of a bucket belong in the environment, not here."""


@table
@dataclass(frozen=True, slots=True, kw_only=True)
@with_queue_settings
class Queue:
    """A queue that exists from the start."""

    kind: Literal["queue", "stream"] = "queue"
    """`queue`: messages lie on it until they are consumed. `stream`: a named view of the replay log, for any
    number of readers, each from its own start; nothing is ever removed by reading it."""

    subscriptions: tuple[TopicFilter, ...] = ()
    """Topics the queue attracts, besides what is sent to it by name; `!` before an exception."""

    @property
    def settings(self) -> EndpointSettings:
        """What is said of the queue beside these two: a key for each setting of an endpoint."""
        return endpoint_settings(self)


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class Vpn:
    """A Message VPN: its own queues, topics, ids and file. `default` is used by clients that name none."""

    enabled: bool = True
    """Whether clients can connect. Off keeps the data and refuses them."""

    create_queues: bool = True
    """Whether a queue comes into being when a client first sends to it or consumes from it. On, so that a
    fresh gateway works at once; off where a mistyped name must be an error."""

    max_topic_bytes: Annotated[int, Field(ge=1, le=MAX_TOPIC_BYTES)] = MAX_TOPIC_BYTES
    """Longest topic, in bytes of UTF-8. 250, as Solace has it, so that names carry over; it can only be
    less."""

    max_topic_levels: Annotated[int, Field(ge=1, le=MAX_TOPIC_LEVELS)] = MAX_TOPIC_LEVELS
    """Most levels in a topic. 128, as Solace has it; matching walks them one by one."""

    max_endpoints: Count = 20_000
    """Queues, streams and topic endpoints, temporary ones among them. Each costs some kilobytes of memory, and clients
    make them; what the configuration names is made all the same."""

    max_subscriptions_per_user: Count = 2_000
    """Durable subscriptions of one user. What is published for them is kept whether the user comes back or not."""

    subscription_expiry_hours: Quota = 0
    """Hours after which a topic endpoint that nobody receives from is deleted, with what lies there; at the earliest so
    long after a start. 0 keeps it for ever, as messages that wait for somebody are not ours to throw away."""

    replay_log: ReplayLog = field(default_factory=ReplayLog)
    """What is kept for replay."""

    store: VpnStore | None = None
    """Where messages are kept, if not in a file of the data folder."""

    archive: ArchivedLog | None = None
    """Where replays read on before the log begins."""

    replay_targets: Annotated[
        dict[TargetLabel, ReplayTarget], Field(alias="replay_target", max_length=100)
    ] = field(default_factory=dict)
    """Where copies of history may go beside this Message VPN, by label. At most 100."""

    queues: Annotated[dict[QueueName, Queue], Field(alias="queue")] = field(default_factory=dict)
    """Queues by name."""
