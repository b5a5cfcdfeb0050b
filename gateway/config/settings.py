"""
The tree of all settings of a gateway, as values with defaults. ``vpn`` has those of a Message VPN.

A field's docstring is its entry in the commented example: unit, default and reason. A field whose key in the file
differs (``[vpn.default]`` becomes ``vpns["default"]``) carries it as alias. Built by ``load``, written by ``toml``.

Invariant: a limit has a unit in its name, a default, and a reason below it. The gateway's memory is bounded by these
numbers and by nothing else.
"""

from dataclasses import field
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from gateway.config.setting_types import (
    UINT_MAX,
    USHORT_MAX,
    AdministerRule,
    BrowseRule,
    Bytes,
    CollectorUrl,
    CommonName,
    ConsumeRule,
    Count,
    Host,
    Mechanism,
    PasswordHash,
    Port,
    ProviderUrl,
    PublishRule,
    ReplayRule,
    ServiceName,
    TokenHash,
    UserName,
    VpnName,
    WebOrigin,
    Word,
    is_loopback,
    table,
)
from gateway.config.vpn import Vpn

MOST_MESSAGE_BYTES: Final = 512 * 2**20
"""What every store can keep in one row, with room for the row's other columns."""


@table
class Limits:
    """Limits per connection, session, link and endpoint. They keep one client from using up what all clients share."""

    max_connections: Count = 10_000
    """Connections open at the same time, including those whose handshake has not ended. An idle one costs about 20 KiB.
    Beyond the limit new connections are refused."""

    max_connections_per_address: Count = 5_000
    """Connections open at the same time from one IP address. Half of all, so that one machine cannot keep all others
    out. Set it to `max_connections` where all clients come through one proxy."""

    max_connections_per_user: Count = 5_000
    """Connections open at the same time of one user, from any address. Half of all, for the same reason."""

    max_handshakes_per_address: Count = 200
    """Connections from one IP address that have not opened yet. A burst of clients after a restart fits. A flood of
    half-open connections is stopped here, and other addresses can still connect."""

    listen_backlog: Count = 4_096
    """Connections that the kernel queues before the gateway accepts them. With the usual 100 a burst of clients after a
    restart stalls. The kernel may have a lower limit (`net.core.somaxconn`)."""

    handshake_timeout_ms: Count = 10_000
    """Milliseconds from accept until TLS, SASL and the AMQP open must be complete. Ends port scans and half-open
    connections."""

    idle_timeout_ms: Annotated[int, Field(ge=1_000, le=UINT_MAX)] = 60_000
    """Milliseconds of silence after which a peer counts as gone. The gateway advertises half of it, as AMQP 1.0 §2.4.5
    advises, so that one late heartbeat does no harm."""

    max_frame_bytes: Annotated[int, Field(ge=512, le=UINT_MAX)] = 65_536
    """Largest frame that the gateway accepts, in bytes; AMQP 1.0 §2.4.1 requires at least 512. With larger frames one
    message blocks the wire for longer; smaller ones cost more frames per message."""

    max_channels: Annotated[int, Field(ge=1, le=USHORT_MAX + 1)] = 255
    """Sessions per connection (`channel-max` is one less). Clients use one or a few; a client that leaks sessions is
    stopped here."""

    max_links_per_session: Count = 1_024
    """Links per session (`handle-max` is one less). Enough for a client with a link per topic; a client that leaks
    links is stopped here."""

    max_message_bytes: Annotated[int, Field(ge=1, le=MOST_MESSAGE_BYTES)] = 16 * 2**20
    """Largest message that the gateway accepts, in bytes over all its frames; announced as each link's
    `max-message-size`. 16 MiB, as in RabbitMQ 4, because a message is held in memory as a whole. At most 512 MiB:
    SQLite stores no row of 10⁹ bytes, and a message that cannot be stored must be refused before it is transferred."""

    max_annotations_bytes: Bytes = 16 * 2**10
    """Bytes a message may have before its bare message: header, delivery annotations, message annotations. Each
    delivery to each consumer reads them key by key: some 5 ms for 16 KiB of short keys, in which no other client is
    served. Clients send some hundred bytes. Beyond the limit the message is rejected."""

    connection_bytes: Bytes = 40 * 2**20
    """Bytes that one connection may make the gateway hold: unfinished messages, messages of open transactions,
    unsettled deliveries (1 KiB each, in total at most half of the limit), links (10 KiB, and three times the size of
    the attach) and sessions. A message and a transaction of the largest size fit. A connection that exceeds it is
    closed."""

    user_bytes: Bytes = 256 * 2**20
    """The same over all connections of one user. Beyond it the gateway stops reading the user's connections until less
    is held; if that does not help, it closes the one that holds the most."""

    memory_mb: Count = 1_024
    """Megabytes that all peers together may make the gateway hold, in addition to its own 120 MB or so. Beyond it
    publishers wait and new connections are refused, so that the kernel does not kill the process for want of memory.
    Set it to what the machine can spare."""

    @property
    def memory_bytes(self) -> int:
        """``memory_mb`` in bytes."""
        return self.memory_mb * 2**20

    link_credit: Count = 2_000
    """Transfers a publisher may have in flight on one link. Must cover a commit's duration at full rate (0.02 s at
    100,000 messages/s), and limits what one link can make the gateway hold."""

    connection_output_bytes: Bytes = 2**20
    """Bytes waiting to be sent on one connection, beyond which it gets no more deliveries. A slow consumer then costs 1
    MiB, and its messages stay on the queue."""

    max_unsettled_per_flow: Count = 10_000
    """Deliveries a consumer may leave unsettled before it gets no more, whatever its credit. The gateway remembers each
    until it is settled."""

    max_transactions: Count = 64
    """Transactions a connection may have open. Clients use one per session; a client that never ends them is stopped
    here."""

    transaction_timeout_ms: Count = 300_000
    """Milliseconds from the first message published or acknowledged in a transaction after which it is rolled back.
    Five minutes is longer than a unit of work should take, and frees what a stuck client holds. A transaction in which
    nothing was done may stay open, because clients keep one ready."""

    transaction_bytes: Bytes = 16 * 2**20
    """Bytes of messages published in open transactions of one connection. They are in memory until the commit, which is
    one write to the disk. Beyond it the transaction can only be rolled back."""

    transactions_bytes: Bytes = 256 * 2**20
    """The same over all connections: many clients with large transactions must not fill the memory."""

    endpoint_window: Count = 20_000
    """Message ids kept in memory per queue or topic endpoint that has a consumer; the rest is paged from disk. An
    endpoint without a consumer keeps at most 256. A queue with ten million messages costs as much as one with
    20,000."""

    replay_records: Count = 1_000
    """Replays that each Message VPN keeps on record, with who asked for them and how they ended: some 1 KiB each.
    Beyond it the oldest record of a replay that has ended is deleted."""

    replay_jobs: Count = 16
    """Copies of the log and returns of dead letters that a Message VPN has at the same time, including paused ones.
    Each holds two pages (`read_page_bytes`), and the copies of their messages that it publishes."""

    tail_bytes: Bytes = 16 * 2**20
    """Bytes of recent committed messages kept in memory, of all Message VPNs together. Each message counts with its
    content and the cost of its objects. Consumers that keep up are served from here, without reading the disk."""

    read_page_rows: Count = 1_000
    """Messages in a page that is read from disk. Below a few hundred the cost per page shows; with many more, the first
    message waits longer."""

    read_page_bytes: Bytes = 2**20
    """Bytes of messages in a page that is read from disk; a page has at least one message. Keeps a page of large
    messages from filling the memory."""


