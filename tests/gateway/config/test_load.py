"""Reading a configuration: what is accepted, and with which words a mistake is refused."""

from __future__ import annotations

from dataclasses import replace
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
    VpnStore,
    effective_toml,
    masked,
    parse,
    read,
    reconcile,
    toml,
)
from gateway.config.load import secret_of
from gateway.config.setting_types import Mechanism, is_loopback
from gateway.config.settings import PERMISSIONS
from gateway.core.permissions import Action

# --- Reading a configuration ----------------------------------------------------------------------------------------

HASH = hash_password("secret", salt=b"0123456789abcdef")
ANN = f'[user.ann]\npassword = "{HASH}"\n'
IDP = "[[identity_provider]]\nissuer = 'https://sso.example.com'\naudience = 'rewind'\n"
STREAM = "[vpn.default.queue.audit]\nkind = 'stream'\n"
LOG = "[vpn.default.replay_log]\n"
FAR = "[vpn.default.replay_target.far]\n"
OF_FAR = "vpn.default.replay_target.far"
OPEN_LISTENER = '[[listener]]\nsasl = ["ANONYMOUS"]\n'


def table(url: str, more: str = "") -> str:
    """The table of a store."""
    return f'[vpn.default.store]\nurl = "{url}"\n{more}'


def written(folder: Path, text: str) -> Path:
    """Write a configuration file."""
    file = folder / "rewind.toml"
    file.write_text(text)
    return file


def problems(text: str) -> list[str]:
    """Every problem of a configuration that has to be refused."""
    with pytest.raises(ConfigError) as refused:
        parse(text)
    return refused.value.problems


def test_nothing_configured_gives_the_defaults() -> None:
    """An empty file, and no file at all, are the defaults."""
    assert parse("") == read().settings == Settings()


def test_default_is_there_beside_a_named_vpn() -> None:
    """`default`, for clients that name no Message VPN, exists even if the file names another one only."""
    assert list(parse("[vpn.trading]").vpns) == ["default", "trading"]
    assert not parse("[vpn.default]\nenabled = false\n[vpn.trading]").vpns["default"].enabled


