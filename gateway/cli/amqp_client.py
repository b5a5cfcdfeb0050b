"""
The AMQP client of the command line: the gateway's address, the user, one connection, and how it ends.

Outside ``gateway.amqp`` only this module and the verbs that build on it, ``send`` and ``tail``, use proton. They use
its Container, which is slow, but fast enough here.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
from proton import Handler, SSLDomain
from proton.handlers import MessagingHandler
from proton.reactor import Container

from gateway.cli.options import EXIT_INTERRUPTED, as_one, credentials, password_of, trusting
from gateway.core.errors import ErrorCode

DEFAULT_URL = "amqp://127.0.0.1:5672"

ANSWER_S = 20.0
"""Seconds to wait for the peer's open; without it, the peer does not speak AMQP: some servers only listen."""

EXIT_FAILED = 1


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """Where a gateway is, and the user who connects."""

    url: str
    user: str | None = None
    password_file: Path | None = None
    vpn: str | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def is_tls(self) -> bool:
        return urlsplit(self.url).scheme == "amqps"


def _amqp_url(context: click.Context, option: click.Parameter, url: str) -> str:
    """Check a url: it is HOST:PORT, alone or with a scheme of AMQP."""
    scheme, marker, rest = url.rpartition("://")
    if (marker and scheme not in {"amqp", "amqps"}) or not rest.strip("/"):
        raise click.BadParameter(f"{url!r} is not an AMQP url; write amqp://HOST:PORT, or amqps:// for TLS")
    try:
        port = urlsplit(f"//{rest}").port
    except ValueError as error:
        raise click.BadParameter(f"{url!r} has no port: {error}") from error
    if port == 0:
        raise click.BadParameter(f"{url!r} has no port: nobody listens on 0")
    return url


gateway_options: Final = as_one(
    "gateway",
    GatewayAddress,
    click.option(
        "--url",
        default=DEFAULT_URL,
        envvar="REWIND_URL",
        show_default=True,
        callback=_amqp_url,
        help="The gateway: amqp://HOST:PORT, or amqps:// for TLS.",
    ),
    click.option("--vpn", envvar="REWIND_VPN", help="Message VPN; by default, the one called default."),
    *credentials("Name of the user; by default, ANONYMOUS."),
)
"""The options of every verb that speaks AMQP."""


class Waiting(Handler):
    """Tells its client when the peer has not opened the connection in time."""

    def __init__(self, client: AmqpClient) -> None:
        super().__init__()
        self._client = client

    def on_timer_task(self, event: Any) -> None:
        self._client.not_answered()


