"""
``rewind upgrade-check``: says in advance what the next start of this version would do to the stores of a gateway.

The gateway may run meanwhile, in an earlier version: its stores are only read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gateway.cli.command import configuration
from gateway.cli.options import needing
from gateway.cli.store import POSTGRESQL, password_file_option, vpn_option
from gateway.cli.words import counted
from gateway.core.endpoint.settings import EndpointSettings, LaterSetting
from store.upgrade import Ahead

if TYPE_CHECKING:
    from gateway.config import Vpn

EXIT_REFUSED: Final = 1


class WayBack(StrEnum):
    """Whether the previous version can open the store after this version has."""

    OPEN = "open"
    UNTIL_CHANGED = "until-changed"
    """Until an endpoint is made or changed: its stored settings then include some that the previous version lacks."""
    BACKUP = "backup"
    """Only a backup leads back."""


_WAYS: Final = {
    WayBack.OPEN: "open: the previous version can still use the store afterwards",
    WayBack.UNTIL_CHANGED: "open until a queue, stream or topic endpoint is made or changed: the previous version "
    "does not know the settings {}",
    WayBack.BACKUP: "only a backup: the previous version refuses a store with these steps",
}


@dataclass(frozen=True, slots=True)
class Found:
    """What the next start of this version does to one Message VPN."""

    vpn: str
    ahead: Ahead
    refusal: str | None
    """Why this version would not serve it."""
    changes: tuple[str, ...]
    """What a start does in addition to the steps, a sentence each."""
    unknown_before: tuple[str, ...]
    """Settings that the previous version does not know."""

    @property
    def way_back(self) -> WayBack:
        """Whether the previous version can open the store afterwards."""
        if self.ahead.steps:
            return WayBack.BACKUP
        return WayBack.UNTIL_CHANGED if self.unknown_before else WayBack.OPEN

    def to_json(self) -> str:
        """One line, for a program."""
        return json.dumps(
            {
                "msgVpnName": self.vpn,
                "place": self.ahead.place,
                "schema": self.ahead.schema,
                "steps": [step._asdict() for step in self.ahead.steps],
                "changes": self.changes,
                "refusal": self.refusal,
                "wayBack": self.way_back.value,
            }
        )

    def lines(self) -> Iterator[str]:
        """For a person."""
        ahead = self.ahead
        yield f"{self.vpn}: {ahead.place}"
        if self.refusal is not None:
            yield f"  is refused: {self.refusal}"
            return
        if ahead.schema is None:
            yield "  does not exist: a start makes it"
            return
        if not ahead.steps:
            yield f"  tables: as this version has them ({ahead.schema})"
        for step in ahead.steps:
            cost = f"goes through {counted(step.rows, 'row')}" if step.rows else "immediately"
            yield f"  step {step.name}: {cost}"
        yield from (f"  {change}" for change in self.changes)
        yield f"  way back: {_WAYS[self.way_back].format(', '.join(self.unknown_before))}"


@click.command("upgrade-check")
@click.argument("place", metavar="FILE")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The data folder, if it is not the one that FILE names.",
)
@vpn_option
@password_file_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each Message VPN.")
@click.pass_context
def upgrade_check(
    context: click.Context,
    place: str,
    data: Path | None,
    vpn: str,
    password_file: Path | None,
    as_json: bool,
) -> None:
    """Say what the next start of this version would change, and change nothing.

    FILE is the configuration of the gateway, which may meanwhile run in an earlier version. It may also be a data
    folder, a Message VPN's file in one, or the url of a PostgreSQL database, for the Message VPN of `--vpn`: then the
    changes by the configuration are not known.

    Exit status: 0 a start is possible, 1 it would be refused, 2 the configuration is wrong.
    """
    if "://" in place or Path(place).is_dir() or Path(place).suffix == ".db":
        path = Path(place)
        if "://" not in place and not path.is_dir():
            vpn = path.stem
        url, folder = (place, Path()) if "://" in place else (None, path if path.is_dir() else path.parent)
        all_found = [_found(vpn, _look(vpn, folder, url, password_file), None)]
    else:
        from gateway.config import Overrides  # noqa: PLC0415 - a place needs no configuration

        settings = configuration(context, Path(place), Overrides(data=data)).settings
        all_found = [
            _found(name, _look(name, settings.data, *_database(of_vpn)), of_vpn)
            for name, of_vpn in settings.vpns.items()
        ]
    for found in all_found:
        click.echo(found.to_json() if as_json else "\n".join(found.lines()))
    context.exit(EXIT_REFUSED if any(found.refusal for found in all_found) else 0)


def _database(vpn: Vpn) -> tuple[str | None, Path | None]:
    return (None, None) if vpn.store is None else (vpn.store.url, vpn.store.password_file)


def _look(vpn: str, folder: Path, url: str | None, password_file: Path | None) -> Ahead:
    """What a start does to a Message VPN's store: at a url, if one is given, else in a data folder."""
    if url is not None:
        with needing(*POSTGRESQL):
            from store.postgresql.database import Database  # noqa: PLC0415 - it needs an extra
            from store.postgresql.store import look_ahead  # noqa: PLC0415
        return look_ahead(Database(url, password_file), vpn)
    from store.sqlite.store import look_ahead as look_at_file  # noqa: PLC0415 - not for what is at a url
    from store.sqlite.store import message_file  # noqa: PLC0415

    return look_at_file(message_file(folder, vpn))