def test_all_problems_are_reported_together() -> None:
    """Wrong values, unknown keys and broken rules are reported together, each with its path."""
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
        "listener[1].sasl[1] should be 'ANONYMOUS', 'PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512', 'EXTERNAL', "
        "'OAUTHBEARER' or 'XOAUTH2', not \"KERBEROS\"",
        "user.ann.password is wrong: a stored password starts with",
        "vpn.default.queue.orders.subscriptions[1] is wrong: 'a//b'",
        "vpn.default.queue.orders.quota_mb should be greater than or equal to 0, not -1",
        'vpn."a/b" is wrong: a name has 1 to 64 characters of A-Z a-z 0-9 . _ -',
        "limits.max_frame_bytes should be greater than or equal to 512, not 100",
        "limits.max_frames is not a setting; did you mean `max_frame_bytes`?",
        "store.synchronous should be 'FULL' or 'NORMAL', not \"OFF\"",
        "user.bob.vpns names trading, which does not exist; add `[vpn.trading]`",
    ]
    assert [line[: len(start)] for line, start in zip(said, expected, strict=True)] == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        # keys
        ("dta = 'x'", "dta is not a setting; did you mean `data`?"),
        ("[log]\nxyzzy = 1", "log.xyzzy is not a setting; known here are format, level"),
        ("[vpn.a.queue.b]\nquota = 1", "vpn.a.queue.b.quota is not a setting; did you mean `quota_mb`?"),
        (
            "[[listener]]\n[listener.tls]\ncertificate = 'c'\nkey = 'k'\nca = 1",
            "listener[0].tls.ca is not a setting; known here are",
        ),
        ("[vpns.default]", "vpns is not a setting; did you mean `vpn`?"),
        # values
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
        # permissions
        (
            ANN + 'publish = ["orders"]',
            "user.ann.publish[0] is wrong: 'orders' does not say what kind of node it is for",
        ),
        (
            ANN + 'publish = ["queue://a", "log://a"]',
            "user.ann.publish[1] is wrong: 'log://a' is not an address to publish to; what can be permitted here is "
            "`queue://` or `topic://`",
        ),
        (
            ANN + 'consume = ["topic://a//b"]',
            "user.ann.consume[0] is wrong: 'topic://a//b' is not a valid pattern",
        ),
        (
            ANN + 'browse = ["topic://a"]',
            "user.ann.browse[0] is wrong: 'topic://a' is not an address to browse",
        ),
        (ANN + 'replay = ["log://a"]', "user.ann.replay[0] is wrong: 'log://a' is not an address to replay"),
        (ANN + 'administer = "queue://a"', 'user.ann.administer should be an array, not "queue://a"'),
        (ANN + "consumes = []", "user.ann.consumes is not a setting; did you mean `consume`?"),
        (ANN + 'publish = ["!queue://a"]', "user.ann.publish has only exceptions, which permit nothing"),
        (ANN + 'replay = ["queue://a"]', "user.ann.replay permits nothing without `consume`"),
        (ANN + 'replay = ["queue://a"]\nconsume = []', "user.ann.replay permits nothing without `consume`"),
        # identity providers
        (
            "[identity_provider]",
            "identity_provider should be an array, not {}; write `[[identity_provider]]`",
        ),
        (IDP.replace("'rewind'", "''"), "identity_provider[0].audience is wrong: must not be empty"),
        (
            IDP + "jwks_url = 'http://sso.example.com/keys'",
            "identity_provider[0].jwks_url is wrong: is `http://` to",
        ),
        (IDP + "jwks_url = 'ftp://sso.example.com'", "identity_provider[0].jwks_url is wrong: is not a URL"),
        (IDP + "jwks_url = 'https://u:p@a/k'\n", "identity_provider[0].jwks_url is wrong: is not a URL"),
        (
            IDP + "jwks_url = 'https://a/k'\njwks_file = 'keys.json'",
            "identity_provider[0].jwks_url is set together with `jwks_file`",
        ),
        (IDP + IDP, "identity_provider[1].issuer is another provider's, too"),
        (
            IDP + "client_secret_file = 's'",
            "identity_provider[0].client_secret_file belongs to a `client_id`",
        ),
        (IDP + "scopes = ['email']", "identity_provider[0].scopes needs `openid`"),
        (IDP + "console_url = 'gateway'", "identity_provider[0].console_url is wrong"),
        (IDP.replace("https", "http"), "identity_provider[0].issuer is `http://` to another machine"),
        (IDP.replace("https://sso.example.com", "main"), "identity_provider[0].issuer is not a URL"),
        (
            "[[listener]]\nsasl = ['OAUTHBEARER']\n" + ANN,
            "listener[0].sasl has OAUTHBEARER, which needs an `[[identity_provider]]`",
        ),
        ("[[listener]]\nsasl = ['PLAIN']\n" + IDP, "listener[0].sasl has PLAIN, which needs a `[user.NAME]`"),
        ("[[listener]]\nsasl = ['ANONYMOUS']\n" + IDP, "listener[0].sasl has ANONYMOUS, and there are users"),
        (
            "[[listener]]\nhost = '0.0.0.0'\n" + IDP,
            "listener[0].sasl leaves no way to log in: tokens of identity",
        ),
        # several settings
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
        (ANN + "[user.bob]", "user.bob cannot log in"),
        (f"[user.ann]\ntoken = '{'sha256$' + 64 * '0'}'", "listener[0].sasl leaves no way to log in: tokens"),
        ("[admin]\nhost = '0.0.0.0'", "admin.host 0.0.0.0 would let anyone on other machines administer"),
        (
            "[admin.tls]\ncertificate='c'\nkey='k'\nrequire_client_certificate=true",
            "admin.tls.require_client_certificate needs `client_ca`",
        ),
        (ANN + "password_file = 'ann.hash'", "user.ann.password_file is set together with `password`"),
        ("[user.ann]\ncertificate_names = ['x']", "listener[0].sasl leaves no way to log in"),
        ("[vpn.default]\nenabled = false", "vpn has no enabled Message VPN"),
        (
            "[vpn.default.replay_log]\nenabled = false\n[vpn.default.queue.q]\ndefault_start = 'beginning'",
            "vpn.default.queue.q.default_start is beginning, which needs `replay_log.enabled`",
        ),
        ("[store]\ncheckpoint_mb = 300", "store.checkpoint_mb is above store.wal_limit_mb"),
        ("[user.ann]\npassword = 3", "user.ann.password should be a string"),
        (
            "[vpn.default.queue.orders]\ndead_message_queue = 'orders'",
            "vpn.default.queue.orders.dead_message_queue is the queue itself",
        ),
        (
            "[vpn.default.queue.orders]\ndedup_window_ms = 5",
            "vpn.default.queue.orders.dedup_window_ms limits the age of the ids that `dedup_window` remembers",
        ),
        (
            "[vpn.default.queue.a]\ndedup_window = 2_500_000\n[vpn.default.queue.b]\ndedup_window = 1_500_001",
            "vpn.default.queue has queues with `dedup_window`s of 4000001 messages together",
        ),
        (
            STREAM + "[vpn.default.replay_log]\nenabled = false",
            "vpn.default.queue.audit.kind is stream, a view of the log",
        ),
        (
            ANN + "[user.anonymous]\nconsume = []",
            "user.anonymous is for clients without a name, but no listener has ANONYMOUS in `sasl`",
        ),
        (
            OPEN_LISTENER + ANN,
            "listener[0].sasl has ANONYMOUS, and there are users; say in a `[user.anonymous]`",
        ),
        (
            "[[listener]]\nhost = '0.0.0.0'\nsasl = ['ANONYMOUS']\n" + ANN,
            "listener[0].host 0.0.0.0 would let anyone on other machines connect; take ANONYMOUS out of `sasl`",
        ),
        # indexed properties, and starts that are searched for
        (LOG + "index = ['a', 'a']", "vpn.default.replay_log.index names a 2 times; once is enough"),
        (LOG + "index = [' ']", "vpn.default.replay_log.index[0] is wrong: a property's name is not empty"),
        (
            "[vpn.default]\nqueue.q.default_start = 'match:a ='",
            "vpn.default.queue.q.default_start is wrong: expected a value",
        ),
        # targets of copies
        *(
            (f"{FAR}url = '{url}'", f"{OF_FAR}.url is wrong: `{url}` is not the URL of a peer")
            for url in ("far:5672", "http://far", "amqp://", "amqp://far:0", "amqp://far:99999")
        ),
        (f"{FAR}url = 'amqps://ann:secret@far'", f"{OF_FAR}.url is wrong: has a user in it"),
        (f"{FAR}url = 'amqps://far/queue'", f"{OF_FAR}.url is wrong: has more than host and port"),
        (f"{FAR}url = 'amqps://far?a=b'", f"{OF_FAR}.url is wrong: has more than host and port"),
        (f"{FAR}url = 'amqps://far'\nuser = 'ann'", f"{OF_FAR} has only one of `user` and `password_file`"),
        (
            f"{FAR}url = 'amqps://far'\npassword_file = 's'",
            f"{OF_FAR} has only one of `user` and `password_file`",
        ),
        (f"{FAR}url = 'amqp://far'\ntls_ca = 'ca.pem'", f"{OF_FAR}.tls_ca is for TLS"),
        (f"{FAR}url = 'amqps://far'\nuser = ''\npassword_file = 's'", f"{OF_FAR}.user should have"),
        *(
            (
                f"[vpn.default.replay_target.{toml.key(name)}]\nurl = 'amqps://far'",
                f"{place} is wrong: a label has",
            )
            for name, place in (
                ("far away", 'vpn.default.replay_target."far away"'),
                ("f" * 65, f"vpn.default.replay_target.{'f' * 65}"),
            )
        ),
        # stores
        (table("mysql://u:secret@a/x"), "vpn.default.store.url is wrong: it is not the URL of a store"),
        (table("postgresql://u:secret@a"), "vpn.default.store.url is wrong: it names no database"),
        ("[vpn.default]\nstore = 'postgresql://u:secret@a/x'", "vpn.default.store should be a table"),
        ("[vpn.default.store]\nrequire_standby = true", "vpn.default.store.url is missing"),
        *(
            (
                table("postgresql://a/x", f"advertise = '{place}'"),
                f"vpn.default.store.advertise is wrong: `{place}` is not an address that clients can connect to",
            )
            for place in ("amqp://b:5672", "0.0.0.0:5672")
        ),
        (
            table("postgresql://a/x", "lease_seconds = 1"),
            "vpn.default.store.lease_seconds should be greater than or equal to 2",
        ),
        (
            table("postgresql://u:secret@a/x", "password_file = 'p'"),
            "vpn.default.store.password_file is set together with a password",
        ),
    ],
)
def test_what_is_wrong_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    """
    An unknown key is reported with the nearest known one, or with all. No value is coerced: the sentence has the value
    and what is allowed. A rule that would permit nothing, or something else, is named; of settings that contradict each
    other, the one to change is. There is one sentence for each mistake, without passwords of URLs.
    """
    (problem,) = problems(text)
    assert problem.startswith(sentence)
    assert "secret@" not in problem


