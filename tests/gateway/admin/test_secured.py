"""Administration under TLS, and users authenticated by tokens and certificates."""

from __future__ import annotations

import base64
import itertools
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme
from click.testing import CliRunner, Result

from gateway.admin import http as http_server
from gateway.admin import middleware
from gateway.cli import main
from gateway.config import AdminListener, Listener, User, token_hash
from tests.gateway.admin.conftest import HASH, QUEUES, Api, Serve, Start, connect, tls_of
from tests.support.running import PLAIN_HTTP, RunningGateway
from tests.support.waiting import wait_until

# --- Administration under TLS, and users authenticated by tokens and certificates -----------------------------------

EVERYTHING = ("queue://*", "topic://>", "log://>")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@dataclass(frozen=True, slots=True)
class Secured:
    """A gateway administered over HTTPS, and what its clients need."""

    gateway: RunningGateway
    url: str
    authority: trustme.CA
    files: Path

    def status(self, token: str | None = None, *, common_name: str | None = None) -> int:
        """The status of a request for all queues."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if common_name is not None:
            self.authority.issue_cert("client.invalid", common_name=common_name).configure_cert(context)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=self.url, verify=context, trust_env=False) as http:
            return http.get("/SEMP/v2/config/msgVpns/default/queues", headers=headers).status_code


@pytest.fixture
def secured(start: Start, authority: trustme.CA, tmp_path: Path) -> Secured:
    """A gateway with certificates; a client's certificate is accepted, but not required."""
    tls = tls_of(authority, tmp_path)
    (tmp_path / "bob.hash").write_text(token_hash("bob-s-token") + "\n")
    users = {
        "ann": User(password=HASH, token=token_hash("ann-s-token"), administer=EVERYTHING),
        "bob": User(token_file=tmp_path / "bob.hash", administer=("queue://none",)),
        "eve": User(certificate_names=("eve.example",), administer=EVERYTHING),
    }
    gateway = start(users=users, admin=AdminListener(port=0, tls=tls))
    return Secured(gateway, gateway.call(lambda running: running.admin[0]), authority, tmp_path)


def test_verbs_sign_in_by_certificate(start: Start, authority: trustme.CA, tmp_path: Path) -> None:
    """
    Those of administration and those that speak AMQP, with certificate and key in one file or in two; another's
    certificate, or a file that is none, is told in a sentence.
    """
    tls = tls_of(authority, tmp_path)
    on_q = ("queue://q",)
    users = {
        "eve": User(certificate_names=("eve.example",), administer=EVERYTHING, publish=on_q, consume=on_q)
    }
    gateway = start(users=users, admin=AdminListener(port=0, tls=tls), listeners=(Listener(port=0, tls=tls),))
    # proton compares the names of a certificate with a host's name, and no addresses.
    url = gateway.url.replace("127.0.0.1", "localhost")
    where = {"send": url, "tail": url, "status": gateway.call(lambda running: running.admin[0])}
    for name in ("eve.example", "stranger"):
        issued = authority.issue_cert("client.invalid", common_name=name)
        issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{name}.pem")
    issued = authority.issue_cert("client.invalid", common_name="eve.example")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "alone.pem")
    issued.private_key_pem.write_to_path(tmp_path / "alone.key")

    def run(verb: str, *words: str, certificate: str = "eve.example.pem") -> Result:
        option = "--admin" if verb == "status" else "--url"
        tls_options = ("--tls-ca", str(tmp_path / "ca.pem"), "--tls-cert", str(tmp_path / certificate))
        return CliRunner().invoke(main, [*tls_options, verb, *words, option, where[verb]], input="x\n")

    key = ("--tls-key", str(tmp_path / "alone.key"))
    for verb, *words in (("send", "q"), ("tail", "q", "--count", "1"), ("status",)):
        for ran in (run(verb, *words), run(verb, *words, *key, certificate="alone.pem")):
            assert ran.exit_code == 0, ran.output
        ran = run(verb, *words, certificate="stranger.pem")
        assert (ran.exit_code, "certificate" in ran.stderr or "--tls-cert" in ran.stderr) == (1, True)
        ran = run(verb, *words, certificate="alone.pem")
        assert (ran.exit_code, "--tls-key names the key's file" in ran.stderr) == (2, True), ran.output
    where["tail"] = gateway.url
    ran = run("tail", "q", "--count", "1")
    assert (ran.exit_code, "by host name" in ran.stderr) == (1, True), ran.output


