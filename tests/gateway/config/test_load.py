"""Reading a configuration: what is taken, and what is refused in which words."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import trustme

from amqp_ext.sasl import hash_password
from gateway.config import (
    ConfigError,
    Listener,
    Overrides,
    Settings,
    Tls,
    User,
    parse,
    read,
    secret_of,
    toml,
)
from gateway.config.settings import PERMISSIONS
from gateway.core.permissions import Action

# --- Reading a configuration ----------------------------------------------------------------------------------------

HASH = hash_password("secret", salt=b"0123456789abcdef")


def problems(text: str) -> list[str]:
    """Every sentence said about a configuration that must be refused."""
    with pytest.raises(ConfigError) as refused:
        parse(text)
    return refused.value.problems


def test_nothing_configured_gives_the_defaults() -> None:
    """An empty file, and no file at all, are the defaults."""
    assert parse("") == read().settings == Settings()


def test_settings_cannot_be_changed_after_they_are_read() -> None:
    """The tree is of frozen values, so that what was checked is what is used."""
    with pytest.raises(FrozenInstanceError):
        Settings().limits.max_channels = 1  # type: ignore[misc]


def test_default_is_there_beside_a_named_vpn() -> None:
    """Clients that name no Message VPN have `default` even if the file names another only."""
    assert list(parse("[vpn.trading]").vpns) == ["default", "trading"]
    assert not parse("[vpn.default]\nenabled = false\n[vpn.trading]").vpns["default"].enabled


def test_all_problems_are_reported_together() -> None:
    """Wrong values, unknown keys and broken rules come in one report, each with its path."""
    said = problems("""
        data = 3
        [limits]
        max_frame_bytes = 100
        max_frames = 3
        [store]
        synchronous = "OFF"
        [vpn.default.queue.orders]
        quota_mb = -1
        subscriptions = ["a/>", "a//b"]
        [vpn."a/b"]
        [user.ann]
        password = "secret"
        [user.bob]
        vpns = ["trading"]
        password_file = "bob.hash"
        [[listener]]
        port = 5672.0
        [[listener]]
        sasl = ["EXTERNAL", "KERBEROS"]
        [listener.tls]
        key = "server.key"
    """)
    expected = [
        "data should be a string, not 3",
        "listener[0].port should be a whole number, not 5672.0",
        "listener[1].tls.certificate is missing",
        "listener[1].sasl[1] should be 'ANONYMOUS', 'PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512' or 'EXTERNAL', "
        'not "KERBEROS"',
        "user.ann.password is wrong: a stored password starts with",
        "vpn.default.queue.orders.subscriptions[1] is wrong: 'a//b'",
        "vpn.default.queue.orders.quota_mb should be greater than or equal to 0, not -1",
        'vpn."a/b" is wrong: a name has 1 to 64 characters of A-Z a-z 0-9 . _ -',
        "limits.max_frame_bytes should be greater than or equal to 512, not 100",
        "limits.max_frames is not a setting; did you mean `max_frame_bytes`?",
        "store.synchronous should be 'FULL' or 'NORMAL', not \"OFF\"",
        "user.bob.vpns names trading, which is not there; add `[vpn.trading]`",
    ]
    assert [line[: len(start)] for line, start in zip(said, expected, strict=True)] == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dta = 'x'", "dta is not a setting; did you mean `data`?"),
        ("[log]\nxyzzy = 1", "log.xyzzy is not a setting; known here are format, level"),
        ("[vpn.a.queue.b]\nquota = 1", "vpn.a.queue.b.quota is not a setting; did you mean `quota_mb`?"),
        ("[[listener]]\n[listener.tls]\nca = 1", "listener[0].tls.ca is not a setting; known here are"),
        ("[vpns.default]", "vpns is not a setting; did you mean `vpn`?"),
    ],
)
def test_an_unknown_key_is_an_error_with_a_way_out(text: str, sentence: str) -> None:
    """An unknown key is refused wherever it stands, with the nearest known one or all of them."""
    assert any(problem.startswith(sentence) for problem in problems(text))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[log]\nlevel = 3", "log.level should be 'debug', 'info', 'warning' or 'error', not 3"),
        ("[vpn.default]\nenabled = 1", "vpn.default.enabled should be true or false, not 1"),
        ("[admin]\nport = true", "admin.port should be a whole number, not true"),
        ("[admin]\nport = '1'", 'admin.port should be a whole number, not "1"'),
        ("[admin]\nport = 70000", "admin.port should be less than or equal to 65535, not 70000"),
        ("limits = 3", "limits should be a table, not 3"),
        ("vpn = 3", "vpn should be a table, not 3"),
        ("listener = 3", "listener should be an array, not 3"),
        ("[listener]\nport = 1", 'listener should be an array, not {"port": 1}; write `[[listener]]`'),
        ("listener = [3]", "listener[0] should be a table, not 3"),
        ("[vpn.a.queue.'b*']", 'vpn.a.queue."b*" is wrong: a queue\'s name'),
        ("[vpn.a.queue.b]\ndefault_start = 'soon'", "vpn.a.queue.b.default_start is wrong: "),
        ('[user."a\\u00a0b"]\npassword_file = "x"', 'user."a\u00a0b" is wrong: a user\'s name'),
        ("[admin]\nhost = '*'", "admin.host is wrong: name a host; for every address of this machine write"),
        ("[admin]\nhost = '[::1]'", "admin.host is wrong: `[::1]` is not a host"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(text: str, sentence: str) -> None:
    """Nothing is coerced, and the sentence says what would be right and what was there."""
    (problem,) = problems(text)
    assert problem.startswith(sentence)


def test_a_long_value_is_quoted_in_part() -> None:
    """A sentence stays a sentence, however long the value it is about."""
    (problem,) = problems(f"[admin]\nport = '{'9' * 1000}'")
    assert len(problem) < 120
    assert problem.endswith("…")


def test_a_consequence_is_not_reported() -> None:
    """A user whose password cannot be read is not reported as having none as well."""
    (problem,) = problems("[user.ann]\npassword = 3")
    assert problem == "user.ann.password should be a string"


@pytest.mark.parametrize("password", ["'hunter2'", "['hunter2']", "{ hunter2 = 'hunter2' }"])
def test_a_password_is_never_quoted(password: str) -> None:
    """A password in clear where a hash belongs appears in no message."""
    (problem,) = problems(f"[user.ann]\npassword = {password}")
    assert problem.startswith("user.ann.password ")
    assert "hunter2" not in problem


def test_a_text_that_is_not_toml_says_where(tmp_path: Path) -> None:
    """A syntax error has its line and the file's name."""
    file = tmp_path / "rewind.toml"
    file.write_text("data = \n")
    with pytest.raises(ConfigError, match=r"rewind\.toml is not TOML: Invalid value \(at line 1, column 8\)"):
        read(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file and one that is not text are configuration errors."""
    with pytest.raises(ConfigError, match=r"absent\.toml cannot be read: No such file"):
        read(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"data = '\xff'")
    with pytest.raises(ConfigError, match=r"binary\.toml is not UTF-8 text, at byte 8"):
        read(tmp_path / "binary.toml")


def test_a_password_file_holds_the_hash(tmp_path: Path) -> None:
    """The hash is taken from the file, its last newline left out."""
    (tmp_path / "ann.hash").write_text(HASH + "\n")
    file = tmp_path / "rewind.toml"
    file.write_text(f"[user.ann]\npassword_file = {toml.literal(tmp_path / 'ann.hash')}")
    assert secret_of(read(file).settings.users["ann"], "password") == HASH
    assert secret_of(User(password=HASH), "password") == HASH
    assert secret_of(User(certificate_names=("ann",)), "password") is None


@pytest.mark.parametrize("content", [None, b"", b"hunter2", b"\xff"])
def test_a_password_file_that_holds_no_hash_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A password file is looked at when the configuration is read, not when the user comes."""
    hashes = tmp_path / "ann.hash"
    if content is not None:
        hashes.write_bytes(content)
    file = tmp_path / "rewind.toml"
    file.write_text(f"[user.ann]\npassword_file = {toml.literal(hashes)}")
    with pytest.raises(ConfigError, match=r"^user\.ann\.password_file cannot be used: ") as refused:
        read(file)
    assert "hunter2" not in str(refused.value)


def test_a_certificate_is_looked_at_when_the_configuration_is_read(tmp_path: Path) -> None:
    """A listener whose certificate cannot be loaded is a configuration error beside all others."""
    file = tmp_path / "rewind.toml"
    file.write_text(
        "[[listener]]\n[listener.tls]\ncertificate = 'absent.pem'\nkey = 'absent.key'\n[vpn.default]\nx = 1"
    )
    with pytest.raises(ConfigError) as refused:
        read(file)
    assert refused.value.problems[0].startswith("vpn.default.x is not a setting")
    assert refused.value.problems[1:] == [
        "listener[0].tls cannot be used: absent.pem cannot be read: No such file or directory"
    ]


def test_the_command_line_wins() -> None:
    """Data folder, listeners and administration of the command line take the place of the file's."""
    settings = read(
        None,
        Overrides(data=Path("/srv/rewind"), listen=("127.0.0.1:0", "amqp://[::1]:5673"), admin="localhost:0"),
    ).settings
    assert settings.data == Path("/srv/rewind")
    assert [listener.url() for listener in settings.listeners] == ["amqp://127.0.0.1:0", "amqp://[::1]:5673"]
    assert (settings.admin.host, settings.admin.port) == ("localhost", 0)


def test_a_listener_s_url_has_the_port_that_was_bound() -> None:
    """A listener that asked for a free port is announced with the one it got."""
    assert Listener(port=0).url(40_001) == "amqp://127.0.0.1:40001"
    tls = Tls(certificate=Path("server.pem"), key=Path("server.key"))
    assert Listener(host="::1", tls=tls).url() == "amqps://[::1]:5672"


def test_an_address_on_the_command_line_keeps_what_the_file_says_of_listeners(tmp_path: Path) -> None:
    """`--listen` says where; TLS and the modes stay those of the file's first listener of that scheme."""
    issued = trustme.CA().issue_cert("localhost")
    pem = tmp_path / "server.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(pem)
    file = tmp_path / "rewind.toml"
    file.write_text(
        "[[listener]]\nrabbitmq_mode = true\n"
        "[[listener]]\nport = 5671\n[listener.tls]\n"
        f"certificate = {toml.literal(pem)}\nkey = {toml.literal(pem)}\n"
    )
    plain, secure = read(file, Overrides(listen=("127.0.0.1:0", "amqps://127.0.0.1:0"))).settings.listeners
    assert plain == Listener(port=0, rabbitmq_mode=True)
    assert secure == Listener(port=0, tls=Tls(certificate=pem, key=pem))


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("5672", "the port is missing; write HOST:PORT"),
        ("localhost:http", "`http` is not a port"),
        ("localhost:65536", "`65536` is not a port"),
        ("localhost:", "`` is not a port"),
        (":5672", "name a host"),
        ("::1:5672", "an IPv6 address needs brackets, as in `[::1]:5672`"),
        ("ftp://localhost:21", "`ftp://` is not a scheme"),
        ("amqps://localhost:5671", "`amqps://` needs a certificate"),
    ],
)
def test_a_wrong_address_is_explained(address: str, sentence: str) -> None:
    """An address that cannot be listened on is quoted with what is wrong with it."""
    with pytest.raises(ConfigError) as refused:
        read(None, Overrides(listen=(address,)))
    (problem,) = refused.value.problems
    assert problem.startswith(f"--listen {address}: {sentence}")