def test_a_certificate_is_one_users() -> None:
    """A name that two users have is reported for both."""
    first, second = problems(
        ANN + "certificate_names = ['x']\n[user.bob]\npassword_file = 'b'\ncertificate_names = ['x']"
    )
    assert first.startswith("user.ann.certificate_names has x")
    assert second.startswith("user.bob.certificate_names has x")


def test_a_long_value_is_quoted_in_part() -> None:
    """The sentence stays short, however long the value is."""
    (problem,) = problems(f"[admin]\nport = '{'9' * 1000}'")
    assert len(problem) < 120
    assert problem.endswith("…")


@pytest.mark.parametrize("password", ["'hunter2'", "['hunter2']", "{ hunter2 = 'hunter2' }"])
def test_a_password_is_never_quoted(password: str) -> None:
    """A password in clear, where a hash is expected, appears in no message."""
    (problem,) = problems(f"[user.ann]\npassword = {password}")
    assert problem.startswith("user.ann.password ")
    assert "hunter2" not in problem


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read: No such file"),
        (b"data = '\xff'", "is not UTF-8 text, at byte 8"),
        (b"data = \n", r"is not TOML: Invalid value \(at line 1, column 8\)"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    """A file that is missing, is not text, or has a syntax error, with the line of the error."""
    file = tmp_path / "rewind.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"rewind\.toml {said}"):
        read(file)


def test_a_password_file_holds_the_hash(tmp_path: Path) -> None:
    """The hash is read from the file, without the final newline."""
    (tmp_path / "ann.hash").write_text(HASH + "\n")
    file = written(tmp_path, f"[user.ann]\npassword_file = {toml.literal(tmp_path / 'ann.hash')}")
    assert secret_of(read(file).settings.users["ann"], "password") == HASH
    assert secret_of(User(password=HASH), "password") == HASH
    assert secret_of(User(certificate_names=("ann",)), "password") is None


@pytest.mark.parametrize("content", [None, b"", b"hunter2", b"\xff"])
def test_a_password_file_that_holds_no_hash_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A password file is read with the configuration, not when the user connects."""
    hashes = tmp_path / "ann.hash"
    if content is not None:
        hashes.write_bytes(content)
    file = written(tmp_path, f"[user.ann]\npassword_file = {toml.literal(hashes)}")
    with pytest.raises(ConfigError, match=r"^user\.ann\.password_file cannot be used: ") as refused:
        read(file)
    assert "hunter2" not in str(refused.value)


def test_a_certificate_is_looked_at_when_the_configuration_is_read(tmp_path: Path) -> None:
    """A certificate that cannot be loaded is reported with all other problems."""
    file = written(
        tmp_path,
        "[[listener]]\n[listener.tls]\ncertificate = 'absent.pem'\nkey = 'absent.key'\n[vpn.default]\nx = 1",
    )
    with pytest.raises(ConfigError) as refused:
        read(file)
    assert refused.value.problems[0].startswith("vpn.default.x is not a setting")
    assert refused.value.problems[1:] == [
        "listener[0].tls cannot be used: absent.pem cannot be read: No such file or directory"
    ]


def test_the_command_line_wins() -> None:
    """The data folder, listeners and administration of the command line replace those of the file."""
    settings = read(
        None,
        Overrides(data=Path("/srv/rewind"), listen=("127.0.0.1:0", "amqp://[::1]:5673"), admin="localhost:0"),
    ).settings
    assert settings.data == Path("/srv/rewind")
    assert [listener.url() for listener in settings.listeners] == ["amqp://127.0.0.1:0", "amqp://[::1]:5673"]
    assert (settings.admin.host, settings.admin.port) == ("localhost", 0)


def test_a_listener_s_url_has_the_port_that_was_bound() -> None:
    """A listener on port 0 is announced with the port that it got."""
    assert Listener(port=0).url(40_001) == "amqp://127.0.0.1:40001"
    tls = Tls(certificate=Path("server.pem"), key=Path("server.key"))
    assert Listener(host="::1", tls=tls).url() == "amqps://[::1]:5672"


def test_an_address_on_the_command_line_keeps_what_the_file_says_of_listeners(tmp_path: Path) -> None:
    """`--listen` sets the address only: TLS and modes are those of the file's first listener with that scheme."""
    issued = trustme.CA().issue_cert("localhost")
    pem = tmp_path / "server.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(pem)
    file = written(
        tmp_path,
        "[[listener]]\nrabbitmq_mode = true\n"
        "[[listener]]\nport = 5671\n[listener.tls]\n"
        f"certificate = {toml.literal(pem)}\nkey = {toml.literal(pem)}\n",
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
    """An address that cannot be listened on is quoted, with what is wrong."""
    with pytest.raises(ConfigError) as refused:
        read(None, Overrides(listen=(address,)))
    (problem,) = refused.value.problems
    assert problem.startswith(f"--listen {address}: {sentence}")


def test_the_command_line_s_problems_stand_beside_the_file_s(tmp_path: Path) -> None:
    """One run reports a wrong key in the file, a wrong address, and a rule that a valid address breaks."""
    file = written(tmp_path, "x = 1")
    with pytest.raises(ConfigError) as refused:
        read(file, Overrides(listen=("0.0.0.0:5672",), admin="nowhere"))
    first, second, third = refused.value.problems
    assert first.startswith("x is not a setting")
    assert second == "--admin nowhere: the port is missing; write HOST:PORT, as in `127.0.0.1:5672`"
    assert third.startswith("listener[0].host 0.0.0.0 would let anyone on other machines connect")


# --- Permissions in the configuration -------------------------------------------------------------------------------


def test_every_action_has_its_list() -> None:
    """A user has one list of rules for each action."""
    assert [action.value for action in Action] == list(PERMISSIONS)
    assert set(PERMISSIONS) <= set(User.__dataclass_fields__)


def test_lists_are_read_as_they_stand() -> None:
    """Rules keep their order; a missing list is not the same as an empty one."""
    user = parse(ANN + 'publish = ["topic://a/>", "!topic://a/b"]\nreplay = []').users["ann"]
    assert user.permissions() == {"publish": ("topic://a/>", "!topic://a/b"), "replay": ()}
    assert User().permissions() == {}


def test_problems_of_permissions_come_with_all_others() -> None:
    """Wrong rules of several users are reported in one run, without problems that only follow from them."""
    first, second = problems(
        ANN + 'consume = ["a"]\nreplay = ["queue://a"]\n' + "[user.bob]\npublish = ['b']\nbrowse = []"
    )
    assert first.startswith("user.ann.consume[0] is wrong")
    assert second.startswith("user.bob.publish[0] is wrong")


def test_clients_without_a_name_have_rules_where_there_are_users() -> None:
    """`anonymous` has the rights of clients without a name; without it, ANONYMOUS would evade all rules."""
    settings = parse(OPEN_LISTENER + ANN + '[user.anonymous]\nconsume = ["log://>"]')
    assert settings.users["anonymous"].permissions() == {"consume": ("log://>",)}


# --- Indexed properties, and listening without users ----------------------------------------------------------------


def test_properties_to_be_indexed_are_named() -> None:
    """`index` takes names of fields and of application properties, and keeps their order."""
    settings = parse('[vpn.default.replay_log]\nindex = ["message-id", "trade id"]')
    assert settings.vpns["default"].replay_log.index == ("message-id", "trade id")


OPEN = "allow_anonymous_beyond_loopback = true\n"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_anyone_may_come_from_this_machine(host: str) -> None:
    """Without users a gateway may listen on loopback."""
    assert is_loopback(host)
    settings = parse(f"[[listener]]\nhost = '{host}'")
    assert settings.mechanisms(settings.listeners[0]) == ("ANONYMOUS",)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "gateway.example.com"])