Percent = Annotated[int, Field(ge=1, le=100)]


@table
class AlarmThresholds:
    """When to raise an alarm: a line in the gateway's log, and an entry in the administration while it lasts. A store
    that cannot be written always raises an alarm."""

    log_percent: tuple[Percent, ...] = (80, 90)
    """Percent of the replay log's quota in use. 80 leaves time to raise it; from 90 on the log is trimmed."""

    queue_percent: tuple[Percent, ...] = (80, 90)
    """Percent of a queue's quota in use, in megabytes or in messages. At 100 publishers' messages are rejected."""

    disk_hours_left: Annotated[int, Field(ge=0, le=100_000)] = 24
    """An alarm is raised when the disk would be full in fewer hours than this, at the rate at which the replay log grew
    over the last hour. 24 leaves a day to make room. A log that reaches its quota first raises none. 0: never."""

    log_hours_kept: Annotated[int, Field(ge=0, le=100_000)] = 0
    """An alarm is raised when the replay log's quota holds fewer hours of messages than this, at the rate of the last
    day. Set it to what your consumers count on. 0: never, because only you know what your consumers need."""

    lag_messages: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """An alarm is raised when a queue or topic endpoint holds at least so many messages. Dead message queues raise
    none, nor does a queue under replay. 0: never, because only you know how many are too many."""

    lag_seconds: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """The same for the age of its oldest message, in seconds. It is checked every few seconds. 0: never."""

    hysteresis_percent: Annotated[int, Field(ge=0, le=50)] = 5
    """An alarm is cleared when the use is so many percentage points below its threshold, or the lag so many percent
    below its limit. Without it, a use around the threshold would raise the alarm again and again."""


