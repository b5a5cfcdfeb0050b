"""``HOST:PORT`` as typed on a command line, with an optional scheme in front."""

from typing import NamedTuple

from gateway.config.setting_types import USHORT_MAX, check_host


class ListenAddress(NamedTuple):
    """Where to listen: a host without brackets, a port from 0 to 65535, and whether TLS was asked for."""

    host: str
    port: int
    secure: bool


def parse_address(text: str) -> ListenAddress:
    """The address in ``127.0.0.1:5672``, ``[::1]:5672``, ``amqp://…`` or ``amqps://…``.

    Raises:
        ValueError: It is none; the text says what is wrong.
    """
    scheme, marker, rest = text.rpartition("://")
    if marker and scheme not in {"amqp", "amqps", "http", "https"}:
        raise ValueError(f"`{scheme}://` is not a scheme we listen for; write `amqp://`, `amqps://` or none")
    host, colon, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address needs brackets, as in `[::1]:5672`")
    if not colon:
        raise ValueError("the port is missing; write HOST:PORT, as in `127.0.0.1:5672`")
    if not (port.isascii() and port.isdigit() and int(port) <= USHORT_MAX):
        raise ValueError(f"`{port}` is not a port; write a number from 0 (a free one) to {USHORT_MAX}")
    return ListenAddress(check_host(host), int(port), scheme in {"amqps", "https"})