def test_nobody_comes_from_elsewhere_without_a_name(host: str) -> None:
    """Without users a gateway does not listen beyond loopback, unless a setting allows it."""
    listener, admin = f"[[listener]]\nhost = '{host}'\n", f"[admin]\nhost = '{host}'\n"
    first, second = problems(listener + admin)
    assert first.startswith(f"listener[0].host {host} would let anyone on other machines connect")
    assert second.startswith(f"admin.host {host} would let anyone on other machines administer")
    parse(OPEN + listener + admin)
    parse(listener + admin + ANN)


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
    """The default mechanisms: no ANONYMOUS if there are users, and no PLAIN without TLS."""
    settings = Settings(users={f"user{index}": user for index, user in enumerate(users)})
    assert settings.mechanisms(listener) == offered


def test_a_stream_has_no_settings_of_messages_that_lie_on_a_queue() -> None:
    """Each setting that a stream cannot have is one problem, which says what to use instead."""
    settings = (
        ("quota_mb = 1", "`quota_mb`"),
        ("quota_messages = 1", "`quota_mb`"),
        ("max_message_bytes = 1", "`limits.max_message_bytes`"),
        ("max_ttl_ms = 1", "do not expire"),
        ("max_unsettled = 1", "any number unsettled"),
        ("priorities = true", "order of publishing"),
        ("max_redelivery = 1", "attaches at it"),
        ("dead_message_queue = 'dead'", "no dead messages"),
    )
    text = STREAM + "\n".join(setting for setting, _ in settings)
    for problem, (setting, instead) in zip(problems(text), settings, strict=True):
        key = setting.partition(" ")[0]
        assert problem.startswith(f"vpn.default.queue.audit.{key} makes no sense on a stream")
        assert instead in problem
    parse(text.replace("stream", "queue"))


