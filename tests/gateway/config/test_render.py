"""Settings as TOML: the commented example, and the settings in effect."""

import re
import tomllib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from amqp_ext.sasl import hash_password
from gateway.config import (
    ConfigError,
    Listener,
    Queue,
    ReplayLog,
    Settings,
    Tls,
    User,
    Vpn,
    effective_toml,
    parse,
    settings,
    token_hash,
    toml,
    vpn,
)
from gateway.config.toml import example_toml, settings_of

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"
HASH = hash_password("secret", salt=b"0123456789abcdef")
ANN = f'[user.ann]\npassword = "{HASH}"\n'
PASSWORD, CERTIFICATE = User(password=HASH), User(certificate_names=("ann",))
PLAIN_TLS = Tls(certificate=Path("server.pem"), key=Path("server.key"))
MUTUAL_TLS = replace(PLAIN_TLS, client_ca=Path("clients.pem"))


def uncommented(example: str) -> str:
    """The example with its samples in effect: a `#` with no blank behind it is taken away."""
    return re.sub(r"^#(?! )", "", example, flags=re.MULTILINE)


def test_the_example_equals_the_defaults() -> None:
    """What the example shows as settings in effect is what holds without it."""
    assert parse(example_toml()) == Settings()


def test_the_samples_in_the_example_can_be_taken_as_they_are() -> None:
    """Without the marks the example is a configuration with TLS, users and a queue, for all but the hashes."""
    text = uncommented(example_toml())
    with pytest.raises(
        ConfigError, match=r"^user\.ann\.password is wrong: [^\n]+\nuser\.ann\.token is wrong: [^\n]+$"
    ):
        parse(text)
    settings = parse(text.replace("scram$...", HASH).replace("sha256$...", token_hash("a token")))
    assert settings.listeners[0].tls is not None
    assert settings.users
    assert settings.vpns["default"].queues


def test_the_example_shows_every_setting() -> None:
    """No setting of any table is missing from the example."""
    text = example_toml()
    shown = set(re.findall(r"^#?(\w+) = ", text, flags=re.MULTILINE))
    shown |= {
        name for header in re.findall(r"^#?\[+(.+?)\]+$", text, re.MULTILINE) for name in header.split(".")
    }
    schema = TypeAdapter(Settings).json_schema()
    known = {name for table in (schema, *schema["$defs"].values()) for name in table["properties"]}
    assert known <= shown


def test_every_setting_says_what_it_is_and_why() -> None:
    """Each field of each table has a description: that is where unit and reason are."""
    modules = (settings, vpn, settings, vpn, vpn)
    tables = {name: found for module in modules for name, found in vars(module).items()}
    for name in ("Settings", *TypeAdapter(Settings).json_schema()["$defs"]):
        for setting in settings_of(tables[name]):
            assert setting.description, f"{name}.{setting.key}"


def test_the_documentation_shows_the_example() -> None:
    """The page's block between its `configuration` marks is what `example_toml` writes."""
    shown = re.findall(
        r"<!-- generated: configuration -->\s*```toml\n(.*?)```\s*<!-- end -->",
        PAGE.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    assert shown == [example_toml()]


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_survives_toml(text: str) -> None:
    """What is written as a string or a key is read back the same."""
    assert tomllib.loads(f"{toml.key(text)} = [{toml.literal(text)}, true]") == {text: [text, True]}


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="*>?"), min_size=1, max_size=8)
QUEUES = st.builds(
    Queue,
    exclusive=st.sampled_from(["none", "wait", "refuse", "steal"]),
    subscriptions=st.sampled_from([(), ("a/>",), ("a/*", "!a/b")]),
    quota_mb=st.integers(0, 2**40),
    default_start=st.sampled_from(["live", "beginning", "10m"]),
)
VPNS = st.builds(
    Vpn,
    create_queues=st.booleans(),
    replay_log=st.builds(ReplayLog, promote_direct=st.booleans(), topics=st.sampled_from([(), ("x/>",)])),
    queues=st.dictionaries(NAMES, QUEUES, max_size=3),
)
USERS = st.builds(
    User,
    password=st.just(HASH),
    certificate_names=st.sets(NAMES, max_size=1).map(tuple),
    publish=st.sampled_from([None, (), ("topic://a/>", "!topic://a/b")]),
)
LISTENERS = st.builds(
    Listener,
    host=st.sampled_from(["127.0.0.1", "::1"]),
    port=st.just(0),
    tls=st.sampled_from([None, PLAIN_TLS, MUTUAL_TLS]),
    rabbitmq_mode=st.booleans(),
)


@given(
    st.builds(
        Settings,
        data=NAMES.map(Path),
        listeners=st.lists(LISTENERS, min_size=1, max_size=3).map(tuple),
        users=st.dictionaries(st.sampled_from(["ann", "Zoë", 'a."b"']), USERS, max_size=1),
        vpns=st.dictionaries(st.sampled_from(["default", "trading", "a.b"]), VPNS).map(
            lambda named: {"default": Vpn()} | named
        ),
    )
)
def test_the_effective_settings_can_be_read_again(settings: Settings) -> None:
    """What `effective_toml` writes with secrets is the same settings."""
    assert parse(effective_toml(settings, show_secrets=True)) == settings


def test_the_effective_settings_leave_nothing_out() -> None:
    """Every field that has a value is written, defaults included."""
    document = tomllib.loads(effective_toml(Settings()))
    assert set(document["limits"]) == {field.name for field in fields(Settings().limits)}
    assert set(document) == {
        "data",
        "allow_anonymous_beyond_loopback",
        "identity_provider",
        "listener",
        "admin",
        "alarms",
        "vpn",
        "limits",
        "store",
        "log",
    }


def test_password_hashes_are_not_shown_unless_asked_for() -> None:
    """What is printed for a person to read holds no hash."""
    settings = parse(ANN)
    assert HASH not in effective_toml(settings)
    assert HASH in effective_toml(settings, show_secrets=True)


def test_a_value_without_a_form_in_toml_is_a_mistake_of_ours() -> None:
    """Only the kinds of value that settings have can be written."""
    with pytest.raises(TypeError, match=r"1j has no place"):
        toml.literal(1j)


def test_every_table_is_a_frozen_slotted_dataclass() -> None:
    """All values of the tree are immutable and carry nothing beside their fields."""
    seen: list[object] = [Settings(users={"ann": PASSWORD}, listeners=(Listener(tls=MUTUAL_TLS),)), Queue()]
    for value in seen:
        assert is_dataclass(value)
        assert not hasattr(value, "__dict__")
        for field in fields(value):
            item = getattr(value, field.name)
            children = (
                item.values() if isinstance(item, dict) else item if isinstance(item, tuple) else [item]
            )
            seen += [child for child in children if is_dataclass(child)]
    assert len(seen) == 12
