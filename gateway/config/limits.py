"""Every bound the gateway keeps, and how the files on disk are written.

Invariant: a limit has a unit in its name, a default, and a reason below it. The gateway's memory is bounded
by these numbers and by nothing else.
"""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from gateway.config.setting_types import UINT_MAX, USHORT_MAX, Bytes, Count, table

MOST_MESSAGE_BYTES: Final = 512 * 2**20
"""What every store can keep as one row, with room for what stands beside it."""


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds per connection, session, link and endpoint. They keep one client from taking what belongs to
    all."""

    max_connections: Count = 10_000
    """Open connections at once, counting those still shaking hands. An idle one costs about 20 KiB; the next
    one is refused."""

    max_connections_per_address: Count = 5_000
    """Open connections at once from one IP address. Half of all: one machine cannot keep every other out. Set it to
    `max_connections` where all clients come through one proxy."""

    max_connections_per_user: Count = 5_000
    """Open connections at once of one user, from wherever. Half of all, for the same reason."""

    max_handshakes_per_address: Count = 200
    """Connections from one IP address that have not opened yet. A burst of clients after a restart fits; a flood of
    half-open ones stops here, and others' keep coming in."""

    listen_backlog: Count = 4_096
    """Connections the kernel holds before we accept them. A burst of clients after a restart stalls at the
    usual 100; the kernel may cap it lower (`net.core.somaxconn`)."""

    handshake_timeout_ms: Count = 10_000
    """Milliseconds from accept to a finished TLS and SASL exchange and an AMQP open. Ends port scans and
    half-open clients."""

    idle_timeout_ms: Annotated[int, Field(ge=1_000, le=UINT_MAX)] = 60_000
    """Milliseconds of silence after which a peer counts as gone. Half of it is advertised, as AMQP 1.0 §2.4.5
    advises, so that one late heartbeat does no harm."""

    max_frame_bytes: Annotated[int, Field(ge=512, le=UINT_MAX)] = 65_536
    """Largest frame we take, in bytes; AMQP 1.0 §2.4.1 asks for at least 512. A larger frame lets one message
    hold the wire from all others; a smaller one costs more frames per message."""

    max_channels: Annotated[int, Field(ge=1, le=USHORT_MAX + 1)] = 255
    """Sessions per connection (`channel-max` is one less). Clients use one to a few; a leak of sessions ends
    here."""

    max_links_per_session: Count = 1_024
    """Links per session (`handle-max` is one less). Enough for a client with a link per topic; a leak ends
    here."""

    max_message_bytes: Annotated[int, Field(ge=1, le=MOST_MESSAGE_BYTES)] = 16 * 2**20
    """Largest message we take, in bytes over all its frames; announced as each link's `max-message-size`. 16
    MiB, as RabbitMQ 4 has it: a message is held in memory as a whole. At most 512 MiB: SQLite stores no row of 10⁹
    bytes, and a message that cannot be stored must be refused before it comes."""

    max_annotations_bytes: Bytes = 16 * 2**10
    """Bytes a message may have in front of its bare message: header, delivery annotations, message annotations. Each
    delivery reads them key by key, to each consumer: some 5 ms for 16 KiB of short keys, in which nobody else is
    served. Clients have some hundred bytes; past it the message is rejected."""

    connection_bytes: Bytes = 40 * 2**20
    """Bytes that one connection may make the gateway hold: unfinished messages, messages of open transactions,
    unsettled deliveries (1 KiB each, of half of it at most), links (10 KiB) and sessions. A message and a
    transaction of the largest size fit; what is more is closed."""

    user_bytes: Bytes = 256 * 2**20
    """The same over all connections of one user. Past it the user's connections are not read until it is less; if
    that does not help, the one that holds the most is closed."""

    memory_mb: Count = 1_024
    """Megabytes that all peers together may make the gateway hold, beside what it weighs itself (some 120 MB). Past
    it publishers wait and newcomers are refused, before the kernel has to end the process; set it to what the
    machine can spare."""

    @property
    def memory_bytes(self) -> int:
        """``memory_mb`` in bytes."""
        return self.memory_mb * 2**20

    link_credit: Count = 2_000
    """Transfers a publisher may have in flight on one link. Must cover a commit's duration at full rate (0.02
    s at 100,000 messages/s), and bounds what one link can make us hold."""

    connection_output_bytes: Bytes = 2**20
    """Bytes waiting to be sent on one connection past which it is given no more deliveries. A slow consumer
    then costs 1 MiB, and its messages stay on the queue."""

    max_unsettled_per_flow: Count = 10_000
    """Deliveries a consumer may leave unsettled before it gets no more, whatever its credit. Each is
    remembered until settled."""

    max_transactions: Count = 64
    """Transactions a connection may have open. Clients use one per session; who forgets to end them stops
    here."""

    transaction_timeout_ms: Count = 300_000
    """Milliseconds from the first message published or acknowledged in a transaction after which it is rolled
    back. Five minutes is longer than a unit of work should take, and frees what a stuck client holds; one in
    which nothing was done may stay open, as clients keep one ready."""

    transaction_bytes: Bytes = 16 * 2**20
    """Bytes of messages published in open transactions of one connection. They are in memory until the commit,
    which is one write to the disk; past it the transaction can only be rolled back."""

    transactions_bytes: Bytes = 256 * 2**20
    """The same over all connections: many clients with large transactions must not fill the memory."""

    endpoint_window: Count = 20_000
    """Message ids kept in memory per queue or topic endpoint that is consumed; the rest is paged from disk, and of
    one that nobody consumes at most 256 stay. A queue with ten million messages costs what one with 20,000 does."""

    replay_records: Count = 1_000
    """Replays of the past that each Message VPN keeps on record, with who asked for them and how they ended: some 1 KiB
    each. Past it the oldest that has ended goes."""

    replay_jobs: Count = 16
    """Copies of the log and returns of dead letters that a Message VPN has at once, paused ones among them. Each holds
    two pages (`read_page_bytes`), and publishes what it read once more."""

    tail_bytes: Bytes = 16 * 2**20
    """Bytes of recent committed messages kept in memory, of all Message VPNs together; each counts with what its
    objects cost beside its content. Consumers that keep up are served from here and never touch the disk."""

    read_page_rows: Count = 1_000
    """Messages read from disk at once. Below a few hundred the cost per page shows; above, the first message
    waits."""

    read_page_bytes: Bytes = 4 * 2**20
    """Bytes of message read from disk at once, at least one message. Keeps a page of large messages from
    filling the memory."""