@table
class Store:
    """How the files of the Message VPNs (SQLite, write-ahead log) are written and read."""

    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    """`FULL` syncs every commit before its messages are accepted. `NORMAL` syncs at checkpoints only: faster
    where a sync is slow, but a power failure may lose messages that were accepted. A crash of the gateway
    loses none with either."""

    checkpoint_mb: Count = 16
    """Megabytes of write-ahead log after which it is copied into the database. A larger value makes fewer, longer
    checkpoints."""

    wal_limit_mb: Count = 256
    """Megabytes the write-ahead log may keep on disk after a checkpoint. It grows while a long replay reads from it;
    this gives the space back afterwards."""

    read_threads: Annotated[int, Field(ge=1, le=64)] = 4
    """Threads that read pages for replays and long queues, for all Message VPNs. More threads serve more readers of old
    messages at the same time; a queue whose consumers keep up needs none."""


GlobalAccess: TypeAlias = Literal["none", "read-only", "read-write"]
"""Least first. As Solace calls the levels of its administrators."""

LinkStealing: TypeAlias = Literal["session", "connection", "container"]
"""The scope within which a link displaces an older link of the same name."""

UnknownHostname: TypeAlias = Literal["default", "refuse"]
"""What happens where the hostname of an open frame names no Message VPN."""

PERMISSIONS = ("publish", "consume", "browse", "replay", "administer")
"""The lists of a user's permissions, by their keys."""


def authority(host: str, port: int) -> str:
    """``HOST:PORT`` as URLs and messages write it, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@table
class Tls:
    """TLS 1.2 or later on a listener, or on the address of administration. All files are PEM."""

    certificate: Path
    """The server's certificate, followed by its intermediates."""

    key: Path
    """The certificate's private key, not encrypted."""

    client_ca: Path | None = None
    """Authorities that sign clients' certificates. With it, a client with a certificate can use SASL EXTERNAL, and an
    administrator needs no password."""

    require_client_certificate: bool = False
    """Whether a client without a certificate is refused. Off permits certificates and passwords on the same
    listener."""


@table
class WebSocket:
    """AMQP over WebSocket on a listener, for browsers and for clients behind proxies; with `tls` it is wss. Any
    path is accepted."""

    origins: tuple[WebOrigin, ...] = ()
    """Origins of web pages whose scripts may connect, as browsers name them. Empty, because otherwise a page from
    anywhere could use a gateway that is open to this machine. Clients other than browsers need not be named."""

    max_message_bytes: Bytes = 17 * 2**20
    """Largest WebSocket message, in bytes; 64 KiB until the client has sent its open. Clients may put everything that
    they have to send into one, including a message of `limits.max_message_bytes`. It is held in memory until it is
    complete."""