def test_the_command_line_says_whether_a_user_is_missing_or_wrong(secured: Secured) -> None:
    """A person who named a user is not told to name one."""
    where = ("--admin", secured.url, "--tls-ca", str(secured.files / "ca.pem"))
    password = secured.files / "password"
    password.write_text("a wrong one")
    for given, says, says_not in (
        ((), "name the user: --user", "is wrong"),
        (
            ("--user", "ann", "--password-file", str(password)),
            "password, token or certificate is wrong",
            "--user",
        ),
    ):
        ran = CliRunner().invoke(main, ["status", *where, *given])
        assert (ran.exit_code, says in ran.stderr, says_not in ran.stderr) == (1, True, False), ran.stderr


def test_a_token_is_its_user(secured: Secured) -> None:
    """A token has its user's rights; a wrong one, its hash, or none is 401."""
    assert secured.url.startswith("https://")
    assert secured.status("ann-s-token") == 200
    assert secured.status("bob-s-token") == 403
    for wrong in ("ann-s-toke", "ann-s-token2", token_hash("ann-s-token"), "-", None):
        assert secured.status(wrong) == 401, wrong


def test_a_certificate_is_its_user(secured: Secured) -> None:
    """A user's certificate is enough. An unknown certificate is 401; so is a wrong token with a good certificate."""
    assert secured.status(common_name="eve.example") == 200
    assert secured.status(common_name="mallory.example") == 401
    assert secured.status("wrong", common_name="eve.example") == 401


def test_the_verbs_take_a_token_and_an_authority(secured: Secured) -> None:
    """
    `rewind new-token` writes a token and prints its hash. `--token-file`, or the environment, gives a token; `--ca` an
    authority to trust. Without the authority the verb fails and says why.
    """
    ran = CliRunner().invoke(main, ["status", "--admin", secured.url])
    assert (ran.exit_code, "certificate verify failed" in ran.output) == (1, True)
    files = secured.files
    ran = CliRunner().invoke(main, ["new-token", str(files / "fresh")])
    assert ran.stdout.strip() == token_hash((files / "fresh").read_text().strip())
    assert (files / "fresh").stat().st_mode & 0o077 == 0
    assert CliRunner().invoke(main, ["new-token", str(files / "fresh")]).exit_code == 2

    (files / "token").write_text("ann-s-token\n")
    asked = ["queue", "list", "--admin", secured.url, "--ca", str(files / "ca.pem")]
    assert CliRunner().invoke(main, [*asked, "--token-file", str(files / "token")]).exit_code == 0
    assert CliRunner().invoke(main, asked, env={"REWIND_TOKEN": "ann-s-token"}).exit_code == 0
    refused = CliRunner().invoke(main, [*asked, "--token-file", str(files / "fresh")])
    assert (refused.exit_code, "bearer token" in refused.output) == (1, True)
    both = CliRunner().invoke(main, [*asked, "--token-file", str(files / "token"), "--user", "ann"])
    assert both.exit_code == 2
    with_password = [*asked, "--user", "ann"]
    assert CliRunner().invoke(main, with_password, env={"REWIND_PASSWORD": "secret"}).exit_code == 0


def test_plain_http_gets_nothing_from_a_secured_address(secured: Secured) -> None:
    """A request with `http:` is not answered in clear."""
    with httpx.Client(**PLAIN_HTTP) as http, pytest.raises(httpx.TransportError):
        http.get(secured.url.replace("https", "http") + "/healthz")


def silent(url: str) -> socket.socket:
    """A connection that does not begin a handshake."""
    return connect(httpx.Client(base_url=url, **PLAIN_HTTP))


