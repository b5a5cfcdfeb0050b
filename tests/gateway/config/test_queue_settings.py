"""A setting of an endpoint is defined once: each vocabulary has all of them, and keeps what is said."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from amqp_ext.rabbitmq.management import QueueArguments
from gateway.admin.semp.endpoints import SETTING_ATTRIBUTES, EndpointBody, NewQueue, configured
from gateway.config import Queue, Vpn, parse
from gateway.config.changes import reconcile
from gateway.config.toml import example_toml, literal
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

NOTED = {"temporary", "owner", "no_local", "selector", "auto_delete", "declared", "purged_below", "purged_ms"}
"""What is kept beside the settings: nobody says it of an endpoint, the gateway notes it."""

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
"""A value of each type that no setting has by default, and that every unit can say."""

EVERY = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)


def sample(setting: Setting) -> EndpointSettings:
    """An endpoint of which this is said and nothing else."""
    return EndpointSettings(**{setting.name: SAMPLES[setting.type]})


def test_every_field_is_a_setting_or_noted() -> None:
    """A field that is added without saying what it means fails here."""
    assert {kept.name for kept in fields(EndpointSettings)} == SETTINGS.keys() | NOTED


@EVERY
def test_a_setting_says_what_documents_need(setting: Setting) -> None:
    """Each has a meaning, a number has its unit, and the text has the unit where it is."""
    assert setting.described(setting.unit).rstrip(".") != ""
    assert (setting.unit is not None) is (setting.type in NUMBERS)
    assert "{" not in setting.described(Unit.SECONDS)


@EVERY
def test_a_setting_is_kept(setting: Setting) -> None:
    """What the store is given is read back, and what it has not heard of has its default."""
    settings = sample(setting)
    assert EndpointSettings.from_json(settings.to_json()) == settings
    older = json.loads(settings.to_json())
    del older[setting.name]
    assert EndpointSettings.from_json(json.dumps(older)) == EndpointSettings()


@EVERY
def test_a_setting_is_in_the_configuration_and_in_its_document(setting: Setting) -> None:
    """Its key is read from a file, shown with meaning and default in the example, and told again as it was said."""
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
    """A reload changes what can change, and says of the rest why it stays."""
    (key,) = (key for key in QUEUE_KEYS if key.setting is setting)
    before = parse("[vpn.default.queue.q]\n")
    queue = replace(Queue(), **{key.key: key.value_of(sample(setting))})
    after = replace(before, vpns={"default": Vpn(queues={"q": queue})})
    found = reconcile(before, after)
    assert [one.reason for one in found.refused] == ([setting.fixed] if setting.fixed else [])
    assert [one.path for one in (*found.applied, *found.refused)] == [f"vpn.default.queue.q.{key.key}"]


@EVERY
def test_a_setting_is_an_attribute_of_administration(setting: Setting) -> None:
    """It can be said in a request, is shown in answers as it was said, and stands in the OpenAPI document."""
    (attribute,) = (one for one in SETTING_ATTRIBUTES if one.setting is setting)
    settings = sample(setting)
    said = attribute.value_of(settings)
    assert EndpointBody.model_validate({attribute.name: said}).settings(EndpointSettings()) == settings
    shown = configured(new_endpoint(settings), "default")
    assert shown[attribute.name] == said
    schema = NewQueue.model_json_schema()["properties"][attribute.name]
    assert schema["description"].endswith(attribute.description)


def test_arguments_of_rabbitmq_mean_settings() -> None:
    """What a declaration can say is a setting under its own name, but for the kind and the one active consumer."""
    said = {argument.name for argument in fields(QueueArguments)}
    assert said - SETTINGS.keys() == {"is_stream", "single_active_consumer"}


def test_the_names_outside_are_those_that_were_given_once() -> None:
    """Keys and attributes are spelled as files and programs have them."""
    assert {key.setting.name: key.key for key in QUEUE_KEYS} == {
        **{name: name for name in SETTINGS},
        "quota_bytes": "quota_mb",
    }
    assert {one.name for one in SETTING_ATTRIBUTES} >= {
        "exclusivity",
        "maxMsgSpoolUsage",
        "maxMsgCount",
        "maxMsgSize",
        "maxBindCount",
        "maxDeliveredUnackedMsgsPerFlow",
        "maxRedeliveryCount",
        "maxTtl",
        "deadMsgQueue",
        "respectMsgPriorityEnabled",
        "defaultStart",
    }
