"""TLS contexts: which files they refuse, and what a handshake says about the client."""

import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from gateway.config import Tls
from gateway.tls import TlsError, peer_common_name, renew, server_context


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(tmp_path: Path, authority: trustme.CA) -> Tls:
    """A server certificate for `localhost`, its key, and the authority for clients."""
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    issued.private_key_pem.write_to_path(tmp_path / "server.key")
    authority.cert_pem.write_to_path(tmp_path / "clients.pem")
    return Tls(certificate=tmp_path / "server.pem", key=tmp_path / "server.key")


def with_client_ca(tls: Tls, *, required: bool = False) -> Tls:
    clients = tls.certificate.with_name("clients.pem")
    return replace(tls, client_ca=clients, require_client_certificate=required)


def client_context(authority: trustme.CA, *, identity: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    if identity is not None:
        identity.configure_cert(context)
    return context


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """The server's side of a finished handshake, without a socket; raises what the server raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):  # TLS 1.3 takes one and a half round trips
        for end in (client_end, server_end):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return server_end


def test_nothing_older_than_tls_1_2_is_spoken(tls: Tls) -> None:
    """The context's lower bound is TLS 1.2, whatever OpenSSL's own default is."""
    assert server_context(tls).minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("is_asked_for", "shown", "name"),
    [(True, "ann", "ann"), (True, None, None), (False, "ann", None), (False, None, None)],
)
def test_a_client_is_who_its_verified_certificate_says(
    tls: Tls, authority: trustme.CA, is_asked_for: bool, shown: str | None, name: str | None
) -> None:
    """
    By its common name, over TLS 1.3. If certificates are optional, a client without one has no name; without
    `client_ca` no certificate is verified, and none gives a name.
    """
    identity = authority.issue_cert("ann.example.com", common_name=shown) if shown else None
    server = server_context(with_client_ca(tls) if is_asked_for else tls)
    server_end = handshake(server, client_context(authority, identity=identity))
    assert (server_end.version(), peer_common_name(server_end)) == ("TLSv1.3", name)


def test_a_required_certificate_must_be_shown(tls: Tls, authority: trustme.CA) -> None:
    """`require_client_certificate` ends the handshake of a client without one."""
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(server_context(with_client_ca(tls, required=True)), client_context(authority))


def test_a_certificate_of_a_stranger_is_refused(tls: Tls, authority: trustme.CA) -> None:
    """A certificate that `client_ca` did not sign ends the handshake, even if certificates are optional."""
    mallory = trustme.CA().issue_cert("ann.example.com", common_name="ann")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(with_client_ca(tls)), client_context(authority, identity=mallory))


class Presented:
    """A peer's certificate, as the `ssl` module describes it."""

    def __init__(self, *names: tuple[str, str]) -> None:
        self._certificate = {"subject": tuple((name,) for name in names)}

    def getpeercert(self) -> object:
        return self._certificate


@pytest.mark.parametrize(
    "names",
    [(), (("organizationName", "ann"),), (("commonName", "ann"), ("commonName", "root"))],
    ids=["no subject", "no common name", "two common names"],
)
def test_an_unclear_subject_gives_no_name(names: tuple[tuple[str, str], ...]) -> None:
    """Only a subject with exactly one common name gives the client's name."""
    assert peer_common_name(Presented(*names)) is None


@pytest.mark.parametrize("content", [None, "this is no certificate"])
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("certificate", "is not usable PEM"),
        ("key", "is not usable PEM"),
        ("client_ca", "holds no certificate in PEM form"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tls: Tls, name: str, sentence: str, content: str | None) -> None:
    """The sentence says which file is missing, or cannot be read as PEM."""
    file = tls.certificate.with_name("junk.pem")
    if content is not None:
        file.write_text(content)
    changed: dict[str, Any] = {name: file}
    said = "cannot be read: No such file" if content is None else sentence
    with pytest.raises(TlsError, match=f"junk.pem {said}"):
        server_context(replace(tls, **changed))


def test_a_key_of_another_certificate_is_named(tls: Tls, authority: trustme.CA) -> None:
    """A key that does not match the certificate is refused at the start, not at the first client."""
    other = tls.key.with_name("other.key")
    authority.issue_cert("localhost").private_key_pem.write_to_path(other)
    with pytest.raises(TlsError, match=r"other\.key is not the private key of .*server\.pem"):
        server_context(replace(tls, key=other))


def test_an_encrypted_key_is_refused_without_asking_the_terminal(tls: Tls) -> None:
    """No pass phrase is asked for; the sentence says what to do instead."""
    key = load_pem_private_key(tls.key.read_bytes(), password=None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    tls.key.write_bytes(encrypted)
    with pytest.raises(TlsError, match=r"server\.key is encrypted"):
        server_context(tls)


def test_requiring_certificates_needs_an_authority(tls: Tls) -> None:
    """A context that requires certificates, and can verify none, would refuse every client."""
    with pytest.raises(TlsError, match="require_client_certificate needs client_ca"):
        server_context(replace(tls, require_client_certificate=True))


def test_a_renewed_certificate_is_shown_to_new_clients(tls: Tls, authority: trustme.CA) -> None:
    """After `renew`, handshakes use what the files have now; unusable files change nothing."""
    context = server_context(tls)
    other = trustme.CA()
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(context, client_context(other))
    issued = other.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(tls.certificate)
    with pytest.raises(TlsError, match="is not the private key"):
        renew(context, tls)
    handshake(context, client_context(authority))
    issued.private_key_pem.write_to_path(tls.key)
    renew(context, tls)
    handshake(context, client_context(other))
