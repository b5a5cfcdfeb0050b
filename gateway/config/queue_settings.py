"""The settings of a queue as the configuration says them: one key of ``[vpn.NAME.queue.NAME]`` for each setting of an
endpoint, spelled, counted and checked as the rest of the configuration is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import Field

from gateway.config.setting_types import Quota, StartText
from gateway.core.endpoint.settings import SETTINGS, EndpointSettings, Exclusivity, Setting, SettingType, Unit

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueKey:
    """A setting's key in the file."""

    setting: Setting
    key: str
    unit: Unit | None
    default: Any

    def value_of(self, settings: EndpointSettings) -> Any:
        """What the file would say of an endpoint with these settings."""
        return self.setting.told(getattr(settings, self.setting.name), self.unit)

    @property
    def annotation(self) -> Any:
        """Its type, as pydantic reads and documents it."""
        return Annotated[_TYPES[self.setting.type], Field(description=self.setting.described(self.unit))]


_TYPES: Final[dict[SettingType, Any]] = {
    SettingType.FLAG: bool,
    SettingType.NUMBER: Annotated[int, Field(ge=0)],
    SettingType.QUOTA: Quota,
    SettingType.QUEUE: Annotated[str, Field(max_length=200)],
    SettingType.START: StartText,
    SettingType.EXCLUSIVITY: Literal[tuple(one.value for one in Exclusivity)],
}

_SPELLED_OTHERWISE: Final = {"quota_bytes": ("quota_mb", Unit.MEGABYTES)}
"""Keys and units that are not those of the setting."""

_DEFAULTS: Final = {"default_start": "live"}
"""Defaults that are said in words in the file, where nothing is kept."""


def _keys() -> Iterator[QueueKey]:
    for name, setting in SETTINGS.items():
        key, unit = _SPELLED_OTHERWISE.get(name, (name, setting.unit))
        default = _DEFAULTS.get(name, setting.told(setting.default, unit))
        yield QueueKey(setting, key, unit, default)


QUEUE_KEYS: Final = tuple(_keys())
"""Every setting of an endpoint, in the order of the documents."""


def with_queue_settings(table: type[T]) -> type[T]:
    """Give a table of the configuration a field for each setting of an endpoint, before it is made a dataclass."""
    for found in QUEUE_KEYS:
        table.__annotations__[found.key] = found.annotation
        setattr(table, found.key, field(default=found.default))
    return table


def endpoint_settings(queue: object) -> EndpointSettings:
    """What such a table says, as it is kept of an endpoint."""
    return EndpointSettings(
        **{k.setting.name: k.setting.read(getattr(queue, k.key), k.unit) for k in QUEUE_KEYS}
    )