def _found(name: str, ahead: Ahead, vpn: Vpn | None) -> Found:
    """
    What a start means for a store.

    Args:
        vpn: What the configuration says; None where that is not known.
    """
    stored: dict[str, tuple[str, EndpointSettings, int]] = {}
    refusal = ahead.refusal
    known = {setting.name for setting in fields(EndpointSettings)}
    unknown_before: set[str] = set()
    for endpoint in ahead.endpoints:
        unknown_before |= known - json.loads(endpoint.settings).keys()
        try:
            settings = EndpointSettings.from_json(endpoint.settings)
        except LaterSetting as error:
            refusal = (
                refusal
                or f"{error} of {endpoint.name!r}; it was written by a later version: use that version"
            )
        else:
            stored[endpoint.name] = (endpoint.kind, settings, endpoint.messages)
    changes = []
    if ahead.is_backup:
        changes.append(
            "is a backup: the log gets a new generation, and consumers that continue from a replay id are refused"
        )
    if vpn is not None and ahead.schema is not None and refusal is None:
        changes += _declared(vpn, stored)
        changes += _indexed(vpn.replay_log.index, ahead.indexed)
    return Found(name, ahead, refusal, tuple(changes), tuple(sorted(unknown_before)))


def _declared(vpn: Vpn, stored: Mapping[str, tuple[str, EndpointSettings, int]]) -> Iterator[str]:
    """What a start does to queues that the configuration names."""
    from gateway.config.toml import literal  # noqa: PLC0415 - see above
    from gateway.config.vpn import QUEUE_KEYS  # noqa: PLC0415

    for name, queue in vpn.queues.items():
        if name not in stored:
            yield f"makes the {queue.kind} {name!r}"
            continue
        kind, settings, messages = stored[name]
        if kind != queue.kind:
            yield f"makes the {kind} {name!r} a {queue.kind}, or is refused if that would lose messages"
            continue
        before, after = (
            # The store has an empty text where the file may have a word.
            {key.key: key.default if (value := key.value_of(of)) == "" else value for key in QUEUE_KEYS}
            for of in (settings, queue.settings)
        )
        changed = [
            f"{key} from {literal(value)} to {literal(after[key])}"
            for key, value in before.items()
            if value != after[key]
        ]
        if changed:
            yield f"changes {name!r}: {', '.join(changed)}"
        if settings.priorities != queue.settings.priorities:
            yield f"arranges {counted(messages, 'message')} on {name!r} again, by priority"
    for name in sorted({queue.settings.dead_message_queue for queue in vpn.queues.values()} - {""}):
        if name not in stored and name not in vpn.queues:
            yield f"makes the queue {name!r}"


def _indexed(asked: Sequence[str], indexed: Sequence[str]) -> Iterator[str]:
    """What a start does to the index of properties."""
    for name in asked:
        if name not in indexed:
            yield f"indexes {name!r} from the next message on"
    for name in indexed:
        if name not in asked:
            yield f"no longer indexes {name!r}"