def test_the_command_line_s_problems_stand_beside_the_file_s(tmp_path: Path) -> None:
    """One run reports a wrong key of the file, a wrong address, and a rule that a right address breaks."""
    file = tmp_path / "rewind.toml"
    file.write_text("x = 1")
    with pytest.raises(ConfigError) as refused:
        read(file, Overrides(listen=("0.0.0.0:5672",), admin="nowhere"))
    first, second, third = refused.value.problems
    assert first.startswith("x is not a setting")
    assert second == "--admin nowhere: the port is missing; write HOST:PORT, as in `127.0.0.1:5672`"
    assert third.startswith("listener[0].host 0.0.0.0 would let anyone in")


# --- Permissions in the configuration -------------------------------------------------------------------------------

ANN = f'[user.ann]\npassword = "{HASH}"\n'
OPEN_LISTENER = '[[listener]]\nsasl = ["ANONYMOUS"]\n'


def test_every_action_has_its_list() -> None:
    """The lists of a user are the actions there are."""
    assert [action.value for action in Action] == list(PERMISSIONS)
    assert set(PERMISSIONS) <= set(User.__dataclass_fields__)


def test_lists_are_read_as_they_stand() -> None:
    """Lists come as given; one that is not there is not an empty one."""
    user = parse(ANN + 'publish = ["topic://a/>", "!topic://a/b"]\nreplay = []').users["ann"]
    assert user.permissions() == {"publish": ("topic://a/>", "!topic://a/b"), "replay": ()}
    assert User().permissions() == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            'publish = ["orders"]',
            "user.ann.publish[0] is wrong: 'orders' does not say of what it is a pattern",
        ),
        (
            'publish = ["queue://a", "log://a"]',
            "user.ann.publish[1] is wrong: 'log://a' is nothing to publish to; what can be permitted here is "
            "`queue://` or `topic://`",
        ),
        ('consume = ["topic://a//b"]', "user.ann.consume[0] is wrong: 'topic://a//b' is no pattern"),
        ('browse = ["topic://a"]', "user.ann.browse[0] is wrong: 'topic://a' is nothing to browse"),
        ('replay = ["log://a"]', "user.ann.replay[0] is wrong: 'log://a' is nothing to replay"),
        ('administer = "queue://a"', 'user.ann.administer should be an array, not "queue://a"'),
        ("consumes = []", "user.ann.consumes is not a setting; did you mean `consume`?"),
        ('publish = ["!queue://a"]', "user.ann.publish has exceptions alone, which permit nothing"),
        ('replay = ["queue://a"]', "user.ann.replay permits nothing without `consume`"),
        ('replay = ["queue://a"]\nconsume = []', "user.ann.replay permits nothing without `consume`"),
    ],
)
def test_a_rule_that_cannot_mean_anything_is_refused(text: str, sentence: str) -> None:
    """A rule that would silently permit nothing, or something else, is an error that says what would be right."""
    (problem,) = problems(ANN + text)
    assert problem.startswith(sentence)