def test_what_a_stream_can_have() -> None:
    """Subscriptions, a default start, exclusive access and a limit of readers."""
    settings = parse(
        STREAM + "subscriptions = ['a/>', '!a/b']\ndefault_start = '10m'\nexclusive = 'steal'\nmax_flows = 3"
    )
    assert settings.vpns["default"].queues["audit"].kind == "stream"


def test_free_ports_do_not_collide() -> None:
    """Several listeners may ask for port 0."""
    assert len(parse("[[listener]]\nport = 0\n[[listener]]\nport = 0\n[admin]\nport = 0").listeners) == 2


@pytest.mark.parametrize(
    "text",
    [
        "url = 'amqp://far'",
        "url = 'amqp://[::1]:5673/'",
        "url = 'amqps://far:5671'\nvpn = 'test'\nuser = 'ann'\npassword_file = 'secret'\ntls_ca = 'ca.pem'",
    ],
)
def test_a_target_of_copies(text: str) -> None:
    """A peer with or without TLS, and with or without a name and a password."""
    target = parse(FAR + text).vpns["default"].replay_targets["far"]
    assert target.url in text
    assert (target.user is None) == (target.password_file is None)


URLS = [
    "postgresql://rewind:hunter2@a,b/rewind?target_session_attrs=read-write",
    "postgres://rewind:hun@ter2@a/rewind",
    "postgresql://rewind:hun:ter2@a/rewind",
    "postgresql://rewind:hun/ter2@a/rewind",
    "postgresql://a/rewind?user=rewind&password=hunter2",
    "postgresql://a/rewind?sslpassword=hunter2&user=rewind",
]