class AmqpClient(MessagingHandler):
    """
    One connection with one link, until ``done`` or until something goes wrong; ``problem`` says what.

    The subclass gives credit and accepts deliveries. What it sent is settled when the peer has settled it.
    """

    def __init__(self, gateway: GatewayAddress, address: str) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=True)
        self._gateway = gateway
        self.address = address
        self.problem: str | None = None
        self.is_done = False
        self._connection: Any = None
        self._waiting: Any = None

    def run(self) -> int:
        """
        Connect and work until it is done.

        Returns:
            The exit status: 0, 1 where something went wrong (said on stderr), 130 when interrupted.
        """
        status = self._run()
        self.finish()
        if status:
            return status
        if self.problem is not None:
            click.echo(f"rewind: {self.problem}", err=True)
            return EXIT_FAILED
        return 0

    def _run(self) -> int:
        try:
            Container(self).run()
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        except socket.gaierror as error:
            # proton raises this from the lookup of the host, and calls no handler.
            self.problem = f"{self._gateway.url}: no such host ({error.strerror})"
        return 0

    def attach(self, event: Any) -> None:
        """Make the link on ``event.container`` and the connection."""
        raise NotImplementedError

    def finish(self) -> None:
        """Called after the connection has ended: report what is left to report, and release what is held."""

    def done(self) -> None:
        """End: nothing more is to be done."""
        self.is_done = True
        self._stop_waiting()
        if self._connection is not None:
            self._connection.close()

    def fail(self, problem: str) -> None:
        """End with a sentence; the first one counts."""
        self.problem = self.problem or problem
        self.done()

    # --- what proton calls ----------------------------------------------------------------------------------------

    def on_start(self, event: Any) -> None:
        gateway = self._gateway
        # A gateway that waits for another tells that to a client with properties, and closes the socket of one without.
        options: dict[str, Any] = {"reconnect": False, "properties": {"product": "rewind"}}
        if gateway.user is not None:
            options |= {"user": gateway.user, "password": password_of(gateway.user, gateway.password_file)}
            options["allowed_mechs"] = "PLAIN"
        else:
            # Of what proton can do without Cyrus there is nothing else: no SCRAM, and no tokens.
            by_certificate = gateway.is_tls and gateway.tls_cert is not None
            options["allowed_mechs"] = "EXTERNAL" if by_certificate else "ANONYMOUS"
        if gateway.vpn is not None:
            options["virtual_host"] = f"vhost:{gateway.vpn}"
        if gateway.is_tls:
            options["ssl_domain"] = _tls_of(gateway)
        self._connection = event.container.connect(gateway.url, **options)
        self.attach(event)
        self._waiting = event.container.schedule(ANSWER_S, Waiting(self))

    def on_connection_opened(self, event: Any) -> None:
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def not_answered(self) -> None:
        """The peer has not opened the connection in time: give up."""
        if not self.is_done:
            self.fail(f"{self._gateway.url}: the peer does not speak AMQP; the port may be another server's")
            self._connection.transport.close_head()
            self._connection.transport.close_tail()

    def on_link_error(self, event: Any) -> None:
        condition = event.link.remote_condition
        subcode = (condition.info or {}).get("subcode")
        number = f", subcode {int(subcode)}" if subcode is not None else ""
        self.fail(f"{self.address}: {condition.description} ({condition.name}{number})")

    def on_link_closed(self, event: Any) -> None:
        self.done()

    def on_connection_error(self, event: Any) -> None:
        condition = event.connection.remote_condition
        self.fail(f"{self._gateway.url}: {condition.description} ({condition.name})")

    def on_transport_error(self, event: Any) -> None:
        if self.is_done:
            return
        condition = event.transport.condition
        if condition is not None and condition.name == ErrorCode.UNAUTHORIZED.condition:
            self.fail(self._not_let_in())
            return
        said = f"{condition.description} ({condition.name})" if condition is not None else "no reason given"
        if "certificate verify failed" in said:
            said += "; --tls-ca names who is trusted, and a gateway's certificate is known by host name, not by address"
        self.fail(f"{self._gateway.url}: {said}")

    def _not_let_in(self) -> str:
        user, url = self._gateway.user, self._gateway.url
        if user is None and self._gateway.is_tls and self._gateway.tls_cert is not None:
            return f"{url}: the certificate is no user's, or none is accepted (amqp:unauthorized-access)"
        if user is None:
            return f"{url}: anonymous clients are refused; give --user (amqp:unauthorized-access)"
        return (
            f"{url}: {user!r} was refused: the name or the password is wrong, or passwords are not accepted "
            "(amqp:unauthorized-access)"
        )

    def on_disconnected(self, event: Any) -> None:
        if not self.is_done:
            # Of a close with amqp:connection:forced proton tells nothing else, as for clients that connect again.
            said = event.connection.remote_condition if event.connection is not None else None
            condition = said or (event.transport.condition if event.transport is not None else None)
            why = f": {condition.description}" if condition is not None and condition.description else ""
            self.fail(f"{self._gateway.url}: there is no connection, or it was lost{why}")


def _tls_of(gateway: GatewayAddress) -> SSLDomain:
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    # Python reads the files first, as it says more of what is wrong with them.
    trusting(f"https://{gateway.url}", gateway.tls_ca, gateway.tls_cert, gateway.tls_key)
    if gateway.tls_ca is not None:
        domain.set_trusted_ca_db(str(gateway.tls_ca))
    if gateway.tls_cert is not None:
        domain.set_credentials(str(gateway.tls_cert), str(gateway.tls_key or gateway.tls_cert), None)
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    return domain
