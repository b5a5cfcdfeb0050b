"""Writing a configuration as TOML, and the settings of endpoints."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from amqp_ext.rabbitmq.management import QueueArguments
from amqp_ext.sasl import hash_password
from docs.generate import example_toml
from gateway.admin.semp.endpoints import SETTING_ATTRIBUTES, EndpointBody, NewQueue, configured
from gateway.config import (
    ConfigError,
    Listener,
    Queue,
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
from gateway.config.changes import reconcile
from gateway.config.toml import literal, settings_of
from gateway.config.vpn import QUEUE_KEYS
from gateway.core.endpoint.settings import (
    SETTINGS,
    EndpointSettings,
    Exclusivity,
    RetryType,
    Setting,
    SettingType,
    Unit,
)
from tests.support.core import new_endpoint

# --- Settings as TOML: the commented example, and the settings in effect ----------------------------------------------

HASH = hash_password("secret", salt=b"0123456789abcdef")
ANN = f'[user.ann]\npassword = "{HASH}"\n'
PASSWORD, CERTIFICATE = User(password=HASH), User(certificate_names=("ann",))
PLAIN_TLS = Tls(certificate=Path("server.pem"), key=Path("server.key"))
MUTUAL_TLS = replace(PLAIN_TLS, client_ca=Path("clients.pem"))


def uncommented(example: str) -> str:
    """The example with its commented settings in effect: each `#` that has no blank after it is removed."""
    return re.sub(r"^#(?! )", "", example, flags=re.MULTILINE)


def samples() -> Settings:
    """The example's commented settings, with valid hashes."""
    text = uncommented(example_toml())
    return parse(text.replace("scram$...", HASH).replace("sha256$...", token_hash("a token")))


def test_the_example_equals_the_defaults() -> None:
    """The settings that the example has in effect are the defaults."""
    assert parse(example_toml()) == Settings()


def test_the_samples_in_the_example_can_be_taken_as_they_are() -> None:
    """Without the `#` marks the example is a configuration with TLS, users and a queue, but for the hashes."""
    with pytest.raises(
        ConfigError, match=r"^user\.ann\.password is wrong: [^\n]+\nuser\.ann\.token is wrong: [^\n]+$"
    ):
        parse(uncommented(example_toml()))
    settings = samples()
    assert settings.listeners[0].tls is not None
    assert settings.users
    assert settings.vpns["default"].queues


def test_the_example_shows_every_setting() -> None:
    """Every setting of every table is in the example."""
    text = example_toml()
    shown = set(re.findall(r"^#?(\w+) = ", text, flags=re.MULTILINE))
    shown |= {
        name for header in re.findall(r"^#?\[+(.+?)\]+$", text, re.MULTILINE) for name in header.split(".")
    }
    schema = TypeAdapter(Settings).json_schema()
    known = {name for table in (schema, *schema["$defs"].values()) for name in table["properties"]}
    assert known <= shown


def test_every_setting_says_what_it_is_and_why() -> None:
    """Each field of each table has a description, which has the unit and the reason."""
    tables = vars(settings) | vars(vpn)
    for name in ("Settings", *TypeAdapter(Settings).json_schema()["$defs"]):
        for setting in settings_of(tables[name]):
            assert setting.description, f"{name}.{setting.key}"


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_survives_toml(text: str) -> None:
    """What is written as a string or as a key is read back unchanged."""
    assert tomllib.loads(f"{toml.key(text)} = [{toml.literal(text)}, true]") == {text: [text, True]}


def test_the_effective_settings_can_be_read_again() -> None:
    """With secrets, `effective_toml` writes text that is read back as the same settings, whatever the names are."""
    queue, odd = Queue(subscriptions=("a/*", "!a/b")), 'a."b" \\ \n 漢'
    named = Settings(
        data=Path(odd),
        listeners=(Listener(tls=PLAIN_TLS), Listener(host="::1", port=0, rabbitmq_mode=True)),
        users={'a."b"': replace(PASSWORD, publish=()), "Zoë": CERTIFICATE},
        vpns={"default": Vpn(), "a.b": Vpn(create_queues=False, queues={odd: queue})},
    )
    for whole in (Settings(), samples(), named):
        assert parse(effective_toml(whole, show_secrets=True)) == whole


def test_the_effective_settings_leave_nothing_out() -> None:
    """Every field that has a value is written, also if it is the default."""
    document = tomllib.loads(effective_toml(Settings()))
    assert set(document["limits"]) == {field.name for field in fields(Settings().limits)}
    assert TypeAdapter(Settings).json_schema()["properties"].keys() - document.keys() == {"telemetry", "user"}


def test_password_hashes_are_not_shown_unless_asked_for() -> None:
    """Without `show_secrets`, no hash is printed."""
    settings = parse(ANN)
    assert HASH not in effective_toml(settings)
    assert HASH in effective_toml(settings, show_secrets=True)


def test_a_value_without_a_form_in_toml_is_a_mistake_of_ours() -> None:
    """Only the types that settings have can be written."""
    with pytest.raises(TypeError, match=r"1j cannot be written"):
        toml.literal(1j)


