"""Rules over several settings: who may come in, and what contradicts what."""

from dataclasses import replace
from pathlib import Path

import pytest

from amqp_ext.sasl import hash_password
from gateway.config import (
    ConfigError,
    Listener,
    Mechanism,
    Settings,
    Tls,
    User,
    is_loopback,
    parse,
)

HASH = hash_password("secret", salt=b"0123456789abcdef")
ANN = f'[user.ann]\npassword = "{HASH}"\n'


def problems(text: str) -> list[str]:
    """Every sentence said about a configuration that must be refused."""
    with pytest.raises(ConfigError) as refused:
        parse(text)
    return refused.value.problems


OPEN = "allow_anonymous_beyond_loopback = true\n"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_anyone_may_come_from_this_machine(host: str) -> None:
    """Without users a gateway listens on loopback."""
    assert is_loopback(host)
    settings = parse(f"[[listener]]\nhost = '{host}'")
    assert settings.mechanisms(settings.listeners[0]) == ("ANONYMOUS",)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gateway.example.com"])
def test_nobody_comes_from_elsewhere_without_a_name(host: str) -> None:
    """Without users a gateway refuses to listen beyond loopback, unless told that this is meant."""
    listener, admin = f"[[listener]]\nhost = '{host}'\n", f"[admin]\nhost = '{host}'\n"
    first, second = problems(listener + admin)
    assert first.startswith(f"listener[0].host {host} would let anyone in")
    assert second.startswith(f"admin.host {host} would let anyone on other machines administer")
    parse(OPEN + listener + admin)
    parse(listener + admin + ANN)


def test_anonymous_beside_users_still_needs_permission() -> None:
    """ANONYMOUS named on an open address is refused even where there are users."""
    (problem,) = problems("[[listener]]\nhost = '0.0.0.0'\nsasl = ['ANONYMOUS']\n" + ANN)
    assert "take ANONYMOUS out of `sasl`" in problem


PASSWORD, CERTIFICATE = User(password=HASH), User(certificate_names=("ann",))
PLAIN_TLS = Tls(certificate=Path("server.pem"), key=Path("server.key"))
MUTUAL_TLS = replace(PLAIN_TLS, client_ca=Path("clients.pem"))
SCRAM: tuple[Mechanism, ...] = ("SCRAM-SHA-512", "SCRAM-SHA-256")