@table
class Listener:
    """An address on which AMQP clients are accepted. Repeat `[[listener]]` for more."""

    host: Host = "127.0.0.1"
    """Address or name to bind. Loopback, so that a gateway without users is open to this machine only."""

    port: Port = 5672
    """Port to bind; 0 takes a free one. 5672 is AMQP's, 5671 AMQP over TLS."""

    tls: Tls | None = None
    """If present, the listener accepts only TLS."""

    websocket: WebSocket | None = None
    """If present, the listener accepts only AMQP over WebSocket."""

    sasl: tuple[Mechanism, ...] = ()
    """SASL mechanisms offered, best first. If empty: without users ANONYMOUS; with users the SCRAMs, PLAIN under TLS or
    on loopback, EXTERNAL with a `client_ca`; with identity providers OAUTHBEARER and XOAUTH2 under TLS or on
    loopback."""

    link_stealing: LinkStealing = "session"
    """The scope in which a new link replaces an older link of the same name, which is detached as stolen: the session,
    the connection, or (`container`, as AMQP 1.0 section 2.6.1 says) all connections of its user with the same
    container-id. `session`, because clients give one name to several links: Proton's Container names a link by
    container-id and address, so two connections of one program that receive from one queue would steal the link from
    each other without end."""

    unknown_hostname: UnknownHostname = "default"
    """What happens when the hostname of an open frame names no Message VPN: the client is in the VPN `default`, or is
    refused with amqp:not-found (`refuse`). `default`, because clients put there the name or address that they connect
    to. Use `refuse` where all clients name their VPN, so that one with a misspelled name does not publish into another
    VPN. With both, a client that gives no hostname is in `default`, and `vhost:NAME` always names a VPN."""

    rabbitmq_mode: bool = False
    """Whether the gateway claims to be RabbitMQ 4, which RabbitMQ's own clients require, and has its `/management`.
    Off, because the claim is not true."""

    event_hubs_mode: bool = False
    """Whether clients of Azure Event Hubs are served: with `$cbs`, `$management`, batches and consumer groups, and with
    streams where queues are created on first use. Off, because other clients do not expect streams."""

    @property
    def is_private(self) -> bool:
        """Whether nobody can read its traffic on the way."""
        return self.tls is not None or is_loopback(self.host)

    def url(self, port: int | None = None) -> str:
        """The address clients use, with the port that was really bound if it was asked for as 0."""
        scheme = ("ws" if self.websocket else "amqp") + ("s" if self.tls else "")
        return f"{scheme}://{authority(self.host, self.port if port is None else port)}"


@table
class AdminListener:
    """The address of administration, metrics and health checks over HTTP."""

    host: Host = "127.0.0.1"
    """Address or name to bind. Loopback, because administrators can delete."""

    port: Port = 8672
    """Port to bind; 0 takes a free one."""

    tls: Tls | None = None
    """If present, the address accepts only HTTPS."""

    hosts: tuple[Host, ...] = ()
    """Host names that requests may use (`Host`), in addition to `host`, `localhost` and addresses. Empty, because a web
    page whose host name an attacker points to this address could otherwise send requests as if it were the
    administration's own page."""

    console: bool = True
    """Whether `/` is the console, a web page for people. It has the rights of the user who signs in, and no others."""

    def url(self, port: int) -> str:
        """The address administrators use, with the port that was bound."""
        return f"{'https' if self.tls else 'http'}://{authority(self.host, port)}"


