"""Who may connect, and how: SASL mechanisms, TLS, certificates, and the Message VPN that a user may enter."""

from __future__ import annotations

import os
import ssl
from functools import partial
from pathlib import Path

import pytest
import trustme

from amqp_ext.codec import Symbol
from amqp_ext.sasl import hash_password
from tests.support.frames import (
    AMQP_HEADER,
    CLOSE,
    OPEN,
    SASL_FRAME,
    SASL_INIT,
    SASL_OUTCOME,
    error_of,
    frame,
    open_frame,
)
from tests.support.peer import OK, Peer
from tests.system.conftest import Start
from tests.system.gateway_process import GatewayProcess

AUTH = 1
"""SASL outcome: the credentials are wrong (AMQP 1.0 section 5.3.3.6)."""

ANN = hash_password("pencil", salt=b"0123456789abcdef")
HANDSHAKE_MS = 2_000
LISTENER = '[[listener]]\nport = 0\nhost = "127.0.0.1"\n'

USERS = f"""
[limits]
handshake_timeout_ms = {HANDSHAKE_MS}
[vpn.default]
[vpn.other]
[user.ann]
password = "{ANN}"
[user.client]
certificate_names = ["client.example"]
vpns = ["default", "other"]
"""
OPEN_TO_ALL = f"""
{LISTENER}
[[listener]]
port = 0
host = "::1"
unknown_hostname = "refuse"
[vpn.default]
[vpn.other]
"""


class Authority:
    """A certificate authority, with the certificates that it has signed, as files."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        server = self._ca.issue_cert("localhost", "127.0.0.1")
        self.config = "[listener.tls]\n"
        for key, pem in (("certificate", server.cert_chain_pems[0]), ("key", server.private_key_pem)):
            pem.write_to_path(os.fspath(folder / f"{key}.pem"))
            self.config += f'{key} = "{folder / key}.pem"\n'
        self._ca.cert_pem.write_to_path(os.fspath(folder / "ca.pem"))
        self.ca_line = f'client_ca = "{folder / "ca.pem"}"\n'

    def client(self, common_name: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self._ca.configure_trust(context)
        if common_name is not None:
            self._ca.issue_cert("client@localhost", common_name=common_name).configure_cert(context)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secured(start_for_all: Start, authority: Authority) -> GatewayProcess:
    """A gateway with users and three listeners: without TLS; with TLS; with TLS and client certificates."""
    tls = LISTENER + authority.config
    config = f"{LISTENER}{tls}{tls}{authority.ca_line}{USERS}"
    return start_for_all(config, listen=())


@pytest.fixture(scope="module")
def without_users(start_for_all: Start, tmp_path_factory: pytest.TempPathFactory) -> GatewayProcess:
    """A gateway without users: on IPv4, and on IPv6, where it refuses host names that name no Message VPN."""
    return start_for_all(OPEN_TO_ALL, data=tmp_path_factory.mktemp("open") / "data", listen=())


# --- passwords ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(
    ("user", "password", "code"), [("ann", "pencil", OK), ("ann", "pen", AUTH), ("bob", "x", AUTH)]
)
def test_a_password_lets_its_user_in_and_nobody_else(
    secured: GatewayProcess, mechanism: str, user: str, password: str, code: int
) -> None:
    """The right credentials lead to an open; a wrong password and an unknown user get the same outcome 1."""
    with Peer.connect(secured.address) as peer:
        sign_in = peer.plain if mechanism == "PLAIN" else partial(peer.scram, mechanism)
        assert sign_in(user, password) == code
        if code == OK:
            peer.open()
        else:
            assert peer.rest() == b""


def test_without_a_name_nobody_gets_in_where_there_are_users(secured: GatewayProcess) -> None:
    """ANONYMOUS is not offered, and a client that starts without SASL is answered with SASL's header and closed."""
    with Peer.connect(secured.address) as peer:
        assert "ANONYMOUS" not in peer.mechanisms()
    with Peer.connect(secured.address) as peer:
        peer.send(AMQP_HEADER, open_frame())
        assert peer.rest() == b"AMQP\x03\x01\x00\x00"


