"""
Settings as TOML 1.0: values and dotted paths, the keys of each table, the commented example, the settings in effect.

In the example, prose lines begin with ``# ``; settings that have no default to show (a user, a queue, TLS) stand as a
sample behind a ``#`` with no blank, so that taking those marks away gives a configuration that can be read too.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from inspect import getdoc
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from gateway.config.settings import IdentityProvider, Settings, Telemetry, Tls, User, WebSocket
from gateway.config.vpn import ArchivedLog, Queue, ReplayTarget, Retention, VpnStore, masked


def literal(value: object) -> str:
    """One value of a setting (bool, int, float, str, Path or a tuple of them) on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            # Without an exponent a whole number stays a number with a point, as it was read.
            return repr(value)
        case str() | Path():
            # JSON's escapes are TOML's, but TOML wants DEL escaped too.
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple():
            return "[" + ", ".join(literal(item) for item in value) + "]"
        case _:
            raise TypeError(f"{value!r} has no place in a configuration")


def key(name: str) -> str:
    """``name`` as a key: bare if it can be, else quoted."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else literal(name)


def dotted(steps: Iterable[str | int]) -> str:
    """The path of a setting, such as ``listener[0].port`` or ``vpn.default.queue."a/b".quota_mb``."""
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{key(step)}"
    return path.removeprefix(".")


READER = TypeAdapter(Settings)


@cache
def _schema() -> dict[str, Any]:
    """Made when it is asked for: a gateway whose settings are right has no use for it."""
    return READER.json_schema(by_alias=True)


class TableKey(NamedTuple):
    """One field of a settings class: its attribute, its key in the file, its description."""

    attribute: str
    key: str
    description: str


def settings_of(kind: type) -> list[TableKey]:
    """The settings of one class of the tree, in their order."""
    table = _schema() if kind is Settings else _schema()["$defs"][kind.__name__]
    descriptions = _descriptions(kind)
    return [
        TableKey(field.name, key, descriptions.get(field.name) or schema.get("description", ""))
        for field, (key, schema) in zip(fields(kind), table["properties"].items(), strict=True)
    ]


@cache
def _descriptions(kind: type) -> dict[str, str]:
    """
    The docstrings below the fields of a class, by attribute; none where its source is not there.

    pydantic can read them, too, and does when the reader is made: with each start of a gateway, which needs none.
    """
    try:
        source = inspect.getsource(kind)
    except OSError:
        return {}
    (definition,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for line, below in pairwise(definition.body):
        match line, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
    return found


def keys_at(place: tuple[int | str, ...]) -> Iterator[str]:
    """The keys of the table at ``place``, inside which a step is a key or an index."""
    node = _schema()
    for step in (*place, None):
        for option in node.get("anyOf", ()):  # a table that may be absent
            node = option if "$ref" in option else node
        if "$ref" in node:
            node = _schema()["$defs"][node["$ref"].rpartition("/")[2]]
        if step is None:
            yield from node["properties"]
        elif isinstance(step, int):
            node = node["items"]
        else:
            node = node["properties"][step] if "properties" in node else node["additionalProperties"]


_WIDTH = 100
SECRETS: Final = frozenset({"password", "token"})
"""Keys of settings that are shown to nobody."""


_SAMPLES: dict[str, object] = {
    "tls": Tls(certificate=Path("server.pem"), key=Path("server.key"), client_ca=Path("clients.pem")),
    "websocket": WebSocket(origins=("https://console.example.com",)),
    "users": {
        "ann": User(
            password="scram$...",  # no hashes, or a copy of the example would let someone in
            token="sha256$...",
            publish=("topic://flights/>", "!topic://flights/test/>", "queue://orders"),
            consume=("queue://orders*", "topic://flights/>", "log://flights/>"),
            browse=("queue://>",),
            replay=("queue://orders",),
            administer=("queue://orders*",),
        ),
        "bob": User(
            password_file=Path("bob.hash"),
            token_file=Path("bob.token.hash"),
            sas_key_file=Path("bob.key"),
            certificate_names=("bob.example.com",),
        ),
    },
    "identity_providers": (
        IdentityProvider(
            issuer="https://sso.example.com/realms/main",
            audience="rewind",
            jwks_url="https://sso.example.com/realms/main/protocol/openid-connect/certs",
            rights_claim="realm_access.roles",
            client_id="rewind-console",
            client_secret_file=Path("console.secret"),
            console_url="https://console.example.com",
        ),
        IdentityProvider(issuer="https://login.example.com", audience="rewind", jwks_file=Path("keys.json")),
    ),
    "store": VpnStore(
        url="postgresql://a.example.com,b.example.com/rewind?target_session_attrs=read-write",
        password_file=Path("postgresql.password"),
        read_url="postgresql://a.example.com,b.example.com/rewind?target_session_attrs=prefer-standby",
        advertise="rewind-1.example.com:5672",
    ),
    "telemetry": Telemetry(
        endpoint="http://127.0.0.1:4318/v1/traces", headers_file=Path("collector.headers")
    ),
    "archive": ArchivedLog(place="/srv/archive", to="/srv/archive"),
    "retention": (
        Retention(topics=("orders/>", "!orders/test/>"), max_age_hours=2_160),
        Retention(topics=("debug/>",), max_age_hours=24, quota_mb=500),
    ),
    "replay_targets": {
        "test": ReplayTarget(
            url="amqps://test.example.com:5671",
            vpn="default",
            user="copier",
            password_file=Path("copier.password"),
            tls_ca=Path("authorities.pem"),
        )
    },
    "queues": {
        "orders": Queue(  # type: ignore[call-arg]  # has a key for each setting of an endpoint
            exclusive="wait", subscriptions=("orders/>", "!orders/test/>")
        )
    },
}


def example_toml() -> str:
    """Every setting with its default and the reason for it; reading it gives ``Settings()``."""
    style = _Style(comments=True)
    return "\n".join([*style.prose(getdoc(Settings) or ""), "", *_lines(Settings(), (), style)])


def effective_toml(settings: Settings, *, show_secrets: bool = False) -> str:
    """All of ``settings``, without comments; password hashes and the passwords of URLs only if ``show_secrets``,
    and only then can it be read back."""
    hidden = frozenset() if show_secrets else SECRETS
    return "\n".join(_lines(settings, (), _Style(hidden=hidden))) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Style:
    """How to render: with prose and samples or without, and which settings keep their value to themselves."""

    comments: bool = False
    hidden: frozenset[str] = frozenset()
    told: set[str] = field(default_factory=set)

    def prose(self, text: str) -> list[str]:
        """``text`` as comment lines, once; a second listener or user needs no second explanation."""
        if not self.comments or text in self.told:
            return []
        self.told.add(text)
        return [f"# {line}" for line in textwrap.wrap(text, _WIDTH)]


def _lines(value: Any, path: tuple[str, ...], style: _Style) -> Iterator[str]:
    """The lines of one table: its own settings, then the tables within it."""
    tables: list[Iterator[str]] = []
    for attribute, name, description in settings_of(type(value)):
        item = getattr(value, attribute)
        place = (*path, name)
        if style.comments and not item and attribute in _SAMPLES:
            tables.append(_commented_out(_tables(_SAMPLES[attribute], place, style)))
        elif holds_tables(item):
            tables.append(_tables(item, place, style))
        elif name in style.hidden and item is not None:
            yield f"# {name} is not shown"
        elif item is not None:
            yield from style.prose(description)
            text = literal(item)
            yield f"{name} = {masked(text) if style.hidden else text}"
            if style.comments:
                yield ""
    for lines in tables:
        yield from lines


def holds_tables(item: object) -> bool:
    if isinstance(item, tuple):
        return any(map(is_dataclass, item))
    return isinstance(item, dict) or is_dataclass(item)


def _tables(item: object, path: tuple[str, ...], style: _Style) -> Iterator[str]:
    """A table, an array of tables, or a table of named tables, each under its header."""
    match item:
        case dict():
            for name, table in item.items():
                yield from _tables(table, (*path, name), style)
        case tuple():
            for table in item:
                yield from _headed(f"[[{dotted(path)}]]", table, path, style)
        case _:
            yield from _headed(f"[{dotted(path)}]", item, path, style)


def _headed(header: str, table: object, path: tuple[str, ...], style: _Style) -> Iterator[str]:
    if not style.comments:
        yield ""
    yield from style.prose(getdoc(type(table)) or "")
    yield header
    yield from _lines(table, path, style)


def _commented_out(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if not line or line.startswith("# ") else f"#{line}"
