"""TLS from the standard library: the context of a listener, and the name in a client's certificate.

Invariant: nothing older than TLS 1.2 is spoken, and a client certificate that is presented is always verified.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.config.settings import Tls


class TlsError(ValueError):
    """A certificate, key or authority file cannot be used; the sentence names the file."""


class _KeyIsEncryptedError(Exception):
    """Raised where OpenSSL would ask the terminal for a pass phrase."""


def server_context(tls: Tls) -> ssl.SSLContext:
    """A context for a listener with these settings.

    Raises:
        TlsError: A file cannot be used; it is named.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Without this a client could make us renegotiate for ever on one connection (TLS 1.2; TLS 1.3 cannot do it).
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_certificate(context, tls)
    if tls.client_ca:
        _load_authorities(context, tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if tls.require_client_certificate else ssl.CERT_OPTIONAL
    elif tls.require_client_certificate:
        raise TlsError("require_client_certificate needs client_ca to check the certificates")
    return context


def renew(context: ssl.SSLContext, tls: Tls) -> None:
    """Use what the files hold now for new connections.

    An authority that is no longer in ``client_ca`` is trusted until the next start.

    Raises:
        TlsError: A file cannot be used; it is named.
    """
    # Tried on a new context first: if the files do not fit, OpenSSL would leave the context in use without a key.
    server_context(tls)
    _load_certificate(context, tls)
    if tls.client_ca:
        _load_authorities(context, tls.client_ca)


def authorities(file: Path | None) -> ssl.SSLContext:
    """A context for connecting to servers that these authorities vouch for; the system's authorities for None.

    Raises:
        TlsError: The file cannot be used; it is named.
    """
    if file is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_authorities(context, file)
    return context


def peer_common_name(ssl_object: ssl.SSLObject) -> str | None:
    """The common name in the client's verified certificate (RFC 5280 §4.1.2.6).

    None if there is no certificate, or if it has no common name or several: which one is meant must not be guessed.
    """
    certificate: Any = ssl_object.getpeercert() or {}
    subject = certificate.get("subject", ())
    names = [value for relative_name in subject for key, value in relative_name if key == "commonName"]
    return names[0] if len(names) == 1 else None


def _load_certificate(context: ssl.SSLContext, tls: Tls) -> None:
    for file in (tls.certificate, tls.key):
        _check_readable(file)
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_refuse_to_ask)
    except _KeyIsEncryptedError:
        raise TlsError(f"{tls.key} is encrypted; store the private key without a pass phrase") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"{tls.key} is not the private key of {tls.certificate}") from error
        raise TlsError(f"{_culprit(tls)} is not usable PEM ({error.reason or error})") from error


def _load_authorities(context: ssl.SSLContext, authorities: Path) -> None:
    _check_readable(authorities)
    try:
        context.load_verify_locations(authorities)
    except ssl.SSLError as error:
        raise TlsError(f"{authorities} holds no certificate in PEM form ({error.reason or error})") from error


def _check_readable(file: Path) -> None:
    # OpenSSL's own complaint about a missing file does not say which of the two it was.
    try:
        file.read_bytes()
    except OSError as error:
        raise TlsError(f"{file} cannot be read: {error.strerror}") from error


def _culprit(tls: Tls) -> Path:
    """The file that OpenSSL could not use: the certificate's if there is no certificate in it, else the key's."""
    return tls.key if b"-----BEGIN CERTIFICATE-----" in tls.certificate.read_bytes() else tls.certificate


def _refuse_to_ask() -> str:
    raise _KeyIsEncryptedError