@table
class User:
    """Someone who may connect, with a password, certificates, or both. A user without any of the lists below may do
    everything in these Message VPNs except administer; with at least one list, only what is listed is permitted.
    `[user.anonymous]` is for clients without a name, where a listener's `sasl` has ANONYMOUS."""

    password: PasswordHash | None = None
    """The password's hash, as `rewind hash-password` prints it. A hash, so that this file does not reveal the
    password."""

    password_file: Path | None = None
    """A file that holds the hash, instead of `password`, where secrets are mounted as files."""

    token: TokenHash | None = None
    """The hash of a bearer token for the administration, as `rewind new-token` prints it, for programs. AMQP
    clients cannot use it."""

    token_file: Path | None = None
    """A file that holds the token's hash, instead of `token`."""

    sas_key_file: Path | None = None
    """A file that holds the key with which Event Hubs' clients make the user's shared access signatures, on
    listeners with `event_hubs_mode`; the key's name is the user's. A separate file, because checking a signature
    takes the key itself, not a hash."""

    certificate_names: tuple[CommonName, ...] = ()
    """Common names of client certificates that identify this user, for SASL EXTERNAL and the administration."""

    vpns: tuple[VpnName, ...] = ("default",)
    """Message VPNs the user may enter. Only `default`, so that nobody can enter a new Message VPN until it is named."""

    publish: tuple[PublishRule, ...] | None = None
    """Queues and topics the user may send to, with the wildcards of subscriptions and `!` before an exception. An
    exception always wins."""

    consume: tuple[ConsumeRule, ...] | None = None
    """Queues, topics and topics of the replay log the user may receive from. A subscription must be permitted as a
    whole."""

    browse: tuple[BrowseRule, ...] | None = None
    """Queues the user may browse; those of `consume` may be browsed, too."""

    replay: tuple[ReplayRule, ...] | None = None
    """Queues and topics of subscriptions the user may rewind, if `consume` also permits them. Without this list
    `consume` is enough."""

    administer: tuple[AdministerRule, ...] | None = None
    """Queues, topic endpoints by their topic, and topics of the replay log the user may administer. Never permitted
    without this list, because administrators can delete."""

    global_access: GlobalAccess = "none"
    """What the user may do to the gateway as a whole: `read-only` lists all Message VPNs and reads the metrics;
    `read-write` also creates and deletes Message VPNs and reloads the configuration. Never permitted by default, nor by
    a rule for one Message VPN."""

    def permissions(self) -> dict[str, tuple[str, ...]]:
        """The lists that are there, by their keys."""
        return {key: rules for key in PERMISSIONS if (rules := getattr(self, key)) is not None}


@table
class IdentityProvider:
    """A provider of OAuth 2.0 or OpenID Connect whose tokens (JWT) name the user, and may have the user's rights. It is
    trusted to name any user. Needs the extra `oauth`. Repeat `[[identity_provider]]` for more."""

    issuer: Word
    """The provider, exactly as the claim `iss` of its tokens has it."""

    audience: Word
    """What a token's claim `aud` has to name: this gateway, so that a token for another service is not accepted
    here."""

    jwks_file: Path | None = None
    """A file of the provider's public keys (JSON Web Key Set)."""

    jwks_url: ProviderUrl | None = None
    """Where the provider has its public keys, instead of `jwks_file`. With neither, its metadata say where:
    `/.well-known/openid-configuration` under the issuer."""

    tls_ca: Path | None = None
    """Authorities that sign the provider's certificate, in PEM form. The system's, if none is named."""

    user_claim: Word = "sub"
    """The claim that has the user's name; `a.b` is `b` in `a`. `sub`, because people cannot choose it: a claim that
    they can change by themselves, such as a nickname, would let them take any name."""

    rights_claim: Word | None = None
    """The claim that has the user's rights, a list or words of a text: `publish:queue://orders`, `consume:topic://a/>`,
    `vpn:NAME`, `global_access:read-only`. Without such a right or claim, the user has the rights of the `[user]` of
    that name; without that table, none."""

    client_id: Word | None = None
    """The console's name at the provider. With it, people can sign in to the console there."""

    client_secret_file: Path | None = None
    """A file with the secret that belongs to `client_id`, where the provider asks for one."""

    scopes: tuple[Word, ...] = ("openid",)
    """Scopes that the console asks the provider for."""

    console_url: WebOrigin | None = None
    """Where browsers find the console, if a proxy stands in front of it: `https://console.example.com`. The provider
    sends them back to `/session/return` there. If none is named, the browser's request says where."""


@table
class Logging:
    """The gateway's own log, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level written. `info` has a line per connection, link, replay and refusal, none per message."""

    format: Literal["auto", "json", "console"] = "auto"
    """`json` for machines, `console` for people; `auto` takes `console` where stderr is a terminal."""


