"""Who gets in, and how: SASL mechanisms, TLS, certificates, and the Message VPN a user may enter."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
import trustme

from amqp_ext.passwords import hash_password
from tests.bench.frames import AMQP_HEADER, CLOSE
from tests.system.conftest import Start
from tests.system.gateway_process import GatewayProcess
from tests.system.peer import OK, Closed, Peer, open_frame

AUTH = 1
"""SASL outcome: the credentials are wrong (AMQP 1.0 section 5.3.3.6)."""

ANN = hash_password("pencil", salt=b"0123456789abcdef")


@pytest.fixture
def users() -> str:
    return f"""
[vpn.default]
[vpn.other]
[user.ann]
password = "{ANN}"
[user.client]
certificate_names = ["client.example"]
vpns = ["default", "other"]
"""


@pytest.fixture
def secured(start: Start, users: str) -> GatewayProcess:
    """A gateway with users and no TLS, on loopback."""
    return start(users)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(
    ("user", "password", "code"), [("ann", "pencil", OK), ("ann", "pen", AUTH), ("bob", "x", AUTH)]
)
def test_a_password_lets_its_user_in_and_nobody_else(
    secured: GatewayProcess, mechanism: str, user: str, password: str, code: int
) -> None:
    """Right credentials get through to an open; a wrong password and an unknown user get outcome 1 alike."""
    with Peer.connect(secured.address) as peer:
        if mechanism == "PLAIN":
            assert peer.plain(user, password) == code
        else:
            assert peer.scram(mechanism, user, password) == code
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


def test_a_client_without_sasl_is_served_where_anonymous_is_allowed(start: Start) -> None:
    """On loopback without users SASL may be left out."""
    with Peer.connect(start().address) as peer:
        peer.send(AMQP_HEADER)
        assert peer.take(8) == AMQP_HEADER
        peer.open()


def test_a_user_enters_only_the_vpns_that_are_named(secured: GatewayProcess) -> None:
    """Another VPN, by host name or vhost:, is closed with amqp:unauthorized-access; an unknown vhost: is not found."""
    for hostname, condition in [
        ("other", "amqp:unauthorized-access"),
        ("vhost:other", "amqp:unauthorized-access"),
        ("vhost:nowhere", "amqp:not-found"),
    ]:
        with Peer.connect(secured.address) as peer:
            assert peer.plain("ann", "pencil") == OK
            peer.open(hostname=hostname)
            error = peer.skip_to(CLOSE).field(0)
            assert str(error.value[0]) == condition


class Authority:
    """A certificate authority and what it signed, as files."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        server = self._ca.issue_cert("localhost", "127.0.0.1")
        self.config = "\n[listener.tls]\n"
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


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def listener(more: str) -> str:
    return f'[[listener]]\nhost = "127.0.0.1"\nport = 0\n{more}'


def test_tls_carries_amqp_and_says_so(start: Start, users: str, authority: Authority) -> None:
    """The ready line names amqps://; a client that trusts the authority gets through, one in plain text does not."""
    gateway = start(listener(authority.config) + users, listen=())
    assert gateway.ready["amqp"][0].startswith("amqps://")
    with Peer.connect(gateway.address, tls=authority.client()) as peer:
        assert peer.scram("SCRAM-SHA-256", "ann", "pencil") == OK
        peer.open()
    with Peer.connect(gateway.address) as peer:
        peer.send(AMQP_HEADER)
        assert not peer.rest().startswith(b"AMQP")


def test_a_certificate_is_its_user(start: Start, users: str, authority: Authority) -> None:
    """EXTERNAL takes the certificate's common name for the user it belongs to; another name gets outcome 1."""
    gateway = start(listener(authority.config + authority.ca_line) + users, listen=())
    with Peer.connect(gateway.address, tls=authority.client("client.example")) as peer:
        assert peer.sasl("EXTERNAL", b"") == OK
        peer.open(hostname="other")
    for common_name in ("somebody.example", None):
        with Peer.connect(gateway.address, tls=authority.client(common_name)) as peer:
            assert peer.sasl("EXTERNAL", b"") == AUTH


def test_a_required_certificate_is_required(start: Start, users: str, authority: Authority) -> None:
    """With require_client_certificate the handshake fails without one."""
    gateway = start(
        listener(authority.config + authority.ca_line + "require_client_certificate = true\n") + users,
        listen=(),
    )
    with (
        pytest.raises((ssl.SSLError, Closed, ConnectionError)),
        Peer.connect(gateway.address, tls=authority.client()) as peer,
    ):
        peer.mechanisms()


def test_several_listeners_of_both_families(start: Start) -> None:
    """IPv4 and IPv6 side by side, each on a port of its own, serve the same queues."""
    gateway = start(listen=("127.0.0.1:0", "[::1]:0"))
    first, second = gateway.addresses
    assert second[0] == "::1"
    with Peer.opened(first) as one, Peer.opened(second) as two:
        one.attach_sender("queue://q")
        one.publish(b"over both")
        two.attach_receiver("queue://q", credit=1)
        assert two.receive() == b"over both"
