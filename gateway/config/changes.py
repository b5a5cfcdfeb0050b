"""
Settings that change while the gateway runs, or between its starts.

Changes by administrators are kept in the data folder. The configuration file decides the settings that it names.
Administrators decide the rest, and their values replace the defaults. So nothing overrules the file, and no change by
an administrator is lost: a setting that the file names later hides the kept value until the file no longer names it.

A second reading of the file is reconciled with the settings in effect: every difference is applied, except where
``_FIXED`` gives a reason against it.
"""

import json
import os
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from pydantic import TypeAdapter, ValidationError

from gateway.config import toml
from gateway.config.problems import ConfigError
from gateway.config.setting_types import VpnName
from gateway.config.settings import Settings
from gateway.config.toml import SECRETS, holds_tables, settings_of
from gateway.config.vpn import QUEUE_KEYS, Vpn, masked

FILE: Final = "administered.json"

Changes: TypeAlias = "Mapping[str, Any]"
"""Values by their settings in a Message VPN's table, such as ``enabled`` or ``replay_log.quota_mb``."""

ChangesByVpn: TypeAlias = "dict[str, Changes]"
"""Changes by the name of the Message VPN; one that is only here was made by an administrator."""


@cache
def _reader() -> TypeAdapter[dict[VpnName, Vpn]]:
    """Made only where there are changes: most data folders have none, and making it takes longer than reading."""
    return TypeAdapter(dict[VpnName, Vpn])


def setting_path(vpn: str, key: str = "") -> str:
    """The path of a Message VPN's setting in a configuration; without a key, the path of the VPN's table."""
    return toml.dotted(["vpn", vpn, *key.split(".")] if key else ["vpn", vpn])


def read_administered(data: Path) -> ChangesByVpn:
    """The changes that are kept in a data folder; empty where there are none.

    Raises:
        ConfigError: It cannot be used.
    """
    file = data / FILE
    try:
        kept: ChangesByVpn = json.loads(file.read_text(encoding="utf-8"))["vpn"]
        _reader().validate_json(
            json.dumps({name: _nested(changes) for name, changes in kept.items()}), by_alias=True
        )
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError([f"{file} cannot be read: {error.strerror}"]) from error
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
        raise ConfigError(
            [f"{file} is not as the gateway wrote it; mend it or move it away: {error}"]
        ) from error
    return kept


def write_administered(data: Path, kept: ChangesByVpn) -> None:
    """Write the changes durably, all or nothing.

    Raises:
        OSError: It could not be written.
    """
    fresh = data / f"{FILE}.new"
    with open(fresh, "w", encoding="utf-8", opener=_private) as out:
        json.dump({"vpn": kept}, out, indent=2, ensure_ascii=False)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(data / FILE)
    folder = os.open(data, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def administered_over(settings: Settings, kept: ChangesByVpn, named: Set[str]) -> Settings:
    """``settings`` with the kept changes to all that the file does not name; ``named`` are the paths that it names."""
    vpns = dict(settings.vpns)
    for name, changes in kept.items():
        silent = {key: value for key, value in changes.items() if setting_path(name, key) not in named}
        vpns[name] = changed(vpns.get(name, Vpn()), silent)
    return replace(settings, vpns=vpns)


def changed(vpn: Vpn, changes: Changes) -> Vpn:
    """The settings of a Message VPN with changes."""
    of_vpn = _nested(changes)
    of_log = of_vpn.pop("replay_log", {})
    log: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in of_log.items()
    }
    return replace(vpn, **of_vpn, replay_log=replace(vpn.replay_log, **log))


def value_of(vpn: Vpn, key: str) -> Any:
    """The present value of a Message VPN's setting, in the form of ``Changes``."""
    found: Any = vpn
    for step in key.split("."):
        found = getattr(found, step)
    return list(found) if isinstance(found, tuple) else found


def _nested(changes: Changes) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in changes.items():
        *tables, last = key.split(".")
        table = nested
        for step in tables:
            table = table.setdefault(step, {})
        table[last] = value
    return nested


def _private(path: str, flags: int) -> int:
    """Open a file that only its user can read."""
    return os.open(path, flags, 0o600)


SettingPath: TypeAlias = "tuple[str | int, ...]"

_AT_THE_START: Final = "is bound at the start"
_WHEN_OPENED: Final = "takes effect when the Message VPNs' files are opened"
_TAKEN_OVER: Final = "takes effect when the Message VPN's store is taken over"
_ROOM: Final = "is the size of objects that are created at the start"

