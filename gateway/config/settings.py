"""The tree of all settings of a gateway, as values with defaults.

A field's docstring is its entry in the commented example: unit, default and reason. A field whose key in the
file differs (``[vpn.default]`` becomes ``vpns["default"]``) carries it as alias. Built by ``load``, rendered by
``render``.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from gateway.config.limits import AlarmThresholds, Limits, Store
from gateway.config.setting_types import (
    AdministerRule,
    BrowseRule,
    Bytes,
    CollectorUrl,
    CommonName,
    ConsumeRule,
    Host,
    Mechanism,
    PasswordHash,
    Port,
    PublishRule,
    ReplayRule,
    ServiceName,
    TokenHash,
    UserName,
    VpnName,
    WebOrigin,
    is_loopback,
    table,
)
from gateway.config.vpn import Vpn

GlobalAccess: TypeAlias = Literal["none", "read-only", "read-write"]
"""Least first. As Solace calls the levels of its administrators."""

LinkStealing: TypeAlias = Literal["session", "connection", "container"]
"""Within what a link's name stands for one link."""

PERMISSIONS = ("publish", "consume", "browse", "replay", "administer")
"""The lists of a user's permissions, by their keys."""


def authority(host: str, port: int) -> str:
    """``HOST:PORT`` as URLs and messages write it, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS 1.2 or later on a listener, or on the address of administration. All files are PEM."""

    certificate: Path
    """The server's certificate, followed by its intermediates."""

    key: Path
    """The certificate's private key, not encrypted."""

    client_ca: Path | None = None
    """Authorities that sign clients' certificates. Given, a client with a certificate can use SASL
    EXTERNAL, and an administrator needs no password."""

    require_client_certificate: bool = False
    """Whether a client without a certificate is turned away. Off lets certificates and passwords live side by
    side."""


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class WebSocket:
    """AMQP over WebSocket on a listener, for browsers and for clients behind proxies; under `tls` it is wss. Any
    path will do."""

    origins: tuple[WebOrigin, ...] = ()
    """Web pages whose scripts may connect, as browsers name them. None, because a page from anywhere could
    else use a gateway that is open to this machine. Clients that are no browsers need not be named."""

    max_message_bytes: Bytes = 17 * 2**20
    """Largest WebSocket message, in bytes; 64 KiB before its client has opened. Clients put into one what they have
    to send at that moment, a message of `limits.max_message_bytes` among it; it is held in memory until it is
    whole."""


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """An address on which AMQP clients are accepted. Repeat `[[listener]]` for more."""

    host: Host = "127.0.0.1"
    """Address or name to bind. Loopback, so that a gateway without users is open to this machine only."""

    port: Port = 5672
    """Port to bind; 0 takes a free one. 5672 is AMQP's, 5671 AMQP over TLS."""

    tls: Tls | None = None
    """Present: the listener speaks TLS and nothing else."""

    websocket: WebSocket | None = None
    """Present: the listener speaks AMQP over WebSocket and nothing else."""

    sasl: tuple[Mechanism, ...] = ()
    """SASL mechanisms offered, best first. None named: without users ANONYMOUS; with users the SCRAMs, PLAIN
    under TLS or on loopback, EXTERNAL with a `client_ca`."""

    link_stealing: LinkStealing = "session"
    """Within what a link's name that is attached again takes the older link's place, which is detached as stolen:
    its session, its connection, or all connections of its user with one container-id, which is what AMQP 1.0 (2.6.1)
    says. A session, because clients give one name to several links: Proton's Container names a link by container-id
    and address, so that two connections of one program that receive from one queue would go on stealing it."""

    rabbitmq_mode: bool = False
    """Whether to introduce ourselves as RabbitMQ 4, which RabbitMQ's own clients insist on, and to have its
    `/management`. Off, because it is not true."""

    event_hubs_mode: bool = False
    """Whether clients of Azure Event Hubs are served: `$cbs`, `$management`, batches, consumer groups, and
    queues made on first use are streams. Off, because others would wonder at the streams."""

    def url(self, port: int | None = None) -> str:
        """The address clients use, with the port that was really bound if it was asked for as 0."""
        scheme = ("ws" if self.websocket else "amqp") + ("s" if self.tls else "")
        return f"{scheme}://{authority(self.host, self.port if port is None else port)}"


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class AdminListener:
    """The address of administration, metrics and health checks over HTTP."""

    host: Host = "127.0.0.1"
    """Address or name to bind. Loopback, because who administers can delete."""

    port: Port = 8672
    """Port to bind; 0 takes a free one."""

    tls: Tls | None = None
    """Present: the address speaks HTTPS and nothing else."""

    hosts: tuple[Host, ...] = ()
    """Names it may be called by, beside `host`, `localhost` and addresses: what `Host` says in a request. None,
    because a name that leads here by somebody else's doing lets his web page ask as if it were the
    administration's own."""

    console: bool = True
    """Whether `/` is the console, a page for people. What it shows is asked for with the rights of whoever signs
    in, so that it opens nothing that is not open without it."""

    def url(self, port: int) -> str:
        """The address administrators use, with the port that was bound."""
        return f"{'https' if self.tls else 'http'}://{authority(self.host, port)}"


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Someone who may connect, known by a password, by certificates, or by either. A user without any of the
    lists below may do everything in these Message VPNs but administer; as soon as there is one, what is not
    listed is not permitted. `[user.anonymous]` stands for clients without a name, where a listener's `sasl`
    has ANONYMOUS."""

    password: PasswordHash | None = None
    """The password's hash, as `rewind hash-password` prints it. A hash, so that this file gives no password
    away."""

    password_file: Path | None = None
    """A file that holds the hash, in place of `password`, for where secrets are mounted as files."""

    token: TokenHash | None = None
    """The hash of a bearer token for the administration, as `rewind new-token` prints it, for programs. AMQP
    clients cannot use it."""

    token_file: Path | None = None
    """A file that holds the token's hash, in place of `token`."""

    sas_key_file: Path | None = None
    """A file that holds the key which Event Hubs' clients make the user's shared access signatures with, on
    listeners with `event_hubs_mode`; the key's name is the user's. A file of its own, because a signature can
    be checked with the key in clear alone."""

    certificate_names: tuple[CommonName, ...] = ()
    """Common names of client certificates that are this user, for SASL EXTERNAL and the administration."""

    vpns: tuple[VpnName, ...] = ("default",)
    """Message VPNs the user may enter. Only `default`, so that a new Message VPN is closed until it is
    named."""

    publish: tuple[PublishRule, ...] | None = None
    """Queues and topics the user may send to, with the wildcards of subscriptions, `!` before an exception,
    which wins wherever it stands."""

    consume: tuple[ConsumeRule, ...] | None = None
    """Queues, topics and topics of the replay log the user may receive from. What is subscribed to must be
    permitted as a whole."""

    browse: tuple[BrowseRule, ...] | None = None
    """Queues the user may look at without taking; those of `consume` may be looked at, too."""

    replay: tuple[ReplayRule, ...] | None = None
    """Queues and topics of subscriptions the user may rewind, where `consume` permits them, too. Without
    this list `consume` is enough."""

    administer: tuple[AdministerRule, ...] | None = None
    """Queues, topic endpoints by their topic, and topics of the replay log the user may administer. Never
    permitted by silence, because who administers can delete."""

    global_access: GlobalAccess = "none"
    """What the user may do to the gateway as a whole: `read-only` lists all Message VPNs and reads the metrics;
    `read-write` makes and deletes Message VPNs and has the configuration read again, too. Never permitted by
    silence, nor by a rule for one Message VPN."""

    def permissions(self) -> dict[str, tuple[str, ...]]:
        """The lists that are there, by their keys."""
        return {key: rules for key in PERMISSIONS if (rules := getattr(self, key)) is not None}


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class Logging:
    """The gateway's own log, on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level written. `info` has a line per connection, link, replay and refusal, none per message."""

    format: Literal["auto", "json", "console"] = "auto"
    """`json` for machines, `console` for people; `auto` takes `console` where stderr is a terminal."""


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Spans of messages, for an OpenTelemetry collector. Needs the extra `telemetry`. Without this table nothing is
    traced, and nothing of it costs."""

    endpoint: CollectorUrl
    """URL of the collector, which takes OTLP over HTTP."""

    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share, 0 to 1, of the messages without a trace context that are traced. Where a publisher says by
    `traceparent` whether a message is sampled, that holds. At most 1,000 messages a second are traced in a Message
    VPN."""

    headers_file: Path | None = None
    """File of HTTP headers for the collector, a line each: `Name: value`. Read at the start. A file, for there may be
    a key in it."""

    service_name: ServiceName = "rewind"
    """What backends call this gateway (`service.name`)."""