Percent = Annotated[int, Field(ge=1, le=100)]


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmThresholds:
    """When to raise an alarm: a line in the gateway's log, and an entry in the administration while it holds. That
    the store cannot be written is always one."""

    log_percent: tuple[Percent, ...] = (80, 90)
    """Percent of the replay log's quota in use. 80 leaves time to raise it; from 90 on the log is trimmed."""

    queue_percent: tuple[Percent, ...] = (80, 90)
    """Percent of a queue's quota in use, of that in megabytes or in messages. At 100 publishers are rejected."""

    disk_hours_left: Annotated[int, Field(ge=0, le=100_000)] = 24
    """Hours in which the disk is full at the rate at which the replay log grew over the last hour, below which an
    alarm is raised. 24 leaves a day to make room; a log whose quota ends its growth before raises none. 0: never."""

    log_hours_kept: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Hours of messages that the replay log's quota holds, at the rate of the last day, below which an alarm is
    raised: set it to what consumers count on. 0: never, as nobody else knows that."""

    hysteresis_percent: Annotated[int, Field(ge=0, le=50)] = 5
    """Points that the use has to fall below a threshold until its alarm is cleared. Without, a use around the
    threshold would raise it again and again."""


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """How the files of the Message VPNs (SQLite, write-ahead log) are written and read."""

    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    """`FULL` syncs every commit before its messages are accepted. `NORMAL` syncs at checkpoints only: faster
    where a sync is slow, but a power failure may lose messages that were accepted. A crash of the gateway
    loses none with either."""

    checkpoint_mb: Count = 16
    """Megabytes of write-ahead log after which it is copied into the database. Larger makes fewer, longer
    checkpoints."""

    wal_limit_mb: Count = 256
    """Megabytes the write-ahead log may keep on disk after a checkpoint. A long replay holds it open and lets
    it grow; this gives the space back afterwards."""

    read_threads: Annotated[int, Field(ge=1, le=64)] = 4
    """Threads that read pages for replays and long queues, over all Message VPNs. More serve more cold
    readers at once; a hot queue needs none."""
