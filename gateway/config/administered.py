"""
What administrators changed of Message VPNs, kept in the data folder beside their files, so that it outlives a restart.

The rule: what the configuration file names, the file decides; what it is silent about, administrators decide, and that
stands where a default would. So nothing in the file is ever overruled, and nothing an administrator did is lost.
A setting that the file names later on hides what is kept; taken out of the file, it comes to light again.
"""

import json
import os
from collections.abc import Mapping, Set
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import TypeAdapter, ValidationError

from gateway.config import toml
from gateway.config.problems import ConfigError
from gateway.config.setting_types import VpnName
from gateway.config.settings import Settings
from gateway.config.vpn import Vpn

FILE: Final = "administered.json"

Changes: TypeAlias = "Mapping[str, Any]"
"""Values by their settings in a Message VPN's table, such as ``enabled`` or ``replay_log.quota_mb``."""

ChangesByVpn: TypeAlias = "dict[str, Changes]"
"""Changes by the name of the Message VPN; one that is only here was made by an administrator."""


@cache
def _reader() -> TypeAdapter[dict[VpnName, Vpn]]:
    """Made where something is kept: most data folders have nothing, and it takes longer than reading does."""
    return TypeAdapter(dict[VpnName, Vpn])


def setting_path(vpn: str, key: str = "") -> str:
    """Where a setting of a Message VPN stands in a configuration; without a key, where the VPN's table does."""
    return toml.dotted(["vpn", vpn, *key.split(".")] if key else ["vpn", vpn])


def read_administered(data: Path) -> ChangesByVpn:
    """What is kept in a data folder; nothing where there is none.

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
    """Keep it, durably, all or nothing.

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
    """``settings`` with what is kept wherever the file is silent; ``named`` are the paths of what it names."""
    vpns = dict(settings.vpns)
    for name, changes in kept.items():
        silent = {key: value for key, value in changes.items() if setting_path(name, key) not in named}
        vpns[name] = changed(vpns.get(name, Vpn()), silent)
    return replace(settings, vpns=vpns)


def changed(vpn: Vpn, changes: Changes) -> Vpn:
    """The settings of a Message VPN with changes."""
    of_log = {
        key.removeprefix("replay_log."): value
        for key, value in changes.items()
        if key.startswith("replay_log.")
    }
    of_vpn = {key: value for key, value in changes.items() if not key.startswith("replay_log.")}
    log: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in of_log.items()
    }
    return replace(vpn, **of_vpn, replay_log=replace(vpn.replay_log, **log))


def value_of(vpn: Vpn, key: str) -> Any:
    """What a setting of a Message VPN is now, as ``Changes`` would have it."""
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
    """A file that is its user's alone."""
    return os.open(path, flags, 0o600)