@pytest.mark.parametrize(
    ("users", "listener", "offered"),
    [
        ((), Listener(), ("ANONYMOUS",)),
        ((PASSWORD,), Listener(), (*SCRAM, "PLAIN")),
        ((PASSWORD,), Listener(host="0.0.0.0"), SCRAM),
        ((PASSWORD,), Listener(host="0.0.0.0", tls=PLAIN_TLS), (*SCRAM, "PLAIN")),
        ((PASSWORD,), Listener(tls=MUTUAL_TLS), (*SCRAM, "PLAIN")),
        ((CERTIFICATE,), Listener(tls=MUTUAL_TLS), ("EXTERNAL",)),
        ((CERTIFICATE, PASSWORD), Listener(tls=MUTUAL_TLS), ("EXTERNAL", *SCRAM, "PLAIN")),
        ((CERTIFICATE,), Listener(), ()),
        ((PASSWORD,), Listener(host="0.0.0.0", sasl=("PLAIN",)), ("PLAIN",)),
    ],
)
def test_mechanisms_follow_users_and_tls(
    users: tuple[User, ...], listener: Listener, offered: tuple[Mechanism, ...]
) -> None:
    """What is offered without being named: nothing open beside users, no PLAIN on a wire others can read."""
    settings = Settings(users={f"user{index}": user for index, user in enumerate(users)})
    assert settings.mechanisms(listener) == offered


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("listener = []", "listener is empty"),
        ("[[listener]]\nport = 8672", "listener[0].port is taken: admin has 127.0.0.1:8672 already"),
        ("[[listener]]\n[[listener]]", "listener[1].port is taken: listener[0] has 127.0.0.1:5672 already"),
        ("[[listener]]\nsasl = ['PLAIN']", "listener[0].sasl has PLAIN, which needs a `[user.NAME]`"),
        (
            "[[listener]]\nsasl = ['EXTERNAL']\n" + ANN,
            "listener[0].sasl has EXTERNAL, which needs `tls.client_ca`",
        ),
        (
            "[[listener]]\n[listener.tls]\ncertificate='c'\nkey='k'\nrequire_client_certificate=true",
            "listener[0].tls.require_client_certificate needs `client_ca`",
        ),
        ("[user.ann]", "user.ann cannot log in"),
        (f"[user.ann]\ntoken = '{'sha256$' + 64 * '0'}'", "listener[0].sasl leaves no way to log in: tokens"),
        ("[admin]\nhost = '0.0.0.0'", "admin.host 0.0.0.0 would let anyone on other machines administer"),
        (
            "[admin.tls]\ncertificate='c'\nkey='k'\nrequire_client_certificate=true",
            "admin.tls.require_client_certificate needs `client_ca`",
        ),
        (ANN + "password_file = 'ann.hash'", "user.ann.password_file stands beside `password`"),
        (
            ANN + "certificate_names = ['x']\n[user.bob]\npassword_file = 'b'\ncertificate_names = ['x']",
            "user.ann.certificate_names has x",
        ),
        ("[user.ann]\ncertificate_names = ['x']", "listener[0].sasl leaves no way to log in"),
        ("[vpn.default]\nenabled = false", "vpn has no enabled Message VPN"),
        (
            "[vpn.default.replay_log]\nenabled = false\n[vpn.default.queue.q]\ndefault_start = 'beginning'",
            "vpn.default.queue.q.default_start is beginning, which needs `replay_log.enabled`",
        ),
        ("[store]\ncheckpoint_mb = 300", "store.checkpoint_mb is above store.wal_limit_mb"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(text: str, sentence: str) -> None:
    """A rule over several settings names the one to change."""
    assert any(problem.startswith(sentence) for problem in problems(text))


STREAM = "[vpn.default.queue.audit]\nkind = 'stream'\n"


@pytest.mark.parametrize(
    ("setting", "instead"),
    [
        ("quota_mb = 1", "`quota_mb`"),
        ("quota_messages = 1", "`quota_mb`"),
        ("max_message_bytes = 1", "`limits.max_message_bytes`"),
        ("max_ttl_ms = 1", "does not expire"),
        ("max_unsettled = 1", "leave unsettled"),
        ("priorities = true", "order of publishing"),
        ("max_redelivery = 1", "attaches at it"),
        ("dead_message_queue = 'dead'", "no message dies"),
    ],
)
def test_a_stream_has_no_settings_of_messages_that_lie_on_a_queue(setting: str, instead: str) -> None:
    """Each setting that a stream cannot honour is one problem, which says what there is instead."""
    key = setting.split(" ", maxsplit=1)[0]
    (problem,) = problems(STREAM + setting)
    assert problem.startswith(f"vpn.default.queue.audit.{key} makes no sense on a stream")
    assert instead in problem
    parse(STREAM.replace("stream", "queue") + setting)


def test_all_that_a_stream_cannot_have_is_said_at_once() -> None:
    """Three settings that make no sense are three problems."""
    assert len(problems(STREAM + "quota_mb = 1\npriorities = true\nmax_redelivery = 3")) == 3


def test_a_stream_needs_the_log() -> None:
    """A stream in a Message VPN whose log is off would be a view of nothing."""
    (problem,) = problems(STREAM + "[vpn.default.replay_log]\nenabled = false")
    assert problem.startswith("vpn.default.queue.audit.kind is stream, a view of the log")


def test_what_a_stream_can_have() -> None:
    """Subscriptions, a default start, exclusivity and a bound on readers are a stream's, too."""
    settings = parse(
        STREAM + "subscriptions = ['a/>', '!a/b']\ndefault_start = '10m'\nexclusive = 'steal'\nmax_flows = 3"
    )
    assert settings.vpns["default"].queues["audit"].kind == "stream"


def test_a_queue_is_not_its_own_dead_message_queue() -> None:
    """Messages that died on a queue would come back to it, and die again: that is a problem of its own."""
    (problem,) = problems("[vpn.default.queue.orders]\ndead_message_queue = 'orders'")
    assert problem.startswith("vpn.default.queue.orders.dead_message_queue is the queue itself")


def test_free_ports_do_not_collide() -> None:
    """Any number of listeners may ask for a free port."""
    assert len(parse("[[listener]]\nport = 0\n[[listener]]\nport = 0\n[admin]\nport = 0").listeners) == 2


FAR = "[vpn.default.replay_target.far]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{FAR}url = 'far:5672'", "is no URL of a peer"),
        (f"{FAR}url = 'http://far'", "is no URL of a peer"),
        (f"{FAR}url = 'amqp://'", "is no URL of a peer"),
        (f"{FAR}url = 'amqp://far:0'", "is no URL of a peer"),
        (f"{FAR}url = 'amqp://far:99999'", "is no URL of a peer"),
        (f"{FAR}url = 'amqps://ann:secret@far'", "has a user in it"),
        (f"{FAR}url = 'amqps://far/queue'", "has more than host and port"),
        (f"{FAR}url = 'amqps://far?a=b'", "has more than host and port"),
        (f"{FAR}url = 'amqps://far'\nuser = 'ann'", "it takes both, or none"),
        (f"{FAR}url = 'amqps://far'\npassword_file = 'secret'", "it takes both, or none"),
        (f"{FAR}url = 'amqp://far'\ntls_ca = 'ca.pem'", "tls_ca"),
        (f"{FAR}url = 'amqps://far'\nuser = ''\npassword_file = 'secret'", "user"),
        ("[vpn.default.replay_target.'far away']\nurl = 'amqps://far'", "a label has 1 to 64"),
        (f"[vpn.default.replay_target.{'f' * 65}]\nurl = 'amqps://far'", "a label has 1 to 64"),
    ],
)
def test_what_no_target_of_copies_can_be(text: str, said: str) -> None:
    """One problem each, in words; a password in the URL is not repeated there."""
    (problem,) = problems(text)
    assert problem.startswith("vpn.default.replay_target")
    assert said in problem
    assert "secret@" not in problem


@pytest.mark.parametrize(
    "text",
    [
        "url = 'amqp://far'",
        "url = 'amqp://[::1]:5673/'",
        "url = 'amqps://far:5671'\nvpn = 'test'\nuser = 'ann'\npassword_file = 'secret'\ntls_ca = 'ca.pem'",
    ],
)
def test_a_target_of_copies(text: str) -> None:
    """A peer with or without TLS, and with a name and a password or without any."""
    target = parse(FAR + text).vpns["default"].replay_targets["far"]
    assert target.url in text
    assert (target.user is None) == (target.password_file is None)
