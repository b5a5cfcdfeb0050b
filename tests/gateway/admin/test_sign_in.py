"""Who asks is known before anything else is read of a request; and nothing is waited for without an end."""

from __future__ import annotations

import base64
import socket
import time
from urllib.parse import urlsplit

import pytest

from amqp_ext.sasl.passwords import hash_password
from gateway.admin import http as http_server
from gateway.admin import middleware
from gateway.config import User
from tests.gateway.admin.conftest import Administer, Api, Start
from tests.support.waiting import wait_until

HASH = hash_password("secret", salt=b"0123456789abcdef", iterations=4096)
QUEUES = "/SEMP/v2/config/msgVpns/default/queues"
ROOT = "Authorization: Basic " + base64.b64encode(b"root:secret").decode() + "\r\n"
TIMEOUT = 20


@pytest.fixture
def api(start: Start, administer: Administer) -> Api:
    """The administration of a gateway with users."""
    return administer(start(users={"root": User(password=HASH, administer=("queue://*", "log://>"))}))


def connect(api: Api) -> socket.socket:
    """A connection of which nothing is said yet."""
    url = urlsplit(str(api.http.base_url))
    return socket.create_connection((url.hostname or "", url.port or 0), TIMEOUT)


def head(method: str = "POST", path: str = QUEUES, more: str = "") -> bytes:
    """The head of a request whose body never comes as a whole."""
    text = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{more}"
    return f"{text}Content-Length: 1000\r\n\r\n".encode()


def is_closed(sock: socket.socket) -> bool:
    """The gateway closes it, whatever it says before."""
    try:
        while sock.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("path", [QUEUES, "/SEMP/v2/action/reload", "/metrics", "/nothing", "/SEMP/v2/x"])
@pytest.mark.parametrize(
    "more", ["", ROOT.replace("=", ""), "Authorization: Bearer x\r\n", "Authorization: x\r\n"]
)
def test_who_is_not_known_is_told_so_before_the_body(api: Api, path: str, more: str) -> None:
    """The answer is there while the body is not, and names how to sign in."""
    with connect(api) as sock:
        sock.sendall(head(path=path, more=more))
        told = sock.recv(65_536)
        assert told.startswith(b"HTTP/1.1 401 ")
        assert b"www-authenticate: Basic" in told


def test_the_rest_of_a_refused_body_is_not_waited_for(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who goes on sending a body that nobody wants is cut off."""
    monkeypatch.setattr(http_server, "REST_S", 0.5)
    with connect(api) as sock:
        sock.sendall(head())
        assert sock.recv(65_536).startswith(b"HTTP/1.1 401 ")
        assert is_closed(sock)


def test_a_body_comes_in_time_or_not_at_all(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator's, too: 408."""
    monkeypatch.setattr(middleware, "BODY_S", 0.5)
    with connect(api) as sock:
        sock.sendall(head(more=ROOT) + b'{"queue')
        assert sock.recv(65_536).startswith(b"HTTP/1.1 408 ")


def test_all_bodies_together_have_a_bound(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held of requests that are not whole yet is counted over all of them, and given free with each."""
    monkeypatch.setattr(middleware, "MOST_HELD_BYTES", 1_000)
    with connect(api) as sock:
        sock.sendall(head(more=ROOT) + b" " * 900)
        api.http.auth = ("root", "secret")
        wait_until(
            lambda: api.ask("POST", "config", "/queues", {"queueName": "q" * 150}).status_code == 503,
            "too much at once",
        )
    wait_until(
        lambda: api.ask("POST", "config", "/queues", {"queueName": "p" * 150}).status_code == 200,
        "there is room again",
    )


def test_a_second_head_is_waited_for_no_longer_than_the_first(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A letter now and then keeps no connection, whatever it has asked before."""
    monkeypatch.setattr(http_server, "HEAD_S", 1.0)
    with connect(api) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(65_536).startswith(b"HTTP/1.1 200 ")
        sock.settimeout(0.05)
        begun = time.monotonic()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while time.monotonic() - begun < TIMEOUT:
                sock.sendall(b"G")
                try:
                    if not sock.recv(1):
                        raise BrokenPipeError
                except TimeoutError:
                    continue


def test_connections_that_ask_nothing_keep_nobody_out(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound the one that has been without a request the longest makes room, and one with a request does not."""
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 4)
    busy = connect(api)
    busy.sendall(head(more=ROOT))
    silent = [connect(api) for _ in range(6)]
    assert api.http.get("/healthz").status_code == 200
    assert is_closed(silent[0])
    busy.sendall(b'{"queueName":"q"}' + b" " * (1_000 - 17))
    assert busy.recv(65_536).startswith(b"HTTP/1.1 200 ")
    for sock in (busy, *silent):
        sock.close()