def default_vpns() -> dict[str, Vpn]:
    """The Message VPNs that are there without being named: the one for clients that name none."""
    return {"default": Vpn()}


@table
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a gateway. Sizes in megabytes are of 1,048,576 bytes; paths are relative to where it is
    started."""

    data: Path = Path("rewind-data")
    """Folder of the data, one file per Message VPN. Made if it is not there; one gateway at a time may use
    it."""

    allow_anonymous_beyond_loopback: bool = False
    """Whether clients without a name may come from other machines. Off: an open gateway on a network is
    seldom meant."""

    listeners: Annotated[tuple[Listener, ...], Field(alias="listener")] = (Listener(),)
    """Where AMQP clients are accepted."""

    admin: AdminListener = field(default_factory=AdminListener)
    """Where administrators are."""

    users: Annotated[dict[UserName, User], Field(alias="user")] = field(default_factory=dict)
    """Users by name. With none, everyone on this machine may do everything."""

    vpns: Annotated[dict[VpnName, Vpn], Field(alias="vpn")] = field(default_factory=default_vpns)
    """Message VPNs by name; `default` is there even if it is not named."""

    limits: Limits = field(default_factory=Limits)
    """Bounds."""

    store: Store = field(default_factory=Store)
    """Files."""

    alarms: AlarmThresholds = field(default_factory=AlarmThresholds)
    """Thresholds of alarms."""

    log: Logging = field(default_factory=Logging)
    """The gateway's own log."""

    telemetry: Telemetry | None = None
    """Spans of messages."""

    def mechanisms(self, listener: Listener) -> tuple[Mechanism, ...]:
        """SASL mechanisms to offer on ``listener``, best first: those it names, or those the users and TLS make
        sensible.

        PLAIN shows the password to whoever reads the wire (RFC 4616 §5), so it is left out where that is
        possible.
        """
        if listener.sasl:
            return listener.sasl
        if not self.users:
            return ("ANONYMOUS",)
        offered: list[Mechanism] = []
        if listener.tls and listener.tls.client_ca and any(u.certificate_names for u in self.users.values()):
            offered.append("EXTERNAL")
        if any(user.password or user.password_file for user in self.users.values()):
            offered += ["SCRAM-SHA-512", "SCRAM-SHA-256"]
            if listener.tls or is_loopback(listener.host):
                offered.append("PLAIN")
        return tuple(offered)

    def accepts_tokens(self, listener: Listener) -> bool:
        """Whether who says nothing about himself on ``listener`` can still show a token."""
        return listener.event_hubs_mode and any(user.sas_key_file for user in self.users.values())