@pytest.mark.parametrize("bound", ["MOST_HANDSHAKES", "MOST_HANDSHAKES_PER_ADDRESS"])
def test_handshakes_are_counted(secured: Secured, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """Beyond the limit, of all or of one address, a handshake is closed immediately; later there is room again."""
    assert secured.status("ann-s-token") == 200
    monkeypatch.setattr(http_server, bound, 3)
    waiting = [silent(secured.url) for _ in range(3)]
    with silent(secured.url) as refused:
        assert refused.recv(1) == b""
    with pytest.raises(httpx.TransportError):
        secured.status("ann-s-token")
    waiting.pop().close()

    def is_let_in() -> bool:
        with suppress(httpx.TransportError):
            return secured.status("ann-s-token") == 200
        return False

    wait_until(is_let_in, "there is room again")
    limit = "admin_handshakes" if bound == "MOST_HANDSHAKES" else "admin_handshakes_per_address"
    count = secured.gateway.call(lambda running: running.refused_connections[limit])
    assert count >= 2
    for sock in waiting:
        sock.close()


def test_a_handshake_that_does_not_end_is_given_up(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some seconds it no longer counts."""
    assert secured.status("ann-s-token") == 200
    monkeypatch.setattr(http_server, "HANDSHAKE_S", 0.2)
    with silent(secured.url) as waiting:
        assert waiting.recv(1) == b""
    assert secured.status("ann-s-token") == 200


# --- Requests are authenticated before anything after the head is read ----------------------------------------------

ROOT = "Authorization: Basic " + base64.b64encode(b"root:secret").decode() + "\r\n"
TIMEOUT = 20


@pytest.fixture
def api(serve: Serve) -> Api:
    """The administration of a gateway with users."""
    return serve(users={"root": User(password=HASH, administer=("queue://*", "log://>"))})


def head(method: str = "POST", path: str = QUEUES, more: str = "") -> bytes:
    """The head of a request whose body is never sent completely."""
    text = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{more}"
    return f"{text}Content-Length: 1000\r\n\r\n".encode()


def is_closed(sock: socket.socket) -> bool:
    """Read until the gateway closes the connection; then True."""
    try:
        while sock.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return True


def test_who_is_not_known_is_told_so_before_the_body(api: Api) -> None:
    """401 comes before the body, and says how to authenticate."""
    wrong = ("", ROOT.replace("=", ""), "Authorization: Bearer x\r\n", "Authorization: x\r\n")
    paths = (QUEUES, "/SEMP/v2/action/reload", "/metrics", "/nothing", "/SEMP/v2/x")
    for path, more in itertools.product(paths, wrong):
        with connect(api.http) as sock:
            sock.sendall(head(path=path, more=more))
            told = sock.recv(65_536)
            assert told.startswith(b"HTTP/1.1 401 "), (path, more)
            assert b"www-authenticate: Basic" in told


def test_the_rest_of_a_refused_body_is_not_waited_for(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that goes on sending a refused body is disconnected."""
    monkeypatch.setattr(http_server, "REST_S", 0.5)
    with connect(api.http) as sock:
        sock.sendall(head())
        assert sock.recv(65_536).startswith(b"HTTP/1.1 401 ")
        assert is_closed(sock)


def test_bodies_have_bounds(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The bytes of all incomplete bodies together are limited, and are freed with each request. A body that is not
    complete in time is 408, for an administrator, too.
    """
    monkeypatch.setattr(middleware, "MOST_HELD_BYTES", 1_000)
    with connect(api.http) as sock:
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
    monkeypatch.setattr(middleware, "BODY_S", 0.5)
    with connect(api.http) as sock:
        sock.sendall(head(more=ROOT) + b'{"queue')
        assert sock.recv(65_536).startswith(b"HTTP/1.1 408 ")


def test_a_second_head_is_waited_for_no_longer_than_the_first(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then does not keep a connection open, even after an earlier request."""
    monkeypatch.setattr(http_server, "HEAD_S", 0.4)
    with connect(api.http) as sock:
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
    """At the limit, the connection that has had no request for longest is closed; one with a request stays."""
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 4)
    busy = connect(api.http)
    busy.sendall(head(more=ROOT))
    silent = [connect(api.http) for _ in range(6)]
    assert api.http.get("/healthz").status_code == 200
    assert is_closed(silent[0])
    busy.sendall(b'{"queueName":"q"}' + b" " * (1_000 - 17))
    assert busy.recv(65_536).startswith(b"HTTP/1.1 200 ")
    for sock in (busy, *silent):
        sock.close()