@pytest.mark.parametrize("url", URLS)
def test_a_password_is_not_shown(url: str) -> None:
    """Neither in the settings in effect nor in a reload's result, unlike the rest; `--show-secrets` shows all."""
    settings = parse(table(url))
    shown = effective_toml(settings)
    assert "hun" not in shown and "ter2" not in shown
    assert "***" in shown and "rewind" in shown
    assert parse(effective_toml(settings, show_secrets=True)) == settings
    (told,) = reconcile(
        settings, parse(table(url.replace("rewind?", "other?").replace("/rewind", "/other")))
    ).refused
    assert "hun" not in str(told) and "ter2" not in str(told) and "***" in str(told)


def test_what_has_no_password_is_as_it_is() -> None:
    """A URL without a password, with or without a user's name, is shown unchanged."""
    for url in ("postgresql://a,b/rewind", "postgresql://rewind@a:5433/rewind?connect_timeout=5"):
        assert masked(url) == url


def test_texts_around_a_url_stay() -> None:
    """In a text with two URLs only their passwords are removed."""
    told = masked("cannot open postgresql://u:one@a/x: postgresql://u:two@b/x refused me@home")
    assert told == "cannot open postgresql://u:***@a/x: postgresql://u:***@b/x refused me@home"


def test_a_password_file_has_to_be_there(tmp_path: Path) -> None:
    """It is read at the start, so that a mistake is found then."""
    file = written(tmp_path, table("postgresql://a/x", f'password_file = "{tmp_path / "password"}"'))
    with pytest.raises(ConfigError, match="password_file cannot be used"):
        read(file)
    (tmp_path / "password").write_text("secret\n")
    store = read(file).settings.vpns["default"].store
    assert store is not None and store.password_file == tmp_path / "password"