_FIXED: Final[Mapping[SettingPath, str]] = {
    ("data",): "is held by the gateway while it runs",
    ("listener", "*", "host"): _AT_THE_START,
    ("listener", "*", "port"): _AT_THE_START,
    ("listener", "*", "tls"): "is part of an address that was bound; the files that it names are read again",
    ("listener", "*", "websocket"): "is part of an address that was bound",
    ("listener", "*", "rabbitmq_mode"): "is part of an address that was bound",
    ("admin", "host"): _AT_THE_START,
    ("admin", "port"): _AT_THE_START,
    ("admin", "tls"): "is part of an address that was bound; the files that it names are read again",
    ("limits", "listen_backlog"): _AT_THE_START,
    ("limits", "endpoint_window"): _ROOM,
    ("limits", "tail_bytes"): _ROOM,
    ("limits", "read_page_rows"): _ROOM,
    ("limits", "read_page_bytes"): _ROOM,
    ("store", "*"): _WHEN_OPENED,
    ("telemetry",): "takes effect when the exporter of spans starts",
    ("log", "*"): "takes effect before the first line of the log",
    ("vpn", "*", "replay_log", "index"): _WHEN_OPENED,
    **{
        ("vpn", "*", "store", key): _TAKEN_OVER
        for key in ("url", "password_file", "read_url", "lease_seconds", "advertise")
    },
    ("vpn", "*", "archive"): "is opened with its Message VPN",
    ("vpn", "*", "queue", "*", "kind"): "decides whether the queue holds messages at all",
    **{
        ("vpn", "*", "queue", "*", found.key): found.setting.fixed
        for found in QUEUE_KEYS
        if found.setting.fixed
    },
}

_KEPT: Final[Mapping[SettingPath, str]] = {
    ("vpn", "*", "store"): "is where the messages are",
    ("listener",): "has another number of addresses, which are bound at the start",
    (
        "vpn",
        "*",
    ): "is gone from the file, and has data: disable and delete it, or leave it out of the next start",
}
"""Tables that may not come or go as a whole."""


class Difference(NamedTuple):
    """A setting that differs. ``reason`` says why the value before stays; empty where the new one was applied."""

    path: str
    before: str
    after: str
    reason: str = ""

    def __str__(self) -> str:
        if not self.reason:
            return f"{self.path}: {self.before} became {self.after}"
        return (
            f"{self.path} {self.reason}: it stays {self.before} until the next start, and is not {self.after}"
        )


@dataclass(slots=True)
class Reloaded:
    """The settings to be in effect, and each difference to those before."""

    settings: Settings
    applied: list[Difference] = field(default_factory=list)
    refused: list[Difference] = field(default_factory=list)


def reconcile(old: Settings, new: Settings) -> Reloaded:
    """``new``, but as ``old`` where it cannot change while the gateway runs."""
    found = Reloaded(old)
    found.settings = _reconcile(old, new, (), found)
    return found


def _reconcile(old: Any, new: Any, path: SettingPath, found: Reloaded) -> Any:
    if old == new:
        return new
    fixed = _reason(_FIXED, path)
    if not fixed and is_dataclass(new) and type(old) is type(new):
        parts = {
            name: _reconcile(getattr(old, name), getattr(new, name), (*path, key), found)
            for name, key, _ in settings_of(type(new))
        }
        return replace(new, **parts)  # type: ignore[type-var]
    if isinstance(old, dict):
        return _tables(old, new, path, found)
    if isinstance(new, tuple) and new and is_dataclass(new[0]) and len(old) == len(new):
        return tuple(
            _reconcile(*pair, (*path, index), found) for index, pair in enumerate(zip(old, new, strict=True))
        )
    fixed = fixed or _reason(_KEPT, path)
    secret = not SECRETS.isdisjoint(path)
    difference = Difference(toml.dotted(path), _said(old, secret), _said(new, secret), fixed)
    (found.refused if fixed else found.applied).append(difference)
    return old if fixed else new


def _tables(old: dict[str, Any], new: dict[str, Any], path: SettingPath, found: Reloaded) -> dict[str, Any]:
    reconciled = {}
    for name in {**old, **new}:
        place = (*path, name)
        if name not in old:
            found.applied.append(Difference(toml.dotted(place), "not there", "there"))
            reconciled[name] = new[name]
        elif name in new:
            reconciled[name] = _reconcile(old[name], new[name], place, found)
        elif kept := _reason(_KEPT, place):
            found.refused.append(Difference(toml.dotted(place), "there", "gone", kept))
            reconciled[name] = old[name]
        else:
            found.applied.append(Difference(toml.dotted(place), "there", "gone"))
    return reconciled


def _reason(table: Mapping[SettingPath, str], path: SettingPath) -> str:
    for pattern, reason in table.items():
        if len(pattern) == len(path) and all(p in ("*", s) for p, s in zip(pattern, path, strict=True)):
            return reason
    return ""


def _said(value: Any, secret: bool) -> str:
    if value is None:
        return "not set"
    if secret:
        return "a secret"
    return "a table" if holds_tables(value) else masked(toml.literal(value))
