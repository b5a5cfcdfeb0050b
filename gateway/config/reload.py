"""
What may change while the gateway runs: two readings of the configuration, and what becomes of their differences.

Everything may, but for what ``_FIXED`` lists with the reason; a setting is looked for there by its path.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

from gateway.config import toml
from gateway.config.queue_settings import QUEUE_KEYS
from gateway.config.settings import Settings
from gateway.config.settings_schema import settings_of
from gateway.config.vpn_store import masked

Path: TypeAlias = "tuple[str | int, ...]"

_AT_THE_START: Final = "is bound at the start"
_WHEN_OPENED: Final = "is said to the Message VPNs' files when they are opened"
_TAKEN_OVER: Final = "is said to the Message VPN's store when that is taken over"
_ROOM: Final = "is the size of what was made at the start"

_FIXED: Final[Mapping[Path, str]] = {
    ("data",): "is held by the gateway while it runs",
    ("listener", "*", "host"): _AT_THE_START,
    ("listener", "*", "port"): _AT_THE_START,
    ("listener", "*", "tls"): "is part of an address that was bound; the files that it names are read anew",
    ("listener", "*", "websocket"): "is part of an address that was bound",
    ("listener", "*", "rabbitmq_mode"): "is part of an address that was bound",
    ("admin", "host"): _AT_THE_START,
    ("admin", "port"): _AT_THE_START,
    ("admin", "tls"): "is part of an address that was bound; the files that it names are read anew",
    ("limits", "listen_backlog"): _AT_THE_START,
    ("limits", "endpoint_window"): _ROOM,
    ("limits", "tail_bytes"): _ROOM,
    ("limits", "read_page_rows"): _ROOM,
    ("limits", "read_page_bytes"): _ROOM,
    ("store", "*"): _WHEN_OPENED,
    ("telemetry",): "is said to what sends spans at the start",
    ("log", "*"): "is said to the loggers before the first line",
    ("vpn", "*", "replay_log", "index"): _WHEN_OPENED,
    **{
        ("vpn", "*", "store", key): _TAKEN_OVER
        for key in ("url", "password_file", "read_url", "lease_seconds", "advertise")
    },
    ("vpn", "*", "archive"): "is opened with its Message VPN",
    ("vpn", "*", "queue", "*", "kind"): "decides whether messages lie there at all",
    **{
        ("vpn", "*", "queue", "*", found.key): found.setting.fixed
        for found in QUEUE_KEYS
        if found.setting.fixed
    },
}

_KEPT: Final[Mapping[Path, str]] = {
    ("vpn", "*", "store"): "is where the messages are",
    ("listener",): "has another number of addresses, which are bound at the start",
    (
        "vpn",
        "*",
    ): "is gone from the file, and has data: disable and delete it, or leave it out of the next start",
}
"""What may not come or go as a whole."""

_SECRETS: Final = frozenset({"password", "token"})


class Difference(NamedTuple):
    """A setting that is not as it was. ``reason`` is why it stays so; empty for one that was applied."""

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


def _reconcile(old: Any, new: Any, path: Path, found: Reloaded) -> Any:
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
    secret = not _SECRETS.isdisjoint(path)
    difference = Difference(toml.dotted(path), _said(old, secret), _said(new, secret), fixed)
    (found.refused if fixed else found.applied).append(difference)
    return old if fixed else new


def _tables(old: dict[str, Any], new: dict[str, Any], path: Path, found: Reloaded) -> dict[str, Any]:
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


def _reason(table: Mapping[Path, str], path: Path) -> str:
    for pattern, reason in table.items():
        if len(pattern) == len(path) and all(p in ("*", s) for p, s in zip(pattern, path, strict=True)):
            return reason
    return ""


def _said(value: Any, secret: bool) -> str:
    if value is None:
        return "not set"
    if secret:
        return "a secret"
    return "a table" if is_dataclass(value) or _holds_tables(value) else masked(toml.literal(value))


def _holds_tables(value: Any) -> bool:
    return isinstance(value, tuple) and any(map(is_dataclass, value))