def test_only_what_is_asked_for_again_changes_while_it_runs() -> None:
    """`require_standby` is applied by a reload; the store's place and options wait for the next start."""
    before = parse(table("postgresql://a/x"))
    store = before.vpns["default"].store
    assert store is not None
    fixed = VpnStore(
        url="postgresql://b/x",
        password_file=Path("p"),
        read_url="postgresql://c/x",
        lease_seconds=9,
        advertise="d:1",
        require_standby=True,
    )
    vpn = replace(before.vpns["default"], store=fixed)
    found = reconcile(before, replace(before, vpns={"default": vpn}))
    assert {difference.path.rpartition(".")[2] for difference in found.refused} == {
        "url",
        "password_file",
        "read_url",
        "lease_seconds",
        "advertise",
    }
    assert [str(difference) for difference in found.applied] == [
        "vpn.default.store.require_standby: false became true"
    ]
    assert found.settings.vpns["default"].store == replace(store, require_standby=True)


@pytest.mark.parametrize("comes", [True, False])
def test_a_store_neither_comes_nor_goes_while_it_runs(comes: bool) -> None:
    """Messages do not move from one store to the other, so the change is refused."""
    without, with_it = parse(""), parse(table("postgresql://a/x"))
    before, after = (without, with_it) if comes else (with_it, without)
    found = reconcile(before, after)
    assert found.settings == before and "is where the messages are" in str(found.refused[0])