@table
class Telemetry:
    """Spans of messages, for an OpenTelemetry collector. Needs the extra `telemetry`. Without this table nothing is
    traced, at no cost."""

    endpoint: CollectorUrl
    """URL of the collector, which takes OTLP over HTTP."""

    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share, 0 to 1, of the messages without a trace context that are traced. If a publisher's `traceparent` says
    whether a message is sampled, that decides. At most 1,000 messages a second are traced per Message VPN."""

    headers_file: Path | None = None
    """File of HTTP headers for the collector, one per line: `Name: value`. Read at the start. A file, because a header
    may be a key."""

    service_name: ServiceName = "rewind"
    """What backends call this gateway (`service.name`)."""


def default_vpns() -> dict[str, Vpn]:
    """The Message VPNs that are there without being named: the one for clients that name none."""
    return {"default": Vpn()}


@table
class Settings:
    """All settings of a gateway. A megabyte is 1,048,576 bytes; paths are relative to the folder where it is
    started."""

    data: Path = Path("rewind-data")
    """Folder of the data, with one file per Message VPN. Created if it does not exist; one gateway at a time may
    use it."""

    allow_anonymous_beyond_loopback: bool = False
    """Whether clients without a name may connect from other machines. Off, because an open gateway on a network is
    seldom intended."""

    listeners: Annotated[tuple[Listener, ...], Field(alias="listener")] = (Listener(),)
    """Where AMQP clients connect."""

    admin: AdminListener = field(default_factory=AdminListener)
    """Where administrators connect."""

    users: Annotated[dict[UserName, User], Field(alias="user")] = field(default_factory=dict)
    """Users by name. With none, everyone on this machine may do everything."""

    identity_providers: Annotated[tuple[IdentityProvider, ...], Field(alias="identity_provider")] = ()
    """Providers whose tokens are accepted."""

    vpns: Annotated[dict[VpnName, Vpn], Field(alias="vpn")] = field(default_factory=default_vpns)
    """Message VPNs by name; `default` always exists."""

    limits: Limits = field(default_factory=Limits)
    """Limits."""

    store: Store = field(default_factory=Store)
    """Files."""

    alarms: AlarmThresholds = field(default_factory=AlarmThresholds)
    """Thresholds of alarms."""

    log: Logging = field(default_factory=Logging)
    """The gateway's own log."""

    telemetry: Telemetry | None = None
    """Spans of messages."""

    @property
    def has_users(self) -> bool:
        """Whether there is any user or identity provider; otherwise everyone may do everything."""
        return bool(self.users or self.identity_providers)

    def mechanisms(self, listener: Listener) -> tuple[Mechanism, ...]:
        """SASL mechanisms to offer on ``listener``, best first: those it names, or those the users and TLS make
        sensible.

        PLAIN shows the password to anyone who reads the wire (RFC 4616 §5), and the mechanisms for tokens show the
        token (RFC 7628 §4), so they are left out where that is possible. Those for tokens come last: a client that has
        a name and a password might use these as a token.
        """
        if listener.sasl:
            return listener.sasl
        if not self.has_users:
            return ("ANONYMOUS",)
        offered: list[Mechanism] = []
        if listener.tls and listener.tls.client_ca and any(u.certificate_names for u in self.users.values()):
            offered.append("EXTERNAL")
        if any(user.password or user.password_file for user in self.users.values()):
            offered += ["SCRAM-SHA-512", "SCRAM-SHA-256"]
            if listener.is_private:
                offered.append("PLAIN")
        if self.identity_providers and listener.is_private:
            if listener.rabbitmq_mode and "PLAIN" not in offered:
                offered.append("PLAIN")  # its clients send tokens as passwords
            offered += ["OAUTHBEARER", "XOAUTH2"]
        return tuple(offered)

    def accepts_tokens(self, listener: Listener) -> bool:
        """Whether a client that signs in anonymously on ``listener`` can then show a token."""
        has_keys = any(user.sas_key_file for user in self.users.values())
        has_providers = bool(self.identity_providers) and listener.is_private
        return listener.event_hubs_mode and (has_keys or has_providers)