def test_problems_of_permissions_come_with_all_others() -> None:
    """Wrong rules of several users are reported in one run, and no consequences of them."""
    first, second = problems(
        ANN + 'consume = ["a"]\nreplay = ["queue://a"]\n' + "[user.bob]\npublish = ['b']\nbrowse = []"
    )
    assert first.startswith("user.ann.consume[0] is wrong")
    assert second.startswith("user.bob.publish[0] is wrong")


def test_clients_without_a_name_have_rules_where_there_are_users() -> None:
    """ANONYMOUS beside users would get around every rule, so it has to be said what such clients may do."""
    (problem,) = problems(OPEN_LISTENER + ANN)
    assert problem.startswith("listener[0].sasl has ANONYMOUS beside users; say in a `[user.anonymous]`")
    settings = parse(OPEN_LISTENER + ANN + '[user.anonymous]\nconsume = ["log://>"]')
    assert settings.users["anonymous"].permissions() == {"consume": ("log://>",)}


def test_rules_for_clients_without_a_name_need_such_clients() -> None:
    """`[user.anonymous]` is a user that can log in only where a listener offers ANONYMOUS."""
    (problem,) = problems(ANN + "[user.anonymous]\nconsume = []")
    assert (
        problem == "user.anonymous stands for clients without a name, but no listener has ANONYMOUS in `sasl`"
    )


# --- What a configuration may say of indexed properties and of starts that are searched for -------------------------


def test_properties_to_be_indexed_are_named() -> None:
    """`index` takes names of fields and of application properties, in the order they are given."""
    settings = parse('[vpn.default.replay_log]\nindex = ["message-id", "trade id"]')
    assert settings.vpns["default"].replay_log.index == ("message-id", "trade id")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('replay_log.index = ["a", "a"]', r"vpn\.default\.replay_log\.index names a 2 times; once is enough"),
        ('replay_log.index = [" "]', r"index\[0\] is wrong: a property's name is not empty"),
        ('queue.q.default_start = "match:a ="', r"default_start is wrong: .*at character 4 of the selector"),
    ],
)
def test_what_could_not_work_is_refused(line: str, problem: str) -> None:
    """A property named twice or not at all, and a default start whose selector is none, are errors of the file."""
    with pytest.raises(ConfigError, match=problem):
        parse(f"[vpn.default]\n{line}")