def test_a_password_is_verified_once_however_much_is_sent_ahead(secured: GatewayProcess) -> None:
    """A client that sends its open ahead, byte by byte, costs one password hash, not one for each byte."""
    began = secured.cpu_seconds()
    with Peer.connect(secured.address) as peer:
        peer.mechanisms()
        peer.send(frame(SASL_INIT, [Symbol("PLAIN"), b"\0ann\0pencil"], kind=SASL_FRAME))
        for byte in AMQP_HEADER + open_frame(container="c" * 200):
            peer.send(bytes([byte]))
        assert int(peer.expect(SASL_OUTCOME).fields[0]) == OK
        assert peer.take(8) == AMQP_HEADER
        peer.expect(OPEN)
    assert secured.cpu_seconds() - began < 1


# --- hostnames and Message VPNs -------------------------------------------------------------------------------------


def test_a_hostname_that_names_no_vpn_may_be_refused(without_users: GatewayProcess) -> None:
    """
    On the IPv6 listener, which refuses unknown names, an unknown hostname is not found; no hostname means `default`.
    """
    refusing = without_users.addresses[1]
    assert refusing[0] == "::1"
    for hostname in ("other", "vhost:other", "default", None):
        with Peer.opened(refusing, hostname=hostname):
            pass
    for hostname in ("gateway.example", "vhost:else"):
        with Peer.connect(refusing) as peer:
            assert peer.anonymous() == OK
            peer.send(open_frame(hostname=hostname))
            assert error_of(peer.skip_to(CLOSE))[0] == "amqp:not-found"


def test_a_client_without_sasl_is_served_where_anonymous_is_allowed(without_users: GatewayProcess) -> None:
    """On loopback without users SASL may be left out."""
    with Peer.connect(without_users.address) as peer:
        peer.send(AMQP_HEADER)
        assert peer.take(8) == AMQP_HEADER
        peer.open()


# --- TLS ------------------------------------------------------------------------------------------------------------


def test_tls_carries_amqp_and_says_so(secured: GatewayProcess, authority: Authority) -> None:
    """The ready line names amqps://; a client that trusts the authority gets through, one in plain text does not."""
    assert [url.partition(":")[0] for url in secured.ready["amqp"]] == ["amqp", "amqps", "amqps"]
    with Peer.connect(secured.addresses[1], tls=authority.client()) as peer:
        assert peer.scram("SCRAM-SHA-256", "ann", "pencil") == OK
        peer.open()
    hello = bytes.fromhex("16030100a5010000a10303") + bytes(160)
    for rubbish in (AMQP_HEADER, b"GET / HTTP/1.1\r\n\r\n", hello):
        with Peer.connect(secured.addresses[1]) as peer:
            peer.send(rubbish)
            assert not peer.rest().startswith(b"AMQP")


def test_a_tls_handshake_that_does_not_end_is_cut(secured: GatewayProcess) -> None:
    """A client that sends nothing to a TLS port, or half a hello, is cut after handshake_timeout_ms."""
    with Peer.connect(secured.addresses[1]) as silent, Peer.connect(secured.addresses[1]) as half:
        half.send(bytes.fromhex("16030100a5"))
        assert silent.rest() == half.rest() == b""


def test_a_certificate_is_its_user(secured: GatewayProcess, authority: Authority) -> None:
    """With EXTERNAL the certificate's common name selects the user that has it; an unassigned name gets outcome 1."""
    asking = secured.addresses[2]
    with Peer.connect(asking, tls=authority.client("client.example")) as peer:
        assert peer.sasl("EXTERNAL", b"") == OK
        peer.open(hostname="other")
    for common_name in ("somebody.example", None):
        with Peer.connect(asking, tls=authority.client(common_name)) as peer:
            assert peer.sasl("EXTERNAL", b"") == AUTH