def test_every_table_is_a_frozen_slotted_dataclass() -> None:
    """The settings are immutable, and have no attributes but their fields."""
    seen: list[object] = [Settings(users={"ann": PASSWORD}, listeners=(Listener(tls=MUTUAL_TLS),)), Queue()]
    for value in seen:
        assert is_dataclass(value)
        assert type(value).__dataclass_params__.frozen
        assert not hasattr(value, "__dict__")
        for field in fields(value):
            item = getattr(value, field.name)
            children = (
                item.values() if isinstance(item, dict) else item if isinstance(item, tuple) else [item]
            )
            seen += [child for child in children if is_dataclass(child)]
    assert len(seen) == 12


# --- A setting of an endpoint is defined once: every interface has all of them, and keeps their values ----------------

NOTED = {"temporary", "owner", "no_local", "selector", "auto_delete", "declared", "purged_below", "purged_ms"}
"""Kept with the settings: the gateway sets these, and no interface does."""

SAMPLES: dict[SettingType, Any] = {
    SettingType.FLAG: True,
    SettingType.NUMBER: 3_000,
    SettingType.QUOTA: 3 * 1_048_576,
    SettingType.WINDOW: 3_000,
    SettingType.QUEUE: "dead",
    SettingType.PROPERTY: "isin",
    SettingType.START: "last",
    SettingType.EXCLUSIVITY: Exclusivity.STEAL,
    SettingType.RETRY: RetryType.ALL,
    SettingType.PARTITIONS: 300,
}
NUMBERS = (SettingType.NUMBER, SettingType.QUOTA, SettingType.PARTITIONS, SettingType.WINDOW)
"""SAMPLES has a value of each type that is no setting's default, and that every unit can express."""

EVERY = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


def sample(setting: Setting) -> EndpointSettings:
    """An endpoint with this setting only, the rest as default."""
    return EndpointSettings(**{setting.name: SAMPLES[setting.type]})


def test_every_field_is_a_setting_or_noted() -> None:
    """A new field that is neither a setting nor noted by the gateway fails here."""
    assert {kept.name for kept in fields(EndpointSettings)} == SETTINGS.keys() | NOTED


@EVERY
def test_a_setting_says_what_documents_need(setting: Setting) -> None:
    """Each has a description, and a number has a unit, which the description has in place of a mark."""
    assert setting.described(setting.unit).rstrip(".") != ""
    assert (setting.unit is not None) is (setting.type in NUMBERS)
    assert "{" not in setting.described(Unit.SECONDS)


@EVERY
def test_a_setting_is_kept(setting: Setting) -> None:
    """Settings written to the store are read back; one that is missing there gets its default."""
    settings = sample(setting)
    assert EndpointSettings.from_json(settings.to_json()) == settings
    older = json.loads(settings.to_json())
    del older[setting.name]
    assert EndpointSettings.from_json(json.dumps(older)) == EndpointSettings()


@EVERY
def test_a_setting_is_in_the_configuration_and_in_its_document(setting: Setting) -> None:
    """Its key is read from a file, is in the example with description and default, and is written back unchanged."""
    (key,) = (key for key in QUEUE_KEYS if key.setting is setting)
    settings = sample(setting)
    said = key.value_of(settings)
    needed = "dedup_window = 1\n" if setting.name == "dedup_window_ms" else ""
    (vpn,) = parse(f"[vpn.default.queue.q]\n{needed}{key.key} = {literal(said)}").vpns.values()
    read = vpn.queues["q"].settings
    assert getattr(read, setting.name) == SAMPLES[setting.type]
    assert getattr(vpn.queues["q"], key.key) == said
    schema = TypeAdapter(Vpn).json_schema()["$defs"]["Queue"]["properties"][key.key]
    assert schema["description"] == setting.described(key.unit)
    assert schema["default"] == key.default
    assert f"\n#{key.key} = " in example_toml()


@EVERY
def test_a_setting_that_is_fixed_is_not_changed_by_a_reload(setting: Setting) -> None:
    """A reload applies settings that can change, and refuses the others with the reason."""
    (key,) = (key for key in QUEUE_KEYS if key.setting is setting)
    before = parse("[vpn.default.queue.q]\n")
    queue = replace(Queue(), **{key.key: key.value_of(sample(setting))})
    after = replace(before, vpns={"default": Vpn(queues={"q": queue})})
    found = reconcile(before, after)
    assert [one.reason for one in found.refused] == ([setting.fixed] if setting.fixed else [])
    assert [one.path for one in (*found.applied, *found.refused)] == [f"vpn.default.queue.q.{key.key}"]


@EVERY
def test_a_setting_is_an_attribute_of_administration(setting: Setting) -> None:
    """A request can set it, answers show the same value, and the OpenAPI document describes it."""
    (attribute,) = (one for one in SETTING_ATTRIBUTES if one.setting is setting)
    settings = sample(setting)
    said = attribute.value_of(settings)
    assert EndpointBody.model_validate({attribute.name: said}).settings(EndpointSettings()) == settings
    shown = configured(new_endpoint(settings), "default")
    assert shown[attribute.name] == said
    schema = NewQueue.model_json_schema()["properties"][attribute.name]
    assert schema["description"].endswith(attribute.description)


def test_arguments_of_rabbitmq_mean_settings() -> None:
    """Each argument is a setting of the same name, except for the kind and the single active consumer."""
    said = {argument.name for argument in fields(QueueArguments)}
    assert said - SETTINGS.keys() == {"is_stream", "single_active_consumer"}
